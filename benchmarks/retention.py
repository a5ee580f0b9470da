"""Whether a pool that has run a million jobs is as quick as a new one.

    python -m benchmarks.retention --json

Two state folders are made: with as many ended jobs as `--jobs`, and with a thousand. The newest
jobs of both are real: they go through the control loop with stub agents, train, end, and move to
the history by passes of the compactor. The older ones are rows of the history, copied from those
under other numbers. A server process is then started on each folder and asked over REST, the two in
turns, while it makes its own passes beside. A third folder has a journal of `--events` records,
none of them trimmed, written by the control plane; its server was killed 2,000 records after its
last snapshot, and is started again. Last, a pass over a pool of `--active` waiting jobs runs in a
thread, while the main thread wakes up each millisecond, as a control loop does, and notes how late
it is; the reference is how long the whole pool takes to be encoded at once.
"""

import argparse
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

from benchmarks.elastic.job import machine
from benchmarks.pool import Bench, at, told
from coddl.core.pool import records as r
from coddl.core.pool.control import ControlPlane
from coddl.core.pool.decision import POOL_STABILITY
from coddl.core.pool.spec import JobSpec, Launch
from coddl.core.pool.state import Pool
from coddl.server.collector import undisturbed
from coddl.server.compaction import Compactor
from coddl.server.journal import SNAPSHOT_EVERY, Journal
from coddl.server.loop import LoopRequest
from coddl.server.store import HistoryQuery, JournalStore
from coddl.server.store_sql import SqlStore, sqlite_url
from coddl.server.upkeep import REST_S

REFERENCE: Final = 1_000  # ended jobs of the pool that is compared with, all of them in memory
NODES, DEVICES = 8, 8
REAL: Final = 1_500  # jobs that train and end
COPIES: Final = 2_000  # rows that are written together
CHANGES: Final = 34  # events of a job of the long journal, beside its first and its last
TOGETHER: Final = 25  # of these jobs are in a commit
TICK_S: Final = 0.001
WITHIN_S: Final = 300.0
KEPT_S: Final = 1e12  # all events


# What is served.


def aged_pool(folder: Path, jobs: int) -> None:
    """Make a state folder of a pool that has had a number of jobs, all ended."""
    folder.mkdir()
    real = min(jobs, REAL)
    bench = Bench(folder)
    bench.next = 1 + jobs - real
    bench.fill(NODES, DEVICES, 0)
    for start in range(0, real, NODES * DEVICES):
        bench.turn([bench.submit() for _ in range(min(NODES * DEVICES, real - start))])
        while bench.loop.pool.active:
            bench.settle()
            running = [job for job in bench.loop.pool.live_jobs() if job.has_run]
            bench.turn([ended(bench, job.id, job.attempt) for job in running])
        bench.settle()
    compact(bench.store, lambda jobs: bench.turn([forgetting(jobs)]), bench.now_s)
    bench.close()
    if jobs > real:
        copy_rows(folder / "journal.db", jobs - real)


def ended(bench: Bench, job: int, attempt: int) -> LoopRequest:
    """Give the word of a job's lead that it has succeeded."""
    fact = told(bench.loop.pool, r.RunEnded(job, attempt, "succeeded", 100_000))
    return LoopRequest(lambda _pool: (fact,))


def forgetting(jobs: Sequence[int]) -> LoopRequest:
    """Have a control loop forget jobs."""
    return LoopRequest(lambda _pool: (r.JobsForgotten(tuple(jobs)),))


def compact(store: JournalStore, forget: Callable[[Sequence[int]], object], now_s: float) -> None:
    """Make a pass, as the server's thread does."""

    def forgotten(jobs: Sequence[int]) -> None:
        forget(jobs)

    Compactor(store, forgotten, keep_jobs=REFERENCE, keep_events_s=KEPT_S).run(now_s)


def copy_rows(path: Path, count: int) -> None:
    """Fill the history with rows of the numbers up to one, copied from those that are there."""
    store = SqlStore(sqlite_url(path))
    rows = store.history(HistoryQuery(), REAL)
    for start in range(1, count + 1, COPIES):
        numbers = range(start, min(start + COPIES, count + 1))
        store.save_history([rows[n % len(rows)]._replace(job=n) for n in numbers])
    store.close()


