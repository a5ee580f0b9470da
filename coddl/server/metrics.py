"""What Prometheus scrapes: gauges read from the pool, and counts of what was published."""

from collections import Counter as Tally
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coddl import __version__
from coddl.core.lifecycle import WAITING
from coddl.core.pool import records as r
from coddl.core.pool.nodes import NodeState
from coddl.core.pool.state import Pool
from coddl.server.folding import JournalEntry
from coddl.server.progress import LatestProgress

QUEUE: Final = "default"  # there is one
LONG_S: Final = (1, 3, 10, 30, 60, 180, 600, 1_800, 3_600, 10_800, 36_000, 86_400, 259_200)
SHORT_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)


class RetentionMetrics:
    """What is kept of what is over, and what was removed."""

    def __init__(self, to: CollectorRegistry) -> None:
        self.compaction_seconds = Histogram(
            "coddl_journal_compaction_seconds",
            "Duration of one pass that stores a snapshot and trims the journal, in its own thread",
            buckets=SHORT_S,
            registry=to,
        )
        self.removed = Counter(
            "coddl_retention_removed",
            "What was removed by age, number or size: jobs (from memory), events, files",
            ["what"],
            registry=to,
        )
        self._kept_files = Gauge(
            "coddl_retained_files", "Files that are kept of jobs", ["what"], registry=to
        )
        self._kept_bytes = Gauge(
            "coddl_retained_bytes",
            "Bytes of the files that are kept of jobs",
            ["what"],
            registry=to,
        )

    def note_kept(self, what: str, files: int, size_bytes: int) -> None:
        """Take note of how many files there are of a kind, and how large they are."""
        self._kept_files.labels(what).set(files)
        self._kept_bytes.labels(what).set(size_bytes)


class ServerMetrics:
    """Counters and histograms of the server; `PoolGauges` computes its values at each scrape."""

    def __init__(self) -> None:
        self.registry = to = CollectorRegistry()
        self.bugs = Counter(
            "coddl_internal_errors", "Internal errors (bugs) of the server", registry=to
        )
        self.dropped = Counter(
            "coddl_reports_dropped",
            "Reports about a run that did not come from its lead",
            registry=to,
        )
        self.policy_failures = Counter(
            "coddl_policy_failures",
            "Decisions that failed because of a plug-in: jobs kept their GPUs",
            ["policy"],
            registry=to,
        )
        self.turn_seconds = Histogram(
            "coddl_scheduling_cycle_seconds",
            "Duration of one turn of the control loop",
            buckets=SHORT_S,
            registry=to,
        )
        self.retention = RetentionMetrics(to)
        self._wait = Histogram(
            "coddl_job_wait_seconds",
            "Time from submission to the first start",
            buckets=LONG_S,
            registry=to,
        )
        self._completion = Histogram(
            "coddl_job_completion_seconds",
            "Time from submission to the end",
            buckets=LONG_S,
            registry=to,
        )
        self._restart = Histogram(
            "coddl_job_restart_seconds", "Pauses of training", buckets=SHORT_S, registry=to
        )
        self._resizes = Counter(
            "coddl_resizes", "Resizes of jobs", ["direction", "reason"], registry=to
        )
        self._preemptions = Counter(
            "coddl_preemptions",
            "Jobs that had to release their GPUs",
            ["reason", "queue"],
            registry=to,
        )
        self._decisions = Counter(
            "coddl_scheduler_decisions",
            "Changes of a job's number of GPUs",
            ["policy", "action"],
            registry=to,
        )

    def observe(self, entry: JournalEntry, pool: Pool) -> None:
        """Count something that has happened; the pool is as it was after all of its batch."""
        match entry.record:
            case r.Aimed(job, attempt, slots=slots):
                if slots and attempt == 1 and pool.jobs[job].first_start_s == entry.at_s:
                    self._wait.observe(entry.at_s - pool.jobs[job].submitted_s)
                if not slots:
                    reason = "user" if pool.jobs[job].suspended else "scheduler"
                    self._preemptions.labels(reason, QUEUE).inc()
            case r.RunChanged(kind=kind, gpus_before=before, slots=slots, pause_s=pause_s):
                now = len(slots)
                direction = "up" if now > before else "down" if now < before else "same"
                self._resizes.labels(direction, kind).inc()
                self._restart.observe(pause_s)
            case r.RunEnded(job) | r.JobCancelled(job) | r.StartOverdue(job) if pool.jobs[
                job
            ].is_over:
                self._completion.observe(entry.at_s - pool.jobs[job].submitted_s)
            case r.Decided() as decided if decided.targets:
                before_by_job = {row.job: row.gpus for row in decided.rows}
                for job, target in decided.targets.items():
                    action = _action(before_by_job.get(job, 0), len(target.slots))
                    self._decisions.labels(decided.policy, action).inc()
            case _:
                pass


