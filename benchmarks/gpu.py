"""What resizing, suspending and resuming cost on a GPU, against that machine's copy bandwidth.

    python benchmarks/gpu.py --json

For ResNet-50 and for a transformer of 350 million parameters, with AdamW's state: command to first
step from a warm pool, and cold; 1→2→1 workers that share the GPU (their gradients go through gloo);
suspend, with the GPU memory that stays in use; resume. GB/s are state bytes by the time they took.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.elastic.job import HERE, RunningJob, machine, scratch
from benchmarks.resize import account, gaps, read, wait_for_steps

MODELS = ("resnet50", "transformer350m")
BANDWIDTH = """
import torch, json, time
host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
there = torch.empty_like(host, device="cuda")
def rate(to, source):
    best = 0.0
    for _ in range(5):
        torch.cuda.synchronize(); start = time.perf_counter()
        to.copy_(source, non_blocking=True); torch.cuda.synchronize()
        best = max(best, (1 << 30) / 1e9 / (time.perf_counter() - start))
    return best
print(json.dumps({"to_host": rate(host, there), "to_gpu": rate(there, host),
                  "gpu": torch.cuda.get_device_name()}))
"""


def bandwidth() -> dict[str, Any]:
    """Measure pinned copies, in GB/s, in a process that is gone afterwards."""
    run = subprocess.run(
        [sys.executable, "-c", BANDWIDTH], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def used_mib() -> int:
    """Tell how much GPU memory is in use, by anybody."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0])


def cold_s(kind: str) -> float:
    """Measure from the start of plain python to the first step."""
    with scratch() as folder:
        path = folder / "times"
        start_s = time.monotonic()
        process = subprocess.Popen([sys.executable, str(HERE / "big.py"), kind, str(path)])
        try:
            times = wait_for_steps(path, 1, lambda: None)
        finally:
            process.kill()
            process.wait()
        return times[0] - start_s


def first_after(path: Path, moment_s: float, job: RunningJob) -> float:
    """Wait for the first step complete after a moment; gives the seconds to it."""
    while not (later := [at_s for at_s in read(path).values() if at_s > moment_s]):
        job.check()
        time.sleep(0.02)
    return min(later) - moment_s


def measured(kind: str) -> dict[str, Any]:
    """Measure one model."""
    free_mib = used_mib()
    with (
        scratch() as folder,
        RunningJob("big.py", [kind, str(folder / "times")], 1, env=os.environ) as job,
    ):
        path = folder / "times"
        started = job.wait("starting")
        warm_s = first_after(path, started["heard_s"], job)
        wait_for_steps(path, 90, job.check)  # room for images is made and pinned meanwhile
        training_mib = used_mib()
        resizes = []
        for size in (2, 1):
            wait_for_steps(path, 60, job.check)
            command_s = time.monotonic()
            change = job.resize(size)
            wait_for_steps(path, 30, job.check)
            resizes.append(account(read(path), command_s, change))
        times = read(path)
        step_s = statistics.median(gaps(times, max(times) - 20, max(times)))
        suspend_s = time.monotonic()
        job.ask("suspend")
        suspended_s = time.monotonic() - suspend_s
        image = job.last("image")
        suspended_mib = used_mib()
        resume_s = time.monotonic()
        change = job.ask("resume")["change"]
        first_step_s = first_after(path, resume_s, job)
        wait_for_steps(path, 5, job.check)
        gigabytes = image["bytes"] / 1e9
        return {
            "state_gb": gigabytes,
            "step_s": step_s,
            "warm_first_step_s": warm_s,
            "cold_first_step_s": cold_s(kind) if kind == MODELS[0] else None,
            "resizes": resizes,
            "suspend_copy_s": image["seconds"],
            "suspend_gb_per_s": gigabytes / image["seconds"],
            "suspend_durable_s": suspended_s,
            "gpu_mib": {"before": free_mib, "training": training_mib, "suspended": suspended_mib},
            "resume_first_step_s": first_step_s,
            "resume_state_s": change["state_s"],
            "resume_gb_per_s": gigabytes / change["state_s"] if change["state_s"] else None,
        }


def main() -> None:
    """Measure and show."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--json", action="store_true", help="print one JSON object")
    options.add_argument("--model", choices=MODELS, action="append", help="only this one")
    asked = options.parse_args()
    result: dict[str, Any] = {"machine": machine(), "pinned_gb_per_s": bandwidth()}
    for kind in asked.model or MODELS:
        result[kind] = measured(kind)
        if not asked.json:
            print(kind, json.dumps(result[kind], indent=2))
    if asked.json:
        print(json.dumps(result))
    else:
        print(json.dumps(result["pinned_gb_per_s"]))


if __name__ == "__main__":
    main()
