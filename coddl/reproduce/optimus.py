"""Optimus, as in *Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters*,
EuroSys '18.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

import numpy as np

from coddl.core.allocation import Allocation, because
from coddl.core.cluster import Cluster, Node
from coddl.core.columns import FloatColumn, IntMatrix
from coddl.core.jobs import JobTable
from coddl.core.parameter_server.costs import (
    SERVER_CPUS,
    WORKER_CPUS,
    Mode,
    ServedSpeeds,
    costs_of_curve,
    served,
    servers_of,
)
from coddl.core.parameter_server.placement import OptimusPlacement
from coddl.core.parameter_server.tasks import ServedAllocation, ServedPlaced
from coddl.core.placement.placement import Placed, Placement
from coddl.core.registry import policy_from
from coddl.core.scheduler import Scheduler
from coddl.core.slots import Slots
from coddl.core.snapshot import Snapshot, empty_memory
from coddl.core.speed.table import Speeds
from coddl.reproduce.experiment import Experiment, Figure, Finding, Inputs, Plot
from coddl.sim.beliefs import Beliefs
from coddl.sim.prediction_error import PredictionError, beliefs_of
from coddl.sim.run import Metrics, Run
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, run_case
from coddl.sim.study import ci95
from coddl.sim.world import Reconfigure
from coddl.traces.files import packaged_speeds
from coddl.traces.philly import AFS_MODELS
from coddl.traces.trace import Trace, trace_of

SOURCE: Final = "Peng et al., EuroSys '18 (Optimus)"
HOUR_S: Final = 3600.0
NODES, SLOTS, CPUS = 13, 8, 16  # of the testbed; a GPU stands for room for a worker
MOST: Final = 16  # workers and servers of a job
PAUSE_S: Final = 20.0  # to save, stop and start a job at other sizes
ARRIVAL_S: Final = 12_000.0  # jobs of the testbed come within
SPAN_S: Final = 7 * HOUR_S
WORKER, SERVER = (1, WORKER_CPUS), (0, SERVER_CPUS)  # GPUs and cores of a task
SYSTEMS: Final = {"Optimus": "optimus-ps", "DRF": "drf", "Tetris": "tetris"}


def speeds_with_servers(mode: Mode = "sync") -> ServedSpeeds:
    """The nine packaged models with parameter servers."""
    measured = packaged_speeds(*AFS_MODELS)
    curves = [
        measured.step_s[row, 1 : most + 1] for row, most in enumerate(measured.gpus_max.tolist())
    ]
    model = servers_of([costs_of_curve(curve.tolist(), mode) for curve in curves], MOST)
    return served(measured.names, model)


def cluster_of(nodes: int, gpus: int) -> Cluster:
    """Servers alike, with 16 cores each."""
    return Cluster(tuple(Node(f"node-{i}", gpus, cpus=CPUS) for i in range(nodes)))


def jobs_of(
    speeds: Speeds, submitted_s: FloatColumn, hours: tuple[float, float], seed: int
) -> Trace:
    """Jobs of all models in turn, so long (uniform) on 4 workers and 4 servers."""
    rng, size = np.random.default_rng((seed, 1)), len(submitted_s)
    curve = rng.permutation(np.arange(size) % len(speeds.names))
    length_s = rng.uniform(*hours, size) * HOUR_S
    most = np.full(size, MOST)
    return trace_of(
        "optimus",
        speeds,
        submitted_s=np.sort(submitted_s),
        curve=curve,
        iterations=length_s / speeds.step_s[curve, 4],
        gpus_requested=most,
        gpus_max=most,
    )


def nine_jobs(seed: int, mode: Mode = "sync") -> Trace:
    """The testbed's jobs: nine, of all nine models, that come within 12,000 s."""
    submitted_s = np.random.default_rng(seed).uniform(0.0, ARRIVAL_S, 9)
    return jobs_of(speeds_with_servers(mode), submitted_s, (1.0, 3.0), seed)


