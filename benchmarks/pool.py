"""How long a user waits for `submit` in a large pool that is alive.

    python benchmarks/pool.py --nodes 1000 --jobs 10000 --json

The real control loop over a journal on disk (SQLite, each commit synced); agents are stubs in this
process that do at once what they are told. When the pool is full, jobs are submitted one by one, as
a server does whose decisions take long: the submit is committed and answered, then a decision is
made in a thread and put into effect (`conclude_s`). Another submit comes at a random moment of
that: `submit_while_deciding_s`, from that moment until it is committed. Between decisions a job
ends now and then and its devices change hands. The references are a bare commit of one record to a
journal of the same kind, and, for the submits at random moments, the rest of a decision that is
made in the loop's own thread (`submit_behind_decision_s`).
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.elastic.job import machine
from coddl.core.pool import decision
from coddl.core.pool import records as r
from coddl.core.pool.failed_decision import FailedDecision
from coddl.core.pool.spec import JobSpec, Launch
from coddl.core.pool.state import Pool
from coddl.server.collector import keep_from_collector
from coddl.server.decision_thread import INTERPRETER_SWITCH_S, made
from coddl.server.folding import JournalEntry
from coddl.server.journal import Journal
from coddl.server.loop import ControlLoop, LoopRequest, fact
from coddl.server.store_sql import SqlStore, sqlite_url

BATCH = 500  # jobs that are handed in together while the pool is filled
STEPS = 100_000
ENDS_EVERY = 10  # submits


class Agents:
    """Every node's agent: says at once that it does what it was told."""

    def __init__(self) -> None:
        self.told: set[str] = set()

    def publish(self, _noted: Sequence[JournalEntry]) -> None:
        """Nobody watches."""

    def tell(self, nodes: frozenset[str]) -> None:
        """Remember whose orders are new."""
        self.told |= nodes

    def drop(self, reports: Sequence[r.RunReported]) -> None:
        """Fail: a report that the loop drops was not made by the run's lead."""
        assert not reports, reports

    def report_failed(self, failed: FailedDecision) -> None:
        """Fail."""
        raise failed.error

    def report_bug(self, error: Exception) -> None:
        """Fail."""
        raise error

    def restore(self) -> Sequence[r.Event]:
        """There is nothing that the journal does not know."""
        return ()

    def answer(self, pool: Pool) -> Iterable[r.Event]:
        """Give what the agents say to their newest orders."""
        for node in sorted(self.told):
            place = pool.nodes[node]
            orders = pool.orders(node)
            for lead in orders.leads:
                job, slots = pool.jobs[lead.job], tuple(seat.slot for seat in lead.seats)
                ours = (lead.job, lead.attempt)
                if lead.stop:
                    yield told(pool, r.RunEnded(*ours, "retired"))
                    continue
                if job.phase == "starting":
                    yield told(pool, r.RunPrepared(*ours, 16, STEPS))
                    yield told(pool, r.RunStepped(*ours, 1))
                if set(job.serves) != set(slots):
                    number = job.change + 1
                    changed = r.RunChanged(*ours, number, "resized", 1, slots, 1, 0.1, 0.5)
                    yield told(pool, changed)
                size = len(slots)
                yield told(pool, r.RunProgressed(*ours, job.step + 10, size, 1.0 / size, 10))
            holding = {slot: runs[0] for slot, runs in orders.seats.items()}
            yield r.NodeReported(node, place.boot, place.version, holding)
        self.told.clear()


def told(pool: Pool, fact: r.RunFact | r.RunProgressed) -> r.RunReported:
    """Give a fact as the word of the run's lead."""
    lead = pool.nodes[pool.jobs[fact.job].led_by or ""]
    return r.RunReported(lead.name, lead.boot, fact)


class DecisionTimes(NamedTuple):
    """How long a decision took that was made in a thread, and a submit meanwhile."""

    conclude_s: float  # from its begin until it was in effect
    submit_s: float


