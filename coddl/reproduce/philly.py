"""Philly: locality against waiting, quotas that are lent, jobs that fail (Jeon et al., ATC '19)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Self

import numpy as np

from coddl.core.cluster import Cluster, Node
from coddl.core.columns import FloatColumn, IntColumn
from coddl.core.placement.placement import Placement
from coddl.core.plan import Plan
from coddl.core.registry import placement_from, policy_from
from coddl.core.scheduler import Scheduler
from coddl.core.snapshot import Snapshot
from coddl.reproduce.experiment import Details, Experiment, Figure, Finding, Inputs, Plot
from coddl.sim.beliefs import Beliefs
from coddl.sim.failures import PhillyFailures
from coddl.sim.loop import SimulatedCluster, StepLoop
from coddl.sim.quotas import quotas_from
from coddl.sim.run import Run
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, run_cases
from coddl.sim.study import ci95
from coddl.sim.world import FINISH_S, LOGGED, Reconfigure, world_of
from coddl.traces.files import read_trace
from coddl.traces.generators import poisson
from coddl.traces.models import speeds_on
from coddl.traces.trace import Trace

DATA: Final = "philly"
SOURCE: Final = "Philly (ATC '19)"
NODE_GPUS, RACK_NODES = 8, 16
GPUS, JOBS, MANY = 1024, 2000, 20_000
LENGTHS: Final = (2000, 3000)  # jobs of the trace that locality is tried on
FAIR, FRAGMENTED, OTHER = range(3)  # why a job waits
CAUSES: Final = {"QueueQuota": FAIR, "Topology": FRAGMENTED}
# How much locality is asked for: the strategy of that name.
STRICT, RELAXED, NONE = "for ever", "relaxed", "not at all"
LOCALITY: Final[Mapping[str, str]] = {
    STRICT: "philly:timeout_s=1000000000,backoff_s=0",
    RELAXED: "philly",
    NONE: "consolidate",
}


def servers(gpus: int) -> Cluster:
    """A cluster with `gpus` GPUs: eight per server, sixteen servers per InfiniBand domain."""
    return Cluster(
        tuple(
            Node(f"node-{at}", NODE_GPUS, rack=at // RACK_NODES) for at in range(gpus // NODE_GPUS)
        )
    )


def jobs_of(inputs: Inputs, jobs: int) -> Trace:
    """The first `jobs` jobs, of all virtual clusters from each one's first day on."""
    trace = read_trace(inputs.folder(DATA) / "jobs.csv.gz", None)
    return trace.rows(np.arange(trace.size) < jobs)


@dataclass(eq=False)
class WaitLog:
    """What was seen of the jobs that waited and of the servers, from decision to decision."""

    waited_s: FloatColumn  # [cause, job]
    now_s: float = 0.0
    jobs: IntColumn = field(default_factory=lambda: np.zeros(0, np.int64))
    causes: IntColumn = field(default_factory=lambda: np.zeros(0, np.int64))
    in_use: float = 0.0
    empty: float = 0.0
    history: list[tuple[float, float, float]] = field(default_factory=list)

    def note(self, plan: Plan) -> None:
        """Add what has been the case since the last decision, and take down what is from now on."""
        snapshot = plan.snapshot
        since_s, self.now_s = snapshot.now_s - self.now_s, snapshot.now_s
        self.waited_s[self.causes, self.jobs] += since_s
        self.history.append((since_s, self.in_use, self.empty))
        cause = np.full(snapshot.jobs.size, OTHER)
        for covers, why in reversed(plan.allocation.waiting.layers):
            cause[covers] = CAUSES.get(why.code, OTHER)
        waits = plan.shares == 0
        self.jobs, self.causes = snapshot.jobs.id[waits], cause[waits]
        assert plan.placed is not None
        columns = snapshot.cluster.columns
        used = plan.placed.slots.in_use(columns)
        self.in_use = float(used.sum()) / snapshot.cluster.gpus_total
        self.empty = float((used == 0).mean())


@dataclass(frozen=True)
class RecordingScheduler(Scheduler):
    """A scheduler that is watched."""

    seen: WaitLog = field(default_factory=lambda: WaitLog(np.zeros((3, 0))))

    def decide(self, snapshot: Snapshot) -> Plan:
        """Decide as it would."""
        plan = Scheduler.decide(self, snapshot)
        self.seen.note(plan)
        return plan


class RecordedRun(NamedTuple):
    """How a run went for each job."""

    trace: Trace
    seen: WaitLog
    jct_s: FloatColumn
    slowdown: FloatColumn  # of a step, by where the job was