@dataclass(frozen=True)
class OneByOne:
    """Puts task by task on the node with most, or with least, free cores that has room for it.

    The first is what Kubernetes does by default, the second packs as Tetris does. A job that
    keeps its share keeps its GPUs. Nodes are one island each, and tasks take what they do in the
    policies.
    """

    packs: bool = False

    def __call__(self, snapshot: Snapshot, allocation: Allocation) -> Placed:
        columns, slots, jobs = snapshot.cluster.columns, snapshot.slots, snapshot.jobs
        assert slots is not None
        assert isinstance(allocation, ServedAllocation)
        free, servers = np.stack((columns.node_gpus, columns.node_cpus)), allocation.servers
        stays = (slots.totals == allocation.gpus) & (slots.totals > 0)
        held = [slots.row(row) if stays[row] else {} for row in range(jobs.size)]
        served: list[dict[int, int]] = [{} for _ in held]
        for at in held:
            for node, gpus in at.items():
                free[:, node] -= gpus * np.array(WORKER)
        refused = np.zeros(jobs.size, np.bool_)
        for row in np.lexsort((jobs.id, ~stays)).tolist():
            before, shares = free.copy(), (allocation.gpus[row], servers[row])
            self._deal(free, (held[row], served[row]), shares)
            if shares[0] > 0 and not (held[row] and served[row]):
                free[:], refused[row] = before, True
                held[row], served[row] = {}, {}
        why = because(refused, "Topology", "no node has room for its tasks")
        return ServedPlaced(Slots.of(held), why, servers=Slots.of(served))

    def _deal(
        self,
        free: IntMatrix,
        at: tuple[dict[int, int], dict[int, int]],
        shares: tuple[int, int],
    ) -> None:
        """Place what is missing of workers and servers, in turn, as far as there is room."""
        missing = [share - sum(part.values()) for share, part in zip(shares, at, strict=True)]
        while any(missing):
            for kind, takes in enumerate((WORKER, SERVER)):
                if missing[kind] == 0:
                    continue
                fits = (free >= np.array(takes)[:, None]).all(axis=0)
                if not fits.any():
                    return
                order = np.where(fits, free[1], np.inf if self.packs else -1)
                node = int(np.argmin(order) if self.packs else np.argmax(order))
                free[:, node] -= takes
                at[kind][node] = at[kind].get(node, 0) + 1
                missing[kind] -= 1


@dataclass(frozen=True, eq=False)
class Trial:
    """A run to be made on the testbed."""

    trace: Trace
    policy: str = "optimus-ps"
    placement: Placement = field(default_factory=OptimusPlacement)
    pause_s: float = PAUSE_S
    gpus: int = SLOTS  # of a server
    beliefs: Beliefs | None = None  # None: the truth

    def run(self) -> Run:
        """Make it."""
        case = Case(
            RunKey(self.policy, NODES * self.gpus),
            policy_from(self.policy),
            self.trace,
            reconfigure=Reconfigure("stall", 0.0, self.pause_s),
            cluster=cluster_of(NODES, self.gpus),
            placement=self.placement,
            beliefs=self.beliefs,
        )
        return run_case(case)


# How each system places tasks: by its theorem, by load, by packing.
PLACED: Final[Mapping[str, Placement]] = {
    "Optimus": OptimusPlacement(),
    "DRF": OneByOne(),
    "Tetris": OneByOne(packs=True),
}


def mean(values: Sequence[float] | FloatColumn) -> float:
    """The average over seeds."""
    return float(np.mean(values))


class SystemResult(NamedTuple):
    """What a system made of several workloads, in hours."""

    jct_h: float
    makespan_h: float
    jct_error_h: float  # half the width of the 95 % interval
    makespan_error_h: float

    @classmethod
    def of(cls, found: Sequence[Metrics]) -> Self:
        """The means over these runs."""
        jct_s, makespan_s = [m.avg_jct_s for m in found], [m.makespan_s for m in found]
        columns_s = (mean(jct_s), mean(makespan_s), ci95(jct_s), ci95(makespan_s))
        return cls(*(seconds / HOUR_S for seconds in columns_s))


