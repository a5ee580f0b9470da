"""Whether all memory of a GPU is accounted for while jobs come, go, take turns and die on it.

python -m benchmarks.gpu_memory --minutes 8 --json
python -m benchmarks.gpu_memory --minutes 0.2 --cpu         without a GPU: the load alone

Jobs of different sizes are submitted, suspended, resumed and cancelled at random, and their workers
are killed. Only one of them at a time has its tensors on the GPU. In between, what the GPU says is
used is compared with what is known: a CUDA context for each process, and what torch has reserved in
the process of the job that makes steps. In the end all must be free again, no two jobs may ever
have made a step at the same time, and the journal must give the slot to nobody while it has an
owner.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from benchmarks.elastic.job import machine, scratch
from benchmarks.elastic.noted_job import awaited
from benchmarks.elastic.shared_device import (
    SharedDevice,
    gpu_bytes,
    gpu_processes,
    shared_device,
    used_bytes,
)
from coddl.api.client import RequestRefused
from coddl.core.pool.state import Pool
from coddl.server.folding import KINDS

ACTIVE_MAX: Final = 6
SIZES_MB: Final = (200, 1000, 4000, 8000)
STEPS: Final = (200, 600, 1500)
OVER: Final = ("SUCCEEDED", "CANCELLED", "FAILED")
SLACK_BYTES: Final = 64 << 20


class Account(NamedTuple):
    """What a GPU's memory was used for at one moment."""

    used_bytes: int
    contexts: int
    tensors_bytes: int  # of the job that makes steps

    def unknown_bytes(self, empty_bytes: int, context_bytes: int) -> int:
        return self.used_bytes - empty_bytes - self.contexts * context_bytes - self.tensors_bytes


class Load:
    """What is done to the jobs of a pool, at random."""

    def __init__(self, device: SharedDevice, seed: int, largest_mb: int) -> None:
        self._device = device
        self._chance = random.Random(seed)
        self._sizes_mb = [each for each in SIZES_MB if each <= largest_mb] or [largest_mb]
        self.names: dict[int, str] = {}  # of all jobs so far
        self.done: Counter[str] = Counter()

    @property
    def states(self) -> dict[int, str]:
        items = self._device.client.get("/jobs")["items"]
        return {job["id"]: job["state"] for job in items if job["id"] in self.names}

    def act(self) -> None:
        """Do something, and wait a moment."""
        acts: list[Callable[[], str | None]] = [self.submit] * 4 + [self.kill_worker]
        asks = [self._asks("suspend"), self._asks("resume"), self._asks("resume")]
        if (what := self._chance.choice([*acts, *asks, self._asks("cancel")])()) is not None:
            self.done[what] += 1
        time.sleep(self._chance.uniform(0.3, 1.5))

    def submit(self) -> str | None:
        if sum(state not in OVER for state in self.states.values()) >= ACTIVE_MAX:
            return None
        name, size_mb = f"job{len(self.names)}", self._chance.choice(self._sizes_mb)
        job = self._device.submit(name, size_mb, steps=self._chance.choice(STEPS))
        self.names[job] = name
        return "submitted"

    def _asks(self, what: str) -> Callable[[], str | None]:
        def ask() -> str | None:
            wanted = {"resume": ("SUSPENDED",)}.get(what, ("RUNNING", "PREEMPTED", "PENDING"))
            jobs = [job for job, state in self.states.items() if state in wanted]
            if not jobs:
                return None
            try:
                self._device.client.post(f"/jobs/{self._chance.choice(jobs)}:{what}")
            except RequestRefused:  # it has ended meanwhile
                return f"{what} refused"
            return what

        return ask

    def kill_worker(self) -> str | None:
        running = [job for job, state in self.states.items() if state == "RUNNING"]
        steps = [noted[-1] for job in running if (noted := self._noted(job))]
        if not steps:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._chance.choice(steps).pid, signal.SIGKILL)
        return "worker killed"

    def end(self) -> None:
        """Cancel what has not come to its end."""
        self._device.end(*(job for job, state in self.states.items() if state not in OVER))
        self.done.update(self.states.values())

    def account(self) -> Account | None:
        """Take stock, unless the turn changes meanwhile or nobody has it."""
        before = self._at_work()
        used, contexts = used_bytes(), gpu_processes()
        time.sleep(0.1)
        after = self._at_work()
        if before is None or after is None or (before[0], before[2]) != (after[0], after[2]):
            return None
        is_same = gpu_processes() == contexts
        return Account(used, contexts, before[2]) if is_same else None

    def _at_work(self) -> tuple[int, float, int] | None:
        """Tell which job has made the last step, when, and with how much memory."""
        last = [(job, noted[-1]) for job in self.states if (noted := self._noted(job))]
        if not last:
            return None
        job, step = max(last, key=lambda each: each[1].end_s)
        is_recent = time.monotonic() - step.end_s < 0.2
        return (job, step.end_s, step.gpu_bytes) if is_recent else None

    def _noted(self, job: int) -> Sequence[Any]:
        return self._device.noted_steps(self.names[job])


