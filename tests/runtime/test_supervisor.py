"""The supervisor with stub workers: what it does with what they say, and how it ends."""

import json
import os
import signal
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor.checkpoint_store import CheckpointStore, SavedCheckpoint
from coddl.runtime.supervisor.control_socket import asked, conversation, running
from coddl.runtime.supervisor.jobdir import socket_folder
from tests.runtime.harness import (
    ROOT,
    Running,
    Start,
    children,
    fake_torch,
    lives,
    sockets,
    start,
    wait_until,
)

__all__ = ["fake_torch", "sockets", "start"]  # fixtures


def test_a_job_is_resized_at_the_steps_it_was_told(start: Start, tmp_path: Path) -> None:
    job = start({"steps": 400}, workers=2, resizes=((20, 4), (50, 1)))
    assert job.end() == 0
    changes = [(c["is"], c["from"], c["to"]) for c in job.events[-1]["changes"]]
    assert changes == [("started", 0, 2), ("resized", 2, 4), ("resized", 4, 1)]
    end = job.told("ended")[0]
    assert (end["state"], end["step"], end["code"]) == ("SUCCEEDED", 400, 0)
    assert not (tmp_path / "checkpoints").exists()


def test_a_change_tells_how_long_each_part_took(start: Start) -> None:
    job = start()
    job.wait_for("started")
    change = job.ask("resize", workers=3)["change"]
    assert (change["from"], change["to"]) == (1, 3)
    assert change["pause_s"] == pytest.approx(0.006)
    parts = {name: change[name] for name in ("boundary_s", "state_s", "swap_s")}
    assert parts == pytest.approx({"boundary_s": 0.001, "state_s": 0.002, "swap_s": 0.003})
    assert 0 < change["prepare_s"] <= change["serving_s"]


def test_status_shows_job_and_workers(start: Start) -> None:
    job = start({"steps": 10**6}, workers=2)
    job.wait_for("progress")
    wait_until(lambda: all(w["pass_s"] for w in job.ask("status")["workers"]), "a step of each")
    status = job.ask("status")
    assert (status["state"], status["size"], status["steps"]) == ("RUNNING", 2, 10**6)
    assert status["samples_per_s"] == pytest.approx(1600)
    for number, worker in enumerate(status["workers"]):
        assert (worker["worker"], worker["slot"]) == (number, number)
        assert (worker["state"], worker["share"]) == ("RUNNING", 4)
        assert worker["pass_s"] == pytest.approx(0.001)
        assert lives(worker["pid"])


class End(NamedTuple):
    """How a job ends: which way, with which code, and what the error names."""

    options: Mapping[str, Any]
    code: int
    named: tuple[str, ...]
    fields: Mapping[str, Any] = {}


ENDS = {
    "a script that never calls prepare": End({"before": "exit:0"}, 1, ("coddl.prepare",)),
    "a crash before the loop, in its own words": End(
        {"before": "raise:boom"}, 1, ("RuntimeError: boom (worker 0 exited with code 1)",)
    ),
    "the script's own exit code": End({"do_at_step": {"0:3": "exit:7"}}, 7, ("code 7",)),
    "more workers than virtual nodes": End(
        {}, 2, ("9 workers", "at most 8 workers"), {"workers": 9}
    ),
    "a schedule beyond them": End({}, 2, ("9 workers",), {"resizes": ((5, 9),)}),
    "bad input found by prepare": End({"before": "reject"}, 2, ("a bad batch", "it is 7", "8")),
    "killed before it arrives, always": End({"before": "kill"}, 1, ("no worker", "SIGKILL")),
    "killed before its first step, always": End({"on_enter": "kill"}, 1, ("in 3 restarts",)),
}


@pytest.mark.parametrize("case", ENDS.values(), ids=ENDS.keys())
def test_a_job_that_can_not_go_on_says_why(start: Start, case: End) -> None:
    job = start(case.options, **case.fields)
    assert job.end() == case.code
    (error,) = job.told("error")
    for word in case.named:
        assert word in " ".join(map(str, error.values()))
    assert job.told("ended")[0]["state"] == "FAILED"


def test_a_traceback_is_told_before_the_end(start: Start) -> None:
    job = start({"before": "raise:boom"})
    job.end()
    lines = [event["text"] for event in job.told("log") if event["stream"] == "stderr"]
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "RuntimeError: boom"
    assert not [line for line in lines if "fork_server" in line]


def test_leaving_the_loop_early_is_an_end(start: Start) -> None:
    job = start({"do_at_step": {"0:5": "exit:0"}})
    assert job.end() == 0
    assert job.kinds().count("starting") == 1