def compared(traces: Sequence[Trace]) -> dict[str, SystemResult]:
    """What each system makes of these workloads."""
    out = {}
    for name, policy in SYSTEMS.items():
        trials = [Trial(trace, policy, PLACED[name]) for trace in traces]
        out[name] = SystemResult.of([trial.run().metrics() for trial in trials])
    return out


def ratios(of: Mapping[str, SystemResult], name: str) -> tuple[float, float]:
    """How many times Optimus' JCT and makespan a system's are."""
    return of[name].jct_h / of["Optimus"].jct_h, of[name].makespan_h / of["Optimus"].makespan_h


def _gains(workloads: Mapping[str, Sequence[Trace]], title: str, notes: tuple[str, ...]) -> Finding:
    """What Optimus gains over the others on several workloads."""
    of = {name: compared(traces) for name, traces in workloads.items()}
    figures = tuple(
        Figure(f"{what}, DRF over Optimus, {name}", "", f"{ratios(of[name], 'DRF')[at]:.2f}")
        for at, what in enumerate(("average JCT", "makespan"))
        for name in workloads
    )
    bars = {system: [of[name][system].jct_h for name in workloads] for system in SYSTEMS}
    errors = {system: [of[name][system].jct_error_h for name in workloads] for system in SYSTEMS}
    plot = Plot(
        title, "", "average JCT, hours", bars=bars, categories=list(workloads), errors=errors
    )
    return Finding(figures, plot, notes)


def modes(inputs: Inputs) -> Finding:
    """Synchronous and asynchronous training."""
    seeds = range(inputs.seeds)
    workloads = {
        "synchronous": [nine_jobs(seed) for seed in seeds],
        "asynchronous": [nine_jobs(seed, "async") for seed in seeds],
    }
    notes = ("Published: gains with synchronous training are higher.",)
    return _gains(workloads, "Synchronous and asynchronous training", notes)


def bursts(rng: np.random.Generator, jobs: int) -> FloatColumn:
    """Arrivals that come in bursts, as in a cluster's log: a few busy spells, little between."""
    spells_s = rng.uniform(0.0, SPAN_S, 6)
    at_s = rng.choice(spells_s, jobs) + rng.exponential(300.0, jobs)
    return np.minimum(at_s, SPAN_S)


def arrivals(inputs: Inputs) -> Finding:
    """Poisson arrivals and bursts, each for seven hours."""
    workloads: dict[str, list[Trace]] = {"Poisson": [], "bursts": []}
    for seed in range(inputs.seeds):
        rng, speeds = np.random.default_rng((seed, 2)), speeds_with_servers()
        for name, at_s in (("Poisson", rng.uniform(0.0, SPAN_S, 36)), ("bursts", bursts(rng, 36))):
            workloads[name].append(jobs_of(speeds, at_s, (0.25, 1.0), seed))
    notes = ("Published: Optimus is ahead with both.",)
    return _gains(workloads, "How jobs arrive", notes)


ERRORS: Final = (0.0, 0.1, 0.2, 0.3, 0.45)


def sensitivity(inputs: Inputs) -> Finding:
    """Errors of the predicted length and speed."""
    lines: dict[str, list[tuple[float, float]]] = {}
    errors: dict[str, list[float]] = {}
    for name in ("convergence", "speed"):
        field_of = "length" if name == "convergence" else "speed"
        jct_s: dict[float, FloatColumn] = {}
        for error in ERRORS:
            wrong = PredictionError(**{field_of: error})
            traces = [nine_jobs(seed) for seed in range(3 * inputs.seeds)]
            runs = [
                Trial(trace, beliefs=beliefs_of(trace, wrong, seed)).run()
                for seed, trace in enumerate(traces)
            ]
            jct_s[error] = np.array([run.metrics().avg_jct_s for run in runs])
        truth_s = mean(jct_s[0.0])
        lines[name] = [(error * 100.0, mean(each) / truth_s) for error, each in jct_s.items()]
        errors[name] = [ci95(each / jct_s[0.0]) for each in jct_s.values()]
    figures = tuple(
        Figure(
            f"average JCT with {name} off by up to 30 %, over that without error",
            "",
            f"{dict(points)[30.0]:.3f}",
        )
        for name, points in lines.items()
    )
    notes = ("Published: errors of speed hurt more than those of convergence.",)
    plot = Plot("Prediction error", "error, %", "average JCT, relative", lines, errors=errors)
    return Finding(figures, plot, notes)