class Bench:
    """A pool and its agents, in virtual time."""

    def __init__(self, folder: Path) -> None:
        self.agents = Agents()
        self.store = SqlStore(sqlite_url(folder / "journal.db"))
        self.reference = SqlStore(sqlite_url(folder / "reference.db"))
        self.loop = ControlLoop(Journal(self.store), decision.POOL_STABILITY, self.agents)
        self.bare = Journal(self.reference)
        self.now_s = 1e9
        self.next = 1
        self.thread = ThreadPoolExecutor(1)

    def turn(self, asks: Sequence[LoopRequest], *, conclude: bool = True) -> float:
        """Make a turn; tell how long it took."""
        self.now_s += 1.0
        start_s = time.perf_counter()
        self.loop.turn(asks, self.now_s, conclude=conclude)
        return time.perf_counter() - start_s

    def decide_beside(self, submit_after_s: float) -> DecisionTimes:
        """Make a decision in a thread, as the server does, while a job is submitted."""
        start_s = time.perf_counter()
        due_s, done_s = start_s + submit_after_s, None
        self.now_s += 1.0
        pending = self.loop.pending_decision(self.now_s)
        assert pending is not None
        future = self.thread.submit(made, pending)
        wait([future], max(0.0, due_s - time.perf_counter()))
        if time.perf_counter() >= due_s:
            self.turn([self.submit()], conclude=False)
            done_s = time.perf_counter()
        wait([future])
        self.now_s += 1.0
        self.loop.turn([], self.now_s, made=future.result)
        end_s = time.perf_counter()
        if done_s is None:
            due_s = min(due_s, end_s)
            self.turn([self.submit()], conclude=False)
            done_s = time.perf_counter()
        return DecisionTimes(end_s - start_s, done_s - due_s)

    def settle(self) -> list[float]:
        """Let the agents do what they were told, until there is nothing new; time the turns."""
        taken_s = []
        for _ in range(20):
            events = list(self.agents.answer(self.loop.pool))
            if not events:
                break
            taken_s.append(self.turn([fact(event) for event in events]))
        return taken_s

    def submit(self) -> LoopRequest:
        """Hand in a job."""
        number = self.next
        self.next += 1
        spec = JobSpec(name=f"job-{number}", launch=Launch(argv=("train.py",)), gpus_max=8)
        return LoopRequest(lambda _pool: (r.JobSubmitted(number, spec),))

    def fill(self, nodes: int, devices: int, jobs: int) -> None:
        """Let agents join and jobs come."""
        kinds = tuple(r.Device(index, "gpu") for index in range(devices))
        joins = [r.NodeJoined(f"node-{n:05}", "1", "host", kinds) for n in range(nodes)]
        self.turn([fact(join) for join in joins])
        for start in range(0, jobs, BATCH):
            self.turn([self.submit() for _ in range(min(BATCH, jobs - start))])
            self.settle()

    def end_one(self) -> list[float]:
        """Let the oldest job that runs come to its end, and its devices go to others."""
        job = next(job for job in self.loop.pool.live_jobs() if job.phase == "running")
        ended = r.RunEnded(job.id, job.attempt, "succeeded", STEPS)
        return [self.turn([fact(told(self.loop.pool, ended))]), *self.settle()]

    def append_s(self) -> float:
        """Commit one record, and nothing else."""
        spec = JobSpec(name="job", launch=Launch(argv=("train.py",)), gpus_max=8)
        start_s = time.perf_counter()
        self.bare.append([r.JobSubmitted(self.bare.last_seq + 1, spec)], [], self.now_s)
        return time.perf_counter() - start_s

    def decide_s(self) -> float:
        """Make a decision without applying it; return its CPU time."""
        start_s = time.thread_time()
        decision.decide(self.loop.pool, decision.POOL_STABILITY, "a measurement", self.now_s)
        return time.thread_time() - start_s

    def close(self) -> None:
        """Let go of the journals."""
        self.thread.shutdown()
        self.store.close()
        self.reference.close()


def at(share: float, values: Sequence[float]) -> float:
    """Give a percentile."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def measure(nodes: int, devices: int, jobs: int, submits: int) -> dict[str, Any]:
    """Make the measurement."""
    with tempfile.TemporaryDirectory(prefix="coddl-bench-") as name:
        bench = Bench(Path(name))
        bench.fill(nodes, devices, jobs)
        keep_from_collector()
        submit_s, conclude_s, append_s, decide_s, other_s = [], [], [], [], []
        late_s, behind_s, beside_s = [], [], bench.turn([])
        chance = random.Random(1)
        for number in range(submits):
            submit_s.append(bench.turn([bench.submit()], conclude=False))
            moment = chance.random()
            times = bench.decide_beside(moment * beside_s)
            beside_s = times.conclude_s
            conclude_s.append(times.conclude_s)
            late_s.append(times.submit_s)
            behind_s.append((1.0 - moment) * bench.turn([]) + submit_s[-1])
            append_s.append(bench.append_s())
            decide_s.append(bench.decide_s())
            other_s += bench.settle()
            if number % ENDS_EVERY == 0:
                other_s += bench.end_one()
        records = bench.store.last_seq()
        active = len(bench.loop.pool.active)
        bench.close()
        size = (Path(name) / "journal.db").stat().st_size
    bare_s = statistics.median(append_s)
    return {
        "machine": machine(),
        "nodes": nodes,
        "devices": nodes * devices,
        "active_jobs": active,
        "submits": submits,
        "submit_s_p50": at(0.5, submit_s),
        "submit_s_p99": at(0.99, submit_s),
        "submit_while_deciding_s_p50": at(0.5, late_s),
        "submit_while_deciding_s_p99": at(0.99, late_s),
        "submit_behind_decision_s_p50": at(0.5, behind_s),
        "submit_behind_decision_s_p99": at(0.99, behind_s),
        "conclude_s_p50": at(0.5, conclude_s),
        "conclude_s_p99": at(0.99, conclude_s),
        "decide_core_s_p50": at(0.5, decide_s),
        "other_turn_s_p50": at(0.5, other_s) if other_s else 0.0,
        "other_turn_s_max": max(other_s, default=0.0),
        "bare_commit_s_p50": bare_s,
        "bare_commit_s_p99": at(0.99, append_s),
        "submit_over_bare_p50": at(0.5, submit_s) / bare_s,
        "conclude_over_bare_p50": at(0.5, conclude_s) / bare_s,
        "journal_records": records,
        "journal_bytes": size,
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--devices", type=int, default=8, help="of each node")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--submits", type=int, default=100)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    sys.setswitchinterval(INTERPRETER_SWITCH_S)
    found = measure(options.nodes, options.devices, options.jobs, options.submits)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print("\n".join(f"{key:22} {value}" for key, value in found.items()))


if __name__ == "__main__":
    main()