def meetings(device: SharedDevice, names: Sequence[str]) -> int:
    """Count how often a job was in a step when another one was."""
    steps = sorted(
        (step.begin_s, step.end_s, name) for name in names for step in device.noted_steps(name)
    )
    count, latest, owner = 0, 0.0, ""
    for begin_s, end_s, name in steps:
        count += begin_s < latest and name != owner
        if end_s > latest:
            latest, owner = end_s, name
    return count


def check_journal(path: Path) -> int:
    """Fold a pool's records, which asserts that no slot has owners beyond them; count them."""
    pool = Pool()
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as journal:
        rows = journal.execute("SELECT at_s, kind, body FROM records ORDER BY seq").fetchall()
    for at_s, kind, body in rows:
        pool.apply(msgspec.json.decode(body, type=KINDS[kind]), at_s)
    return len(rows)


def context_of(device: SharedDevice, empty_bytes: int) -> int:
    """Suspend a job, so that nothing of it but its CUDA context is on the GPU; tell its size."""
    job = device.submit("first", 200)
    device.await_steps("first", 20)
    device.client.post(f"/jobs/{job}:suspend")
    awaited(lambda: device.state(job) == "SUSPENDED")
    found = used_bytes() - empty_bytes
    device.end(job)
    return found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Put a pool under load, and take stock again and again."""
    env = {"CODDL_GPU_MEMORY": "0"}
    empty = 0 if options.cpu else used_bytes()
    accounts: list[Account] = []
    with scratch() as folder:
        with shared_device(folder, "gandiva:quantum_s=2", cpu=options.cpu, env=env) as device:
            context = 0 if options.cpu else context_of(device, empty)
            load = Load(device, options.seed, options.largest_mb)
            end_s = time.monotonic() + options.minutes * 60.0
            while time.monotonic() < end_s:
                load.act()
                if not options.cpu and (account := load.account()) is not None:
                    accounts.append(account)
                tell(load, [each.unknown_bytes(empty, context) for each in accounts])
            load.end()
            met = meetings(device, list(load.names.values()))
        if not options.cpu:
            awaited(lambda: used_bytes() - empty < SLACK_BYTES)
        records = check_journal(folder / "state" / "journal.db")
    most = max((each.unknown_bytes(empty, context) for each in accounts), key=abs, default=0)
    return {
        "machine": machine(),
        "done": dict(load.done),
        "records": records,
        "steps_of_two_jobs_at_once": met,
        "accounts": len(accounts),
        "context_mib": context / 2**20,
        "used_most_mib": max((each.used_bytes for each in accounts), default=0) / 2**20,
        "unknown_most_mib": most / 2**20,
        "unknown_most_of_gpu": 0.0 if options.cpu else abs(most) / gpu_bytes(),
        "left_mib": 0.0 if options.cpu else (used_bytes() - empty) / 2**20,
    }


def tell(load: Load, unknown_bytes: Sequence[int]) -> None:
    """Say how far it is: who breaks it off knows what was found until then."""
    most = max(unknown_bytes, key=abs, default=0)
    found = f"{len(unknown_bytes)} times taken stock, at most {most / 2**20:.0f} MiB unknown"
    print(f"{dict(load.done)}; {found}", file=sys.stderr, flush=True)


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--cpu", action="store_true", help="on a CPU slot")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--largest-mb", type=int, default=8000, help="of a job's state")
    return parser.parse_args(words)


def main() -> None:
    """Measure, and print."""
    options = parsed()
    found = measure(options)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    done = ", ".join(f"{what} {count}" for what, count in sorted(found["done"].items()))
    print(f"{done}; {found['records']} records")
    print(f"steps of two jobs at the same time: {found['steps_of_two_jobs_at_once']}")
    print(
        f"{found['accounts']} times taken stock: at most {found['unknown_most_mib']:.0f} MiB "
        f"unknown, {found['unknown_most_of_gpu']:.2%} of the GPU"
    )
    print(f"left in the end: {found['left_mib']:.0f} MiB")


if __name__ == "__main__":
    main()