def watch(trace: Trace, gpus: int, placement: Placement, quotas: str) -> RecordedRun:
    """Run a trace under Philly's queues with a placement, and see which jobs wait for what."""
    cluster = servers(gpus)
    speeds = speeds_on(trace.speeds, cluster)
    trace = replace(trace.fitted_to(gpus, "skip"), speeds=speeds)
    world = world_of(trace, gpus, Reconfigure(), seed=0)
    site = SimulatedCluster(cluster, speeds, Beliefs(speeds), quotas_from(quotas, trace, gpus))
    seen = WaitLog(np.zeros((3, trace.size)))
    steps = StepLoop(
        world, site, RecordingScheduler(policy_from("philly"), placement=placement, seen=seen)
    )
    while steps.run(1000):
        world.counts[LOGGED] = 0
    jct_s = world.floats[FINISH_S] - trace.submitted_s
    return RecordedRun(trace, seen, jct_s, world.jobs.executed_s / trace.length_s)


MOST: Final = 10**6  # GPUs of a job
SIZES: Final = {"1": (1, 1), "2-4": (2, 4), "5-8": (5, 8), "more than 8": (9, MOST)}


class LocalityResult(NamedTuple):
    """What jobs of some sizes pay under a strategy: waits by cause, speed, completion."""

    fair_min: float
    fragmented_min: float
    other_min: float
    slowdown: float
    jct_h: float

    @classmethod
    def of(cls, one: RecordedRun, least: int, most: int) -> Self:
        """The means over jobs that ask for `least` to `most` GPUs."""
        sizes = one.trace.gpus_requested
        some = (sizes >= least) & (sizes <= most)
        fair, fragmented, other = (one.seen.waited_s[:, some].mean(axis=1) / 60.0).tolist()
        jct_h = float(one.jct_s[some].mean()) / 3600.0
        return cls(fair, fragmented, other, float(one.slowdown[some].mean()), jct_h)


def _trade_in_words(large: Mapping[tuple[int, str], LocalityResult], best: Sequence[str]) -> str:
    """Say whether relaxed lies between the extremes, and whether one strategy is best."""
    between = True
    for jobs in LENGTHS:
        strict, relaxed, none = (large[jobs, name] for name in (STRICT, RELAXED, NONE))
        between &= none.fragmented_min <= relaxed.fragmented_min <= strict.fragmented_min
        between &= strict.slowdown <= relaxed.slowdown <= none.slowdown
    lie = "lie" if between else "do not always lie"
    flips = "changes with the length of the trace" if len(set(best)) > 1 else "is the same for both"
    return (
        "Relaxing locality trades speed for an early start: its waits for close GPUs and its step "
        f"times {lie} between those of the extremes. Which strategy completes large jobs soonest "
        f"{flips}; two runs are no proof."
    )


def locality(inputs: Inputs) -> Finding:
    """Wait for close GPUs for ever, for a while, or not at all, on two lengths of the trace."""
    found = {
        (jobs, name): watch(jobs_of(inputs, jobs), GPUS, placement_from(spec), "demand")
        for jobs in LENGTHS
        for name, spec in LOCALITY.items()
    }
    large = {key: LocalityResult.of(one, 5, MOST) for key, one in found.items()}
    figures = [
        Figure(
            f"first {jobs:,} jobs, locality {name}: waits, step time, JCT",
            "",
            f"{each.fair_min:,.0f} + {each.fragmented_min:,.0f} min, {each.slowdown:.2f}x, "
            f"{each.jct_h:.1f} h",
        )
        for (jobs, name), each in large.items()
    ]
    best = [min(LOCALITY, key=lambda name: large[jobs, name].jct_h) for jobs in LENGTHS]
    figures.append(
        Figure(
            f"lowest JCT, first {' / '.join(f'{jobs:,}' for jobs in LENGTHS)} jobs: locality",
            "",
            " / ".join(best),
        )
    )
    by_size = {
        (*key, label): LocalityResult.of(one, *span)
        for key, one in found.items()
        for label, span in SIZES.items()
    }
    bars = {
        name: [by_size[LENGTHS[-1], name, label].fragmented_min for label in SIZES]
        for name in LOCALITY
    }
    rows = [
        (f"{jobs:,}", name, label, *(f"{wait_min:,.0f}" for wait_min in each[:3]),
         f"{each.slowdown:.2f}x", f"{each.jct_h:.1f}")
        for (jobs, name, label), each in by_size.items()
    ]  # fmt: skip
    head = ("jobs", "locality", "GPUs", "fair share, min", "fragmentation, min", "other, min",
            "step", "JCT, h")  # fmt: skip
    return Finding(
        tuple(figures),
        Plot(
            f"Waiting for GPUs that are close together, first {LENGTHS[-1]:,} jobs",
            "GPUs requested",
            "minutes a job waits for them",
            bars=bars,
            categories=tuple(SIZES),
        ),
        (
            "Figures are of jobs of more than 4 GPUs, which wait for their queue's share and for "
            "GPUs that are close together.",
            _trade_in_words(large, best),
            "What a job waits for is the reason in the last decision before: QueueQuota, or "
            "Topology. The trade is published, but not in numbers.",
        ),
        Details(head, rows),
    )


