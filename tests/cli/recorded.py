"""Answers of a pool's server, as it gives them."""

from typing import Any

NOW_S = 1_700_000_000.0

JOB: dict[str, Any] = {
    "id": 12, "name": "bert", "user": "ann", "priority": 0, "tier": "elastic", "state": "RUNNING",
    "gpus": 3, "gpus_min": 1, "gpus_max": 8, "nodes": ["n1", "n2"], "slots": [0, 1, 4],
    "attempt": 1, "step": 420, "steps": 1000, "progress": 0.42, "eta_s": 95.0,
    "samples_per_s": 1234.5, "submitted_s": NOW_S - 130, "started_s": NOW_S - 120,
    "ended_s": None, "runtime_s": 120.0, "waited_s": 10.0, "jct_s": None, "resizes": 2,
    "restarts": 0, "last_pause_s": 0.04, "code": None, "reason": "afs-p: it gains most",
    "exit_code": None, "trouble": None, "metrics": {"loss": 0.123456}, "saved_step": 400,
    "command": ["train.py", "--epochs", "3"], "failures": 0, "lead": "n1",
}  # fmt: skip
WAITING = JOB | {
    "id": 13, "name": "vit", "state": "PENDING", "gpus": 0, "nodes": [], "slots": [], "attempt": 0,
    "step": 0, "steps": None, "progress": None, "eta_s": None, "samples_per_s": 0.0,
    "submitted_s": NOW_S - 4000, "started_s": None, "runtime_s": 0.0, "waited_s": 4000.0,
    "resizes": 0, "last_pause_s": None, "code": "Resources", "reason": "needs 1 GPU, 0 are free",
    "metrics": {}, "saved_step": None,
}  # fmt: skip
ENDED = JOB | {"state": "SUCCEEDED", "gpus": 0, "ended_s": NOW_S, "jct_s": 130.0, "eta_s": None}
TROUBLE = {"what": "train.py failed", "because": "ValueError: no", "try": "coddl logs 12"}
FAILED = ENDED | {"state": "FAILED", "exit_code": 3, "trouble": TROUBLE, "reason": ""}
EVENT = {
    "number": 7, "at_s": NOW_S - 60, "kind": "RunChanged", "job": 12, "node": None,
    "text": "job 12 resized from 1 to 3 GPUs", "detail": {},
}  # fmt: skip
DECISION = EVENT | {
    "number": 8, "kind": "Decided", "job": None, "text": "afs-p decided", "detail":
    {"targets": {"12": {"slots": [0], "reason": "x"}}, "waiting": {"13": {}}},
}  # fmt: skip
LINE = {
    "number": 1, "at_s": NOW_S, "attempt": 1, "worker": 5, "rank": 0, "stream": "stdout",
    "text": "loss 0.1",
}  # fmt: skip
NODE = {
    "name": "n1", "host": "10.0.0.1", "state": "UP", "is_up": True, "is_silent": False,
    "is_drained": False, "is_awaited": False, "lease_left_s": 118.0,
    "used": 2, "free": 0, "jobs": [12],
    "slots": [
        {"slot": 0, "index": 0, "kind": "cpu", "gpu": None, "memory_bytes": 0, "job": 12},
        {"slot": 1, "index": 1, "kind": "cpu", "gpu": None, "memory_bytes": 0, "job": 12},
    ],
}  # fmt: skip
EXPLAINED = {
    "job": JOB, "sentence": "it gains most from a third GPU", "code": None, "position": None,
    "ahead": 0, "speeds": [
        {"gpus": 1, "step_s": 0.4, "speedup": 1.0, "source": "measured", "iterations": 50},
        {"gpus": 2, "step_s": 0.21, "speedup": 1.9, "source": "interpolated", "iterations": 0},
        {"gpus": 4, "step_s": 0.1, "speedup": 4.0, "source": "assumed", "iterations": 0},
    ],
    "story": [{"number": 1, "at_s": NOW_S - 130, "text": "job 12 submitted"}],
}  # fmt: skip
PREVIEW = {
    "policy": "afs-p", "slots_total": 4, "slots_free": 0,
    "job": {"job": 13, "name": "vit", "gpus_before": 0, "gpus": 1, "reason": "it is new"},
    "others": [
        {"job": 12, "name": "bert", "gpus_before": 4, "gpus": 3, "reason": "vit needs one"},
    ],
}  # fmt: skip
PROFILED = {
    "version": 1, "device": "NVIDIA H200", "batch": 64, "update_s": 0.002, "other_s": 0.0005,
    "data_s": 0.0, "slices": [
        {"samples": 32, "forward_s": 0.0061, "backward_s": 0.0112},
        {"samples": 64, "forward_s": 0.0101, "backward_s": 0.0202},
    ],
    "buckets": [{"bytes": 3 << 20, "ready": 0.25}, {"bytes": 1 << 20, "ready": 1.0}],
    "memory": [{"samples": 64, "peak_bytes": 3 << 30}],
    "update_memory": [{"samples": 64, "peak_bytes": 2 << 30}], "state_bytes": 1 << 30,
    "largest_tensor_bytes": 1 << 20, "virtual_nodes": None, "signature": "0123456789abcdef",
}  # fmt: skip