def ablation(inputs: Inputs) -> Finding:
    """Each half of Optimus replaced by that of another system."""
    parts: dict[str, tuple[str, Placement]] = {
        "Optimus": ("optimus-ps", OptimusPlacement()),
        "allocation of DRF": ("drf", OptimusPlacement()),
        "allocation of Tetris": ("tetris", OptimusPlacement()),
        "placement by load": ("optimus-ps", OneByOne()),
        "placement by packing": ("optimus-ps", OneByOne(packs=True)),
    }
    of = {}
    for name, (policy, placement) in parts.items():
        runs = [Trial(nine_jobs(seed), policy, placement).run() for seed in range(inputs.seeds)]
        of[name] = SystemResult.of([run.metrics() for run in runs])
    figures = tuple(
        Figure(f"average JCT with {name}, over Optimus'", "", f"{ratios(of, name)[0]:.2f}")
        for name in of
        if name != "Optimus"
    )
    notes = ("Published: allocation contributes more than placement.",)
    plot = Plot(
        "Where the gain comes from",
        "",
        "hours",
        bars={"average JCT": [each.jct_h for each in of.values()]},
        categories=list(of),
        errors={"average JCT": [each.jct_error_h for each in of.values()]},
    )
    return Finding(figures, plot, notes)


def overhead(inputs: Inputs) -> Finding:
    """What adjusting costs, for several pauses."""
    seeds = range(inputs.seeds)
    still, added = "time that jobs stand still", "added to the makespan"
    makespan_s: dict[float, FloatColumn] = {}
    lines: dict[str, list[tuple[float, float]]] = {still: [], added: []}
    errors: dict[str, list[float]] = {still: [], added: []}
    for pause_s in (0.0, 5.0, 10.0, 20.0, 40.0):
        runs = [Trial(nine_jobs(seed), pause_s=pause_s).run() for seed in seeds]
        makespan_s[pause_s] = np.array([run.metrics().makespan_s for run in runs])
        parts = [paused_part(run, pause_s) * 100.0 for run in runs]
        longer = mean(makespan_s[pause_s]) / mean(makespan_s[0.0]) - 1.0
        lines[still].append((pause_s, mean(parts)))
        lines[added].append((pause_s, longer * 100.0))
        errors[still].append(ci95(parts))
        errors[added].append(ci95(makespan_s[pause_s] / makespan_s[0.0] * 100.0))
    paused, longer = (dict(lines[name])[PAUSE_S] for name in (still, added))
    figures = (
        Figure("part of the time that jobs stand still", "2.54 %", f"{paused:.2f} %"),
        Figure("what pauses add to the makespan", "2.54 %", f"{longer:.2f} %"),
    )
    notes = (
        "Published: 2.54 % of the makespan. Whether that is time in which jobs stand still, as the "
        "published code counts it, or what they lose in the end, is not stated; both are here. "
        "They scale with the pause, which is our guess: where one agrees, it is chance.",
    )
    plot = Plot("What adjusting costs", "pause, s", "%", lines, errors=errors)
    return Finding(figures, plot, notes)


def paused_part(run: Run, pause_s: float) -> float:
    """Which part of their time with GPUs the jobs stood still; a start is a pause, too."""
    changes = run.reallocations + run.migrations + run.trace.size
    return changes * pause_s / float(run.executed_s.sum())