def empty_servers(inputs: Inputs) -> Finding:
    """Count servers without a job where two thirds of the GPUs are in use."""
    names = ("philly", "consolidate", "spread")
    parts: dict[str, float] = {}
    errors: dict[str, float] = {}
    for name in names:
        empty, weight, by_seed = 0.0, 0.0, []
        for seed in range(inputs.seeds):
            trace = poisson(jobs=2000, gpus=256, load=0.8, seed=seed)
            history = np.array(watch(trace, 256, placement_from(name), "none").seen.history)
            since_s, _, none = history[np.abs(history[:, 1] - 2 / 3) < 0.05].T
            empty, weight = empty + float(since_s @ none), weight + float(since_s.sum())
            by_seed.append(100.0 * float(since_s @ none) / float(since_s.sum()))
        parts[name], errors[name] = 100.0 * empty / weight, ci95(by_seed)
    return Finding(
        tuple(
            Figure(
                f"servers without a job at 62-72 % of GPUs in use, {name}",
                "less than 4.5 %" if name == "philly" else "",
                f"{parts[name]:.1f} ± {errors[name]:.1f} %",
            )
            for name in names
        ),
        Plot(
            "Servers without a job at two thirds of the GPUs in use",
            "placement",
            "% of servers",
            bars={"empty": [parts[name] for name in names]},
            categories=names,
            errors={"empty": [errors[name] for name in names]},
        ),
        (
            "`philly` puts a job on the fewest servers, and takes the emptiest of those that do: a "
            "small job starts on a server of its own while there is one. `consolidate` fills up "
            "servers instead, and keeps whole ones free for large jobs.",
        ),
    )


class SharingResult(NamedTuple):
    """How a way to share GPUs among queues went."""

    wait_h: float
    p99_wait_h: float
    preemptions: int


def sharing_result_of(runs: list[Run]) -> SharingResult:
    """The same from the runs of one cluster, or of its parts."""
    wait_h = np.concatenate([run.jct_s - run.executed_s for run in runs]) / 3600.0
    stops = sum(run.reallocations for run in runs) // 2  # a stop and a resumption
    return SharingResult(float(wait_h.mean()), float(np.percentile(wait_h, 99)), stops)


def quotas(inputs: Inputs) -> Finding:
    """Walls between queues, quotas that are lent, or one queue for all."""
    trace = jobs_of(inputs, JOBS)
    quota = quotas_from("demand", trace, GPUS)
    trace = trace.rows(trace.gpus_requested <= quota[trace.queue])  # else it fits no queue's part
    policy = policy_from("philly")
    walls = [
        Case(RunKey("philly", int(quota[at])), policy, trace.of_queue(name))
        for at, name in enumerate(trace.queues)
        if (trace.queue == at).any()
    ]
    one = Case(RunKey("philly", GPUS), policy, trace)
    runs = run_cases([*walls, replace(one, quota_gpus=quota), one])
    found = {
        "a cluster for each queue": sharing_result_of(runs[:-2]),
        "quotas, lent and taken back": sharing_result_of(runs[-2:-1]),
        "one queue for all": sharing_result_of(runs[-1:]),
    }
    return Finding(
        tuple(
            Figure(
                f"{name}: hours a job waits (99th percentile), jobs that were stopped",
                "",
                f"{one.wait_h:.2f} ({one.p99_wait_h:.1f}), {one.preemptions:,}",
            )
            for name, one in found.items()
        ),
        Plot(
            "Queues that lend idle GPUs",
            "GPUs are",
            "hours a job waits",
            bars={"mean": [one.wait_h for one in found.values()]},
            categories=tuple(found),
        ),
        (
            "Idle GPUs are lent, and taken back for a claim when nine tenths are busy. The rule is "
            "published, but not what it gains.",
        ),
    )


AS_PUBLISHED, CLASSIFIED, PRERUN = "as published", "no retry of errors", "pre-run on one GPU"
MODELS: Final = {
    AS_PUBLISHED: PhillyFailures(),
    "no retry": PhillyFailures(retries=0),
    CLASSIFIED: PhillyFailures(classify=True),
    PRERUN: PhillyFailures(prerun=True),
}


FAILURES_HEAD: Final = (
    "model", "passed", "killed", "unsuccessful", "GPU-time: passed", "killed", "unsuccessful",
    "GPU-h lost", "GPU-h in all",
)  # fmt: skip