def test_a_port_that_is_taken_ends_the_job(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        job = start(port=port)
        assert job.end() == 2
    assert f"port {port}" in job.told("error")[0]["what"]


def test_an_interpreter_without_torch_ends_the_job(start: Start, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('No module named torch')")
    job = start(env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert job.end() == 2
    assert "No module named torch" in job.told("error")[0]["because"]


def test_a_killed_worker_is_replaced(start: Start) -> None:
    job = start({"do_at_step": {"1:5": "kill"}}, workers=2)
    assert job.wait_for("exited")["signal"] == "SIGKILL"
    assert job.wait_for("regrouped")["members"] == [0]
    assert job.wait_for("resized")["members"] == [0, 2]


def test_if_all_are_killed_the_newest_image_counts(start: Start) -> None:
    job = start({"do_at_step": {"0:60": "kill", "1:61": "kill"}}, checkpoint_every_s=0.1)
    saved = job.wait_for("checkpoint")
    job.wait_for("exited")
    origin = job.wait_for("origin")
    assert origin["where"] == "memory"
    assert origin["step"] >= saved["step"] > 0
    assert job.wait_for("restarted")["step"] == origin["step"]


def test_without_an_image_in_memory_the_checkpoint_counts(start: Start) -> None:
    job = start(checkpoint_every_s=0.1)
    job.wait_for("checkpoint")
    job.wait_for("checkpoint")
    job.interrupt()
    assert job.end() == 130
    saved = job.told("ended")[0]["saved_step"]
    again = start()
    assert (origin := again.wait_for("origin"))["where"] == "checkpoint"
    assert origin["step"] == saved
    newest = sorted(job.job.folder.glob("step-*.ckpt"))[-1]
    assert origin["path"] == str(newest)


def test_a_broken_checkpoint_is_skipped_and_told(start: Start) -> None:
    job = start(checkpoint_every_s=0.1)
    job.wait_for("checkpoint")
    job.wait_for("checkpoint")
    job.interrupt()
    job.end()
    older, newer = sorted(job.job.folder.glob("step-*.ckpt"))
    newer.write_bytes(newer.read_bytes()[:100])
    origin = start().wait_for("origin")
    assert origin["path"] == str(older)
    assert newer.name in origin["skipped"][0]


def test_fresh_starts_over(start: Start) -> None:
    job = start(checkpoint_every_s=0.1)
    job.wait_for("checkpoint")
    job.interrupt()
    job.end()
    again = start(fresh=True)
    assert again.wait_for("origin")["where"] == "scratch"


def test_checkpoints_of_another_script_are_refused(start: Start, tmp_path: Path) -> None:
    job = start(checkpoint_every_s=0.1)
    job.wait_for("checkpoint")
    job.interrupt()
    job.end()
    with pytest.raises(TrainingError, match=r"holds checkpoints of .*stub_worker\.py"):
        start(script=tmp_path / "other.py").end()


def test_kept_checkpoints_of_a_finished_job_are_not_trained_on(start: Start) -> None:
    job = start({"steps": 400}, checkpoint_every_s=0.1, keep_checkpoints=True)
    assert job.end() == 0
    assert list(job.job.folder.glob("step-*.ckpt"))
    with pytest.raises(TrainingError, match="told to keep"):
        start().end()


def test_who_is_put_back_to_sleep_while_waking_up_sleeps_when_nobody_is_left(start: Start) -> None:
    job = start(workers=2)
    job.wait_for_step(5)
    job.ask("suspend")
    job.ask("resume", wait=False)
    job.ask("suspend")
    status = job.ask("status")
    assert (status["state"], status["workers"]) == ("SUSPENDED", [])
    first, again = job.told("suspended")
    assert again["durable"]
    assert again["step"] >= first["step"] >= 5
    assert job.ask("resume")["change"]["is"] == "resumed"


def test_a_change_is_told_however_many_there_were(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coddl.runtime.supervisor.changes.MADE_MAX", 3)
    job = start()
    job.wait_for("started")
    for workers in (2, 1, 2, 1, 2):
        assert job.ask("resize", workers=workers)["change"]["to"] == workers
    assert len(job.ask("status")["changes"]) == 3


def test_a_suspended_job_has_no_workers_and_a_checkpoint(start: Start) -> None:
    job = start(workers=2)
    job.wait_for("started")
    job.wait_for_step(5)
    pids = job.pids()
    job.ask("suspend")
    assert not [pid for pid in pids if lives(pid)]
    status = job.ask("status")
    assert (status["state"], status["size"], status["workers"]) == ("SUSPENDED", 0, [])
    assert status["saved_step"] == status["step"] > 5
    job.ask("suspend")  # a repeat
    job.ask("resume", workers=3)
    assert (resumed := job.wait_for("resumed"))["to"] == 3
    assert resumed["step"] == status["step"]
    assert job.told("origin")[-1]["where"] == "memory"


def test_resume_goes_back_to_the_size_before(start: Start) -> None:
    job = start(workers=2)
    job.wait_for("started")
    job.ask("suspend")
    assert job.ask("resume")["change"]["to"] == 2


REFUSED: Mapping[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "too many workers": ({"do": "resize", "workers": 9}, ("9 workers", "at most 8 workers")),
    "no workers": ({"do": "resize", "workers": 0}, ("0 workers", "at least 1 worker")),
    "half a worker": ({"do": "resize", "workers": 1.5}, ("1.5",)),
    "waking the awake": ({"do": "resume"}, ("can't be resumed", "RUNNING")),
    "what nobody knows": ({"do": "dance"}, ("dance",)),
    "a resize to nothing": ({"do": "resize"}, ("resize",)),
}


def test_what_can_not_be_is_refused_and_changes_nothing(start: Start) -> None:
    job = start(workers=2)
    job.wait_for("started")
    for request, named in REFUSED.values():
        with pytest.raises(TrainingError) as refused:
            asked(job.job.name, request)
        for word in named:
            assert word in str(refused.value)
    assert job.ask("status")["size"] == 2
    job.ask("suspend")
    with pytest.raises(TrainingError, match="SUSPENDED"):
        job.ask("resize", workers=1)


@pytest.mark.parametrize(("visible", "names"), [("", ("0", "1")), ("5,3", ("5", "3"))])
def test_every_worker_gets_a_gpu_and_nccl_only_a_gpu_of_its_own(
    start: Start, fake_torch: Path, visible: str, names: tuple[str, str]
) -> None:
    env = {**os.environ, "PYTHONPATH": f"{fake_torch}:{ROOT}", "GPUS": "2"}
    job = start(workers=None, env=env | ({"CUDA_VISIBLE_DEVICES": visible} if visible else {}))
    assert job.wait_for("started")["to"] == 2
    gpus = {"gpu 0": names[0], "gpu 1": names[1]}
    wait_until(lambda: job.ask("status")["metrics"] == {**gpus, "backend": "nccl"}, "metrics")
    job.ask("resize", workers=3)
    wait_until(lambda: "gpu 2" in job.ask("status")["metrics"], "metrics")
    assert job.ask("status")["metrics"] == {**gpus, "gpu 2": names[0], "backend": "gloo"}


def test_a_size_it_has_already_changes_nothing(start: Start) -> None:
    job = start(workers=2)
    job.wait_for("started")
    assert job.ask("resize", workers=2)["change"] is None


def test_bounds_hold(start: Start) -> None:
    job = start(workers=None, workers_min=2, workers_max=3)
    assert job.wait_for("started")["to"] in (2, 3)
    for workers in (1, 4):
        with pytest.raises(TrainingError, match=r"--workers 2\.\.3"):
            job.ask("resize", workers=workers)


def test_a_name_is_taken_only_while_its_job_runs(start: Start) -> None:
    job = start()
    job.wait_for("started")
    assert running() == [job.job.name]
    with pytest.raises(TrainingError, match="is running already"):
        start().end()
    job.interrupt()
    job.end()
    assert running() == []
    with pytest.raises(TrainingError, match="no job is running here"):
        job.ask("status")
    start().wait_for("started")


def test_a_newer_command_answers_the_older(start: Start) -> None:
    job = start({"before": ""}, workers=1)
    job.wait_for("started")
    job.ask("resize", workers=4, wait=False)
    assert job.ask("resize", workers=3)["change"]["to"] == 3


def test_whoever_watches_sees_every_event(start: Start) -> None:
    job = start()
    job.wait_for("started")
    seen: list[str] = []
    for event in conversation(job.job.name, {"do": "watch"}):
        if not seen:
            job.ask("resize", workers=2, wait=False)
        seen.append(event["is"])
        if event["is"] == "resized":
            break
    assert {"progress", "starting"} <= set(seen)


def test_a_hanging_worker_is_killed_and_replaced(start: Start) -> None:
    job = start({"do_at_step": {"1:5": "hang"}}, workers=2, watchdog_s=5.0)
    assert "worker 1" in job.wait_for("problem")["what"]
    assert job.wait_for("exited")["worker"] == 1
    job.wait_for("resized")


def test_a_leaver_that_does_not_leave_is_killed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coddl.runtime.supervisor.workers.LEAVER_WAIT_S", 0.3)
    job = start({"on_leave": "hang"}, workers=2)
    job.wait_for("started")
    job.ask("resize", workers=1)
    gone = job.wait_for("exited")
    assert (gone["worker"], gone["signal"], gone["expected"]) == (1, "SIGKILL", True)


def test_the_death_of_the_fork_server_is_survived(start: Start) -> None:
    job = start(workers=2, checkpoint_every_s=0.1)
    job.wait_for("checkpoint")
    (fork_server,) = {parent(pid) for pid in job.pids()}
    os.kill(fork_server, signal.SIGKILL)
    assert job.wait_for("restarted")["to"] == 2


def test_the_death_of_the_store_makes_the_group_anew(start: Start) -> None:
    job = start(workers=2)
    job.wait_for("started")
    workers = job.pids()
    (store,) = set(children(parent(workers[0]))) - set(workers)
    os.kill(store, signal.SIGKILL)
    assert job.wait_for("regrouped")["members"] == [0, 1]
    assert job.ask("resize", workers=3)["change"]["to"] == 3


def test_an_interrupted_job_leaves_nothing_and_a_whole_trace(start: Start, tmp_path: Path) -> None:
    job = start(workers=2, trace=tmp_path / "trace.json")
    job.wait_for("started")
    job.ask("resize", workers=1)
    pids = job.pids()
    job.interrupt()
    assert job.end() == 130
    assert job.told("ended")[0]["state"] == "CANCELLED"
    assert not [pid for pid in pids if lives(pid)]
    events = json.loads((tmp_path / "trace.json").read_text())
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"supervisor", "worker 0 (slot 0)", "worker 1 (slot 1)"} <= names
    assert "start worker 1" in {event["name"] for event in events if event["ph"] == "X"}
    begun = [(e["id"], e["name"]) for e in events if e["ph"] == "b"]
    assert sorted(begun) == sorted((e["id"], e["name"]) for e in events if e["ph"] == "e")
    assert (2, "resized: swap") in begun


def test_a_storm_of_targets_ends_at_the_last(start: Start) -> None:
    job = start(workers=1)
    job.wait_for("started")
    for index in range(60):
        job.ask("resize", workers=1 + index * 5 % 7, wait=False)
    assert job.ask("resize", workers=3)["change"]["to"] == 3
    before = descriptors(job)
    for index in range(60):
        job.ask("resize", workers=1 + index * 5 % 7, wait=False)
    job.ask("resize", workers=3)
    job.ask("status")
    assert descriptors(job) <= before + 4  # connections that are being closed


def descriptors(job: Running) -> int:
    wait_until(lambda: len(job.ask("status")["workers"]) == 3, "leavers are gone")
    return len(list(Path("/proc/self/fd").iterdir()))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_stray_line_on_the_control_socket_harms_nobody_else(start: Start) -> None:
    job = start()
    job.wait_for_step(5)
    for words in (b"hello\n", b"[]\n", b"\xff\n", b'{"no": "request"}\n'):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(socket_folder() / f"{job.job.name}.sock"))
            peer.sendall(words)
            peer.recv(1 << 16)  # an answer, or the end
    assert job.ask("status")["state"] == "RUNNING"


def test_two_runs_do_not_share_a_checkpoint_folder(start: Start) -> None:
    job = start()
    job.wait_for_step(5)
    with pytest.raises(TrainingError, match="is in use"):
        start(name="another").end()
    assert job.ask("status")["state"] == "RUNNING"


def test_a_worker_killed_after_its_loop_has_not_succeeded(start: Start) -> None:
    job = start({"steps": 20, "after": "kill"}, workers=2)
    assert job.end() == 128 + 9
    assert "after its last step" in job.told("error")[0]["because"]


def test_interrupted_training_is_saved_first(start: Start) -> None:
    job = start(checkpoint_every_s=1000.0)
    job.wait_for_step(30)
    job.interrupt()
    assert job.end() == 130
    assert start().wait_for("origin")["step"] >= 30


def test_an_earlier_save_that_ends_does_not_end_an_interrupted_job(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coddl.runtime.supervisor.interrupt.SAVE_WITHIN_S", 60.0)
    has_begun, may_end, save = threading.Event(), threading.Event(), CheckpointStore.save

    def slow_save(self: CheckpointStore, image: Path) -> SavedCheckpoint | None:
        has_begun.set()
        assert may_end.wait(60.0)
        return save(self, image)

    monkeypatch.setattr(CheckpointStore, "save", slow_save)
    job = start(checkpoint_every_s=0.1)
    assert has_begun.wait(60.0)
    job.wait_for_step(job.ask("status")["step"] + 2)
    (pid,) = job.pids()
    os.kill(pid, signal.SIGSTOP)  # so the last image comes after the end of the earlier save
    job.interrupt()
    wait_until(lambda: job._supervisor.capture_timer.is_awaited, "a last image")
    may_end.set()
    earlier = job.wait_for("checkpoint")["step"]
    os.kill(pid, signal.SIGCONT)
    assert job.end() == 130
    assert job.told("ended")[0]["saved_step"] > earlier