def long_journal(folder: Path, events: int) -> None:
    """Make a state folder whose journal has a number of records, and a snapshot before the last."""
    folder.mkdir()
    store = SqlStore(sqlite_url(folder / "journal.db"))
    journal, control = Journal(store), ControlPlane(Pool(), POOL_STABILITY)
    now_s, per_job = 1e9, CHANGES + 2
    passes = {events // 4, events // 2, events - SNAPSHOT_EVERY}

    def forget(jobs: Sequence[int]) -> None:
        control.take(r.JobsForgotten(tuple(jobs)), now_s)
        journal.append(control.note().records, [], now_s)

    job = 0
    while journal.last_seq < events:
        job, now_s = job + 1, now_s + 60.0
        control.take(r.JobSubmitted(job, bench_spec(job)), now_s)
        for change in range(per_job - 2):
            control.take(r.JobPrioritised(job, change + 1, "ann"), now_s)
        control.take(r.JobCancelled(job, "ann"), now_s)
        if job % TOGETHER == 0:
            journal.append(control.note().records, [], now_s)
        for due in [each for each in passes if each <= journal.last_seq]:
            passes.remove(due)
            compact(store, forget, now_s)
    store.close()


def bench_spec(job: int) -> JobSpec:
    """Give a job's spec."""
    return JobSpec(name=f"job-{job}", launch=Launch(argv=("train.py",)), gpus_max=8)


# Servers.


@dataclass
class Served:
    """A server process on a state folder."""

    process: subprocess.Popen[bytes]
    client: httpx.Client
    ready_s: float  # from the start of the process to the first answer of /readyz with 200

    def rss_bytes(self) -> int:
        """Give how much memory it has."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def timed(self, method: str, path: str, body: object = None) -> tuple[float, Any]:
        """Make a request; give how long it took, and its answer."""
        start_s = time.perf_counter()
        answer = self.client.request(method, f"/api/v1{path}", json=body)
        taken_s = time.perf_counter() - start_s
        answer.raise_for_status()
        return taken_s, answer.json()

    def passes(self) -> float:
        """Give how many passes of the compactor there were."""
        lines = self.client.get("/metrics").text.splitlines()
        name = "coddl_journal_compaction_seconds_count"
        return next(float(line.split()[1]) for line in lines if line.startswith(name))


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    """Serve a state folder."""
    words = ["-m", "coddl.cli.main", "server", "--state-dir", str(folder), "--port", "0"]
    start_s = time.perf_counter()
    with (folder / "server.log").open("wb") as output:
        process = subprocess.Popen([sys.executable, *words], stdout=output, stderr=output)
    try:
        about = folder / "server.json"
        while not about.exists():
            wait_on(process, start_s, folder)
        token = (folder / "token").read_text().strip()
        url = json.loads(about.read_text())["url"]
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=url, headers=headers, timeout=60.0) as client:
            while not is_ready(client):
                wait_on(process, start_s, folder)
            yield Served(process, client, time.perf_counter() - start_s)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def is_ready(client: httpx.Client) -> bool:
    """Tell whether a server decides."""
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def wait_on(process: "subprocess.Popen[bytes]", start_s: float, folder: Path) -> None:
    """Wait a moment; raise if it has ended, or takes too long."""
    if process.poll() is not None or time.perf_counter() - start_s > WITHIN_S:
        raise RuntimeError((folder / "server.log").read_text())
    time.sleep(0.02)


# Measurements.


class Measured:
    """What one of the two servers has taken."""

    def __init__(self, server: Served) -> None:
        self.server = server
        self.submit_s: list[float] = []
        self.list_s: list[float] = []
        self.health_s: list[float] = []

    def round(self) -> None:
        """Submit a job, list jobs, and cancel it."""
        body = {"script": "train.py", "gpus": 1}
        taken_s, job = self.server.timed("POST", "/jobs", body)
        self.submit_s.append(taken_s)
        self.list_s.append(self.server.timed("GET", "/jobs")[0])
        start_s = time.perf_counter()
        self.server.client.get("/healthz")
        self.health_s.append(time.perf_counter() - start_s)
        self.server.timed("POST", f"/jobs/{job['id']}:cancel")

    def data(self) -> dict[str, float]:
        """Give it by name."""
        return {
            "rss_mb": self.server.rss_bytes() / 1e6,
            "submit_s_p50": at(0.5, self.submit_s),
            "submit_s_p99": at(0.99, self.submit_s),
            "list_s_p50": at(0.5, self.list_s),
            "list_s_p99": at(0.99, self.list_s),
            "answer_s_p50": at(0.5, self.health_s),
            "answer_s_max": max(self.health_s),
            "ready_s": self.server.ready_s,
            "passes": self.server.passes(),
        }


def compared(folder: Path, jobs: int, submits: int) -> dict[str, Any]:
    """Compare a pool that has had many jobs with one that has had a thousand."""
    start_s = time.perf_counter()
    aged_pool(folder / "aged", jobs)
    aged_pool(folder / "young", REFERENCE)
    made_s = time.perf_counter() - start_s
    with served(folder / "aged") as aged, served(folder / "young") as young:
        both = Measured(aged), Measured(young)
        for _ in range(submits):
            for each in both:
                each.round()
        old, new = (each.data() for each in both)
    size = sum(each.stat().st_size for each in (folder / "aged").glob("journal.db*"))
    names = ("rss_mb", "submit_s_p50", "submit_s_p99", "list_s_p50", "list_s_p99", "answer_s_max")
    return {
        "ended_jobs": jobs,
        "ended_jobs_of_reference": REFERENCE,
        "made_s": made_s,
        "journal_bytes": size,
        "aged": old,
        "reference": new,
        "ratio": {name: old[name] / new[name] for name in names},
    }


def restarted(folder: Path, events: int) -> dict[str, Any]:
    """Serve a long journal again."""
    long_journal(folder / "long", events)
    path = folder / "long" / "journal.db"
    start_s = time.perf_counter()
    store = SqlStore(sqlite_url(path))
    folded = Journal(store).fold()
    fold_s = time.perf_counter() - start_s
    store.close()
    with sqlite3.connect(path) as raw:
        (snapshot,) = raw.execute("SELECT max(seq) FROM snapshots").fetchone()
    raw.close()
    with served(folder / "long") as server:
        ready_s = server.ready_s
    return {
        "events": folded.seq,
        "events_after_snapshot": folded.seq - snapshot,
        "fold_s": fold_s,
        "ready_s": ready_s,
    }


def paused(folder: Path, active: int) -> dict[str, Any]:
    """Tell how late a thread is while another makes a pass over a pool of active jobs."""
    folder.mkdir()
    store = SqlStore(sqlite_url(folder / "journal.db"))
    journal, control = Journal(store), ControlPlane(Pool(), POOL_STABILITY)
    for job in range(1, active + 1):
        control.take(r.JobSubmitted(job, bench_spec(job)), 1e9)
    journal.append(control.note().records, [], 1e9)
    compactor = Compactor(
        store,
        lambda _jobs: None,
        lambda: time.sleep(REST_S),
        keep_jobs=REFERENCE,
        keep_events_s=KEPT_S,
    )
    late_s: list[float] = []

    def make_pass() -> None:
        with undisturbed():
            compactor.run(1e9)

    thread = threading.Thread(target=make_pass)
    start_s = time.perf_counter()
    thread.start()
    while thread.is_alive():
        woken_s = time.perf_counter() + TICK_S
        time.sleep(TICK_S)
        late_s.append(time.perf_counter() - woken_s)
    pass_s = time.perf_counter() - start_s
    store.close()
    start_s = time.perf_counter()
    zlib.compress(msgspec.json.encode(control.pool), 1)
    return {
        "active_jobs": active,
        "pass_s": pass_s,
        "loop_late_s_p50": at(0.5, late_s),
        "loop_late_s_p99": at(0.99, late_s),
        "loop_late_s_max": max(late_s),
        "encoded_at_once_s": time.perf_counter() - start_s,
    }


def measure(jobs: int, events: int, submits: int, active: int) -> dict[str, Any]:
    """Make all measurements."""
    folder = Path(tempfile.mkdtemp(prefix="coddl-bench-"))
    try:
        found = {"machine": machine(), "pool": compared(folder, jobs, submits)}
        found["restart"] = restarted(folder, events)
        return {**found, "pass": paused(folder / "active", active)}
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1_000_000, help="that have ended")
    parser.add_argument("--events", type=int, default=1_000_000, help="of the long journal")
    parser.add_argument("--submits", type=int, default=1_000, help="to each of the two pools")
    parser.add_argument("--active", type=int, default=10_000, help="jobs, for the pause of a pass")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    found = measure(options.jobs, options.events, options.submits, options.active)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"ratio to a pool of {REFERENCE:,} ended jobs: {found['pool']['ratio']}")
    print(f"restart: {found['restart']}")
    print(f"pass: {found['pass']}")


if __name__ == "__main__":
    main()