def failures(inputs: Inputs) -> Finding:
    """Let jobs fail and be killed as often as published, and count what that takes."""
    trace = jobs_of(inputs, MANY).fitted_to(GPUS, "skip")
    case = Case(RunKey("fifo", GPUS), policy_from("fifo:backfill=true"), trace)
    plain, *runs = run_cases([case, *(replace(case, failures=model) for model in MODELS.values())])
    rows, lost = [], {}
    for name, run in zip(MODELS, runs, strict=True):
        jobs, gpu_time = _parts(run)
        metrics = run.metrics()
        lost[name] = metrics.lost_gpu_hours
        line = (*(f"{part:.1%}" for part in (*jobs, *gpu_time)), f"{lost[name]:,.0f}")
        rows.append((name, *line, f"{metrics.gpu_hours:,.0f}"))
    jobs, gpu_time = _parts(runs[0])
    shares = "{:.1%} / {:.1%} / {:.1%}"
    saved = (f"{1.0 - lost[name] / lost[AS_PUBLISHED]:.1%}" for name in (CLASSIFIED, PRERUN))
    return Finding(
        (
            Figure(
                "jobs passed / killed / unsuccessful: put into the model",
                "69.3 / 13.5 / 17.2 %",
                shares.format(*jobs),
            ),
            Figure(
                "GPU-time of these: put into the model, too",
                "44.5 / 37.7 / 17.8 %",
                shares.format(*gpu_time),
            ),
            Figure("GPU-time of jobs that do not pass", "about 55 %", f"{1.0 - gpu_time[0]:.1%}"),
            Figure(
                "of the GPU-hours that failures lose: no retry of errors / a pre-run saves",
                "",
                " / ".join(saved),
            ),
        ),
        Plot(
            "What failures cost",
            "",
            "GPU-hours lost",
            bars={"lost": list(lost.values())},
            categories=tuple(MODELS),
        ),
        (
            "The model is fitted to how many jobs are killed and unsuccessful, and to the GPU-time "
            "that they take: that these agree is no result. What it costs to retry, and what it "
            "saves not to retry what would strike again, is one.",
            f"Without failures the same jobs take {plain.metrics().gpu_hours:,.0f} GPU-hours: the "
            "difference is what killed and unsuccessful jobs no longer run.",
        ),
        Details(FAILURES_HEAD, rows),
    )


def _parts(run: Run) -> tuple[FloatColumn, FloatColumn]:
    """Passed, killed and failed: as parts of all jobs, and of their GPU-time."""
    assert run.losses is not None
    ways = np.array((run.succeeded, run.losses.killed, run.losses.failed), float)
    return ways.mean(axis=1), ways @ run.attained_gpu_s / run.attained_gpu_s.sum()


EXPERIMENTS: Final = (
    Experiment(
        "philly-locality",
        "Waiting for GPUs on few nodes, or starting at once on any",
        SOURCE,
        "The first 2,000 and 3,000 jobs of twelve virtual clusters, which all begin at once, on "
        "1,024 GPUs (8 a server, 16 servers a rack) instead of months on the whole cluster; quotas "
        "in proportion to demand; what a place costs is estimated from the models' sizes.",
        locality,
        needs=DATA,
    ),
    Experiment(
        "philly-quotas",
        "Queues that lend idle GPUs",
        SOURCE,
        "The first 2,000 of the same jobs, those of them that fit their queue's quota, and no "
        "placement; the source states the rule and no number.",
        quotas,
        needs=DATA,
    ),
    Experiment(
        "philly-failures",
        "GPU time of failed and killed jobs",
        SOURCE,
        "Our form of the trace does not say how jobs ended: ends are drawn, from a model that is "
        "fitted to the published parts of jobs and of GPU-time. That half of the errors are quick "
        "(median 2 min, log-normal), more of these in larger jobs (a quarter of the odds more for "
        "each doubling), hardware that fails every 5,000 GPU-hours and checkpoints every half "
        "hour are assumed. The first 20,000 jobs on 1,024 GPUs, in order of submission, without "
        "placement.",
        failures,
        needs=DATA,
    ),
    Experiment(
        "philly-fragmentation",
        "Few servers are empty when two thirds of the GPUs are in use",
        SOURCE,
        "Poisson arrivals of jobs of 1 to 8 GPUs on 32 servers of 8 at load 0.8, because our form "
        "of the trace does not say where jobs ran; published is what was seen in production, where "
        "jobs are larger and servers have 2, 4 or 8 GPUs. What we have of the source says that a "
        "job picks the rack with most suitable servers, not which servers of it: the emptiest is "
        "our reading.",
        empty_servers,
    ),
)