def large_snapshot(jobs: int, nodes: int) -> Snapshot:
    """Jobs of all models, none of them started, on `nodes` nodes."""
    speeds, rng = speeds_with_servers(), np.random.default_rng(0)
    table = JobTable.of(
        jobs,
        curve=rng.integers(len(speeds.names), size=jobs),
        remaining_iterations=rng.uniform(1e3, 1e6, jobs),
        gpus_requested=MOST,
        gpus_max=MOST,
    )
    nothing = Slots.none(jobs)
    return Snapshot(0.0, cluster_of(nodes, SLOTS), table, speeds, empty_memory(jobs), slots=nothing)


def scale(_inputs: Inputs) -> Finding:
    """How long one decision takes, with placement."""
    scheduler = Scheduler(policy_from("optimus-ps"), placement=OptimusPlacement())
    scheduler.decide(large_snapshot(10, 40))  # compile
    points, tasks = [], 0
    for jobs in (500, 1000, 2000, 4000):
        snapshot = large_snapshot(jobs, 4 * jobs)
        snapshot.speeds.steps, snapshot.cluster.columns, snapshot.cluster.gpus_total  # noqa: B018
        started_s = time.perf_counter()
        plan = scheduler.decide(snapshot)
        points.append((float(jobs), time.perf_counter() - started_s))
        assert isinstance(plan.placed, ServedPlaced)
        tasks = int(plan.shares.sum() + plan.placed.servers.totals.sum())
    figures = (
        Figure("seconds to schedule 4,000 jobs on 16,000 nodes", "5", f"{points[-1][1]:.2f}"),
        Figure("tasks that were placed", "about 100,000", f"{tasks:,}"),
    )
    lines = {"shares and places": points}
    return Finding(figures, Plot("One decision", "jobs (nodes: four times)", "s", lines=lines))


SETUP: Final = (
    "The testbed had 7 CPU and 6 GPU servers; ours are 13 alike with 16 cores. As there, cores are "
    "what runs out: a worker takes 2 of them, a server 3, as in the published code, and one of 8 "
    "GPUs stands for room for a worker. The jobs are of the AFS paper's nine models; their step "
    "times with p servers and w workers follow f(p, w), fitted to measured curves as if p = w. How "
    "much of a step is transfer is not known: half of what does not shrink with workers. Each asks "
    "for up to 16 workers; DRF and Tetris give as many servers as workers and place by load and by "
    "packing. Slots are of 10 minutes, and every change pauses a job for 20 s."
)
NINE: Final = (
    f"{SETUP} Lengths are ours, 1 to 3 hours on 4 workers and 4 servers, and jobs come within "
    "12,000 s."
)


def _experiment(
    name: str, title: str, differs: str, run: Callable[[Inputs], Finding]
) -> Experiment:
    return Experiment(f"optimus-{name}", title, SOURCE, differs, run)


EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    _experiment(
        "modes",
        "Gains with synchronous training are higher than with asynchronous",
        "No numbers are given in the talk. " + NINE + " Asynchronous workers compute a whole batch "
        "each, and predictions are as good as for synchronous ones, which they were not.",
        modes,
    ),
    _experiment(
        "arrivals",
        "Gains hold whether jobs come evenly or in bursts",
        "The log that was used, seven hours of a Google cluster, is not at hand: bursts are made, "
        "six spells of arrivals five minutes long on average. There are 36 jobs, of 15 to 60 "
        "minutes on 4 workers and 4 servers, over seven hours. " + SETUP,
        arrivals,
    ),
    _experiment(
        "errors",
        "Errors of speed hurt more than errors of convergence",
        "Errors are uniform up to the one given, one for a job's length and one for its speed with "
        "each number of workers. " + NINE,
        sensitivity,
    ),
    _experiment("parts", "Allocation contributes more than placement", NINE, ablation),
    _experiment(
        "overhead",
        "What adjusting resources costs",
        "The pause of a change is not known; 20 s is a guess. " + NINE,
        overhead,
    ),
    _experiment(
        "scale",
        "Thousands of jobs on thousands of nodes in one decision",
        "Nodes have 16 cores and room for 8 workers; jobs are of nine models, and all wait. The "
        "time is that of one decision on this machine.",
        scale,
    ),
)