def _action(before: int, after: int) -> str:
    if before == after:
        return "move"
    if before == 0 or after == 0:
        return "start" if before == 0 else "stop"
    return "grow" if after > before else "shrink"


class PoolGauges(Collector):
    """The pool as it is at a scrape."""

    def __init__(self, pool: Pool, progress: LatestProgress) -> None:
        self._pool, self._progress = pool, progress

    def collect(self) -> Iterator[Metric]:
        """Read the pool."""
        pool = self._pool
        states = Tally(job.phase.upper() for job in pool.jobs.values())
        states.update({phase.upper(): count for phase, count in pool.forgotten.items()})
        jobs = GaugeMetricFamily("coddl_jobs", "Jobs by state", labels=["queue", "state"])
        for state, count in sorted(states.items()):
            jobs.add_metric([QUEUE, state], count)
        yield jobs
        waiting = sum(job.phase in WAITING for job in pool.live_jobs())
        pending = GaugeMetricFamily("coddl_queue_pending_jobs", "Waiting jobs", labels=["queue"])
        pending.add_metric([QUEUE], waiting)
        yield pending
        kept = GaugeMetricFamily(
            "coddl_retained_jobs", "Jobs in memory, and in the history only", labels=["where"]
        )
        kept.add_metric(["memory"], len(pool.jobs))
        kept.add_metric(["history"], sum(pool.forgotten.values()))
        yield kept
        yield from self._running()
        yield from self._devices()
        build = GaugeMetricFamily("coddl_build_info", "The server's version", labels=["version"])
        build.add_metric([__version__], 1)
        yield build

    def _running(self) -> Iterator[Metric]:
        gpus = GaugeMetricFamily("coddl_job_gpus", "GPUs (slots) of a job", labels=["job", "name"])
        speed = GaugeMetricFamily(
            "coddl_job_throughput_samples_per_second", "Speed of a job", labels=["job", "name"]
        )
        for job in self._pool.live_jobs():
            if job.granted:
                labels = [str(job.id), job.spec.name]
                gpus.add_metric(labels, len(job.granted) / job.sharers)
                run = self._progress.of(job.id)
                if run is not None and run.progressed.attempt == job.attempt:
                    speed.add_metric(labels, run.samples_per_s)
        yield gpus
        yield speed

    def _devices(self) -> Iterator[Metric]:
        gpus = GaugeMetricFamily(
            "coddl_node_gpus", "GPUs (slots) of nodes, by state", labels=["node", "state"]
        )
        up = used = 0
        for node in self._pool.nodes.values():
            counts = self._by_condition(node)
            for state, count in counts.items():
                gpus.add_metric([node.name, state], count)
            up += len(node.slots) if node.is_up else 0
            used += counts["alloc"]
        yield gpus
        ratio = GaugeMetricFamily(
            "coddl_cluster_gpu_utilization_ratio", "Fraction of GPUs (slots) in use"
        )
        ratio.add_metric([], used / up if up else 0.0)
        yield ratio

    def _by_condition(self, node: NodeState) -> dict[str, int]:
        total = len(node.slots)
        used = sum(bool(self._pool.slots[slot].owners) for slot in node.slots)
        left = total - used
        drained = node.is_up and node.is_drained
        return {
            "free": left if node.is_up and not drained else 0,
            "alloc": used,
            "drain": left if drained else 0,
            "bad": 0 if node.is_up else left,
        }
