"""A study: policies x clusters x loads x seeds on one workload, and its results as a table."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast, get_args

import numpy as np

from coddl.core.cluster import Cluster
from coddl.core.columns import FloatColumn
from coddl.core.errors import UserError
from coddl.core.node_count import IDLE_S, START_S, NodeBounds, node_range
from coddl.core.parameter_server.costs import Mode, ServedSpeeds, with_servers
from coddl.core.placement.placement import Placement
from coddl.core.policies.policy import Policy
from coddl.core.registry import placement_from
from coddl.core.scheduler import Stability
from coddl.plugins import placement_named, policy_named
from coddl.sim.beliefs import Beliefs
from coddl.sim.failures import failures_from
from coddl.sim.known_speeds import KnownSpeeds, beliefs_with
from coddl.sim.prediction_error import beliefs_of, error_from
from coddl.sim.profiled import ProfiledModels, with_profiled_places, with_profiles
from coddl.sim.quotas import quotas_from
from coddl.sim.run import Run
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, Watch, run_cases
from coddl.sim.world import Reconfigure
from coddl.traces.clusters import GPUS_MOST, NODES_MOST, cluster_from
from coddl.traces.files import (
    packaged_speeds,
    read_speeds,
    read_trace,
    small_trace,
    speeds_beside,
)
from coddl.traces.generators import GENERATORS
from coddl.traces.models import speeds_on
from coddl.traces.trace import Oversize, Trace

DEFAULT_POLICIES = (
    "afs-l",
    "afs-p",
    "srtf",
    "srsf",
    "tiresias-l",
    "optimus",
    "max-min",
    "fifo",
)
# Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom; the last serves for more.
T95: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160),
    *(2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056),
)

GPUS_PER_NODE: Final = 8  # of nodes that come and go

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """Nodes that come and go: how many, each with how many GPUs, and how fast."""

    ranges: Sequence[str] = ()  # MIN..MAX, or a fixed number; empty: all GPUs are always there
    gpus: int = GPUS_PER_NODE
    start_s: float = START_S
    idle_s: float = IDLE_S

    def __post_init__(self) -> None:
        bad = not 1 <= self.gpus <= GPUS_MOST
        _refuse(bad, "gpus_per_node", self.gpus, f"it is not within 1..{GPUS_MOST}", "8")
        for name in ("start_s", "idle_s"):
            value, seconds = getattr(self, name), "it is not a number of seconds"
            _refuse(not 0 <= value < 1e12, f"node_{name}", value, seconds, "60")
        about = (self.gpus, self.start_s, self.idle_s)
        if not self.ranges and about != (GPUS_PER_NODE, START_S, IDLE_S):
            raise UserError(
                "nodes that come and go cannot be simulated",
                "what they are like is given, but not how many there may be",
                "--nodes 2..32",
            )
        for most in (node_range(each)[1] for each in self.ranges):
            too_many = f"there may be {NODES_MOST:,} at most"
            _refuse(most > NODES_MOST, "nodes", most, too_many, "2..32")

    @property
    def bounds(self) -> list[NodeBounds]:
        """The bounds of each range."""
        return [
            NodeBounds(*node_range(each), self.gpus, self.start_s, self.idle_s)
            for each in dict.fromkeys(self.ranges)
        ]


class StudyCluster(NamedTuple):
    """What a study runs on."""

    name: str  # empty: nodes do not matter
    gpus: int
    cluster: Cluster | None = None  # None: it does not matter where GPUs are
    nodes: NodeBounds | None = None  # None: all nodes are there all the time


@dataclass(frozen=True)
class StudySpec:
    """What a study compares.

    A workload is a file, a Trace, or the name of a generator, which makes a new one per seed.
    """

    workload: str | Path | Trace | None = None  # None: the small trace in the package
    policies: Sequence[str | Policy] = DEFAULT_POLICIES
    gpus: Sequence[int] = ()  # empty: 64, or 512 for poster
    clusters: Sequence[str | Cluster] = ()  # instead of `gpus`: placement matters
    nodes: NodeSpec = field(default_factory=NodeSpec)  # instead of `gpus` and `clusters`
    placements: Sequence[str | Placement] = ()  # on a cluster or nodes; empty: consolidate
    loads: Sequence[float] = (1.0,)
    seeds: int = 1
    first: int | None = None  # only the first jobs
    queue: str | None = None  # None: all on one cluster; "all": a cluster per queue
    speeds: str | Path | None = None
    profiled: ProfiledModels = field(default_factory=ProfiledModels)  # next to those of `speeds`
    servers: Mode | None = None  # mode of parameter servers; None: without
    oversize: Oversize = "error"
    reconfigure: Reconfigure = field(default_factory=Reconfigure)
    stability: Stability = field(default_factory=Stability)
    quotas: str = "none"  # GPUs guaranteed to each queue
    error: str = ""  # of predicted lengths and speeds; empty: none
    known_speeds: KnownSpeeds = "true"  # what the scheduler knows; jobs run at the true speeds
    failures: str = "none"
    prerun: bool = False  # a job has its minimum until it has made its first step
    keep_events: bool = False

    def __post_init__(self) -> None:
        _refuse(not self.policies, "policies", self.policies, "no policy is given", "afs-l")
        for gpus in self.gpus:
            given: object = gpus  # a notebook may pass anything
            whole = isinstance(given, int | np.integer) and 0 < given < 2**31
            _refuse(not whole, "gpus", gpus, "it is not a whole number above 0", "64")
        for load in self.loads:
            _refuse(not 1e-6 <= load <= 1e6, "load", load, "it is not within 1e-6..1e6", "1")
        for gpus in self.gpus if self.clusters else ():
            _refuse(True, "gpus", gpus, "the cluster determines the number of GPUs", "or a cluster")
        if self.nodes.ranges:
            own = "nodes are given, and they determine the number of GPUs"
            alone = "alone, or --nodes with --gpus-per-node"
            _refuse(bool(self.gpus), "gpus", [*self.gpus, 0][0], own, alone)
            _refuse(bool(self.clusters), "cluster", _name([*self.clusters, ""][0]), own, alone)
        for each in self.placements if not self.has_nodes else ():
            nodes = "no cluster is given, so there are no nodes to choose from"
            _refuse(True, "placement", _name(each), nodes, "with --cluster 16x4, for example")
        if isinstance(self.workload, Trace):
            own = "the trace has its own speeds"
            _refuse(self.speeds is not None, "speeds", self.speeds, own, "in read_trace instead")
            twice = self.servers is not None and isinstance(self.workload.speeds, ServedSpeeds)
            _refuse(twice, "servers", self.servers, own, "None")
        odd = self.servers not in (None, *get_args(Mode))
        _refuse(odd, "servers", self.servers, "there is no such mode", "sync or async")
        self._check_known_speeds()
        self._check_profiles()
        none = self.first is not None and self.first < 1
        _refuse(none, "first", self.first, "a study needs at least one job", "1000")
        _refuse(not self.loads, "load", self.loads, "no load is given", "1")
        _refuse(self.seeds < 1, "seeds", self.seeds, "a study needs at least one seed", "1")
        for name in ("cool_down_s", "min_runtime_s", "reserve_s"):
            value = getattr(self.stability, name)
            _refuse(not 0 <= value < 1e12, name, value, "it is not a number of seconds", "30")
        known = self.oversize in get_args(Oversize)
        _refuse(not known, "oversize", self.oversize, "there is no such choice", "skip")

    def _check_known_speeds(self) -> None:
        """Refuse what no scheduler is simulated to know."""
        name, known = "known_speeds", self.known_speeds
        odd = known not in get_args(KnownSpeeds)
        _refuse(odd, name, known, "there is no such choice", " or ".join(get_args(KnownSpeeds)))
        if known == "true":
            return
        is_served = isinstance(self.workload, Trace) and isinstance(
            self.workload.speeds, ServedSpeeds
        )
        served = "of trainings with parameter servers only the truth is simulated"
        _refuse(self.servers is not None or is_served, name, known, served, "true")
        learns = known in ("adjusted", "visited") and bool(self.nodes.ranges)
        counted = "how many nodes there should be does not follow what is learned"
        _refuse(learns, name, known, counted, "estimated, or a fixed --cluster")
        twice = bool(self.error) and error_from(self.error).speed > 0.0
        _refuse(twice, name, known, "speeds have random errors already", "true, or no error speed")

    def _check_profiles(self) -> None:
        """Refuse profiles where speeds come from elsewhere."""
        for name in self.profiled.profiles:
            served = "a profile tells nothing of parameter servers"
            _refuse(self.servers is not None, "profile", name, served, "without servers")
            own = isinstance(self.workload, Trace)
            _refuse(own, "profile", name, "the trace has its own speeds", "with a trace file")

    @property
    def node_gpus(self) -> int:
        """GPUs of the nodes that profiles are replayed on: the largest of the cluster."""
        clusters = [each.cluster for each in self.targets if each.cluster is not None]
        sizes = sorted({max(node.gpus for node in each.nodes) for each in clusters})
        several = "their largest nodes differ, and a profile is replayed on one size of nodes"
        bad, names = len(sizes) > 1, " and ".join(each.name for each in self.targets)
        _refuse(bad, "clusters", names, several, "in two studies")
        return sizes[0] if sizes else GPUS_PER_NODE

    @property
    def has_nodes(self) -> bool:
        """Return whether it matters which GPUs a job has."""
        return bool(self.clusters or self.nodes.ranges)

    @property
    def targets(self) -> list[StudyCluster]:
        """The clusters to run on."""
        if self.nodes.ranges:
            return [_target_of(bounds) for bounds in self.nodes.bounds]
        given = _labelled(_each_once(self.clusters))
        built = {name: cluster_from(c) if isinstance(c, str) else c for name, c in given.items()}
        if built:
            return [
                StudyCluster(name, cluster.gpus_total, cluster) for name, cluster in built.items()
            ]
        default = 512 if self.workload == "poster" else 64
        sizes = list(dict.fromkeys(int(gpus) for gpus in self.gpus)) or [default]
        return [StudyCluster("", gpus) for gpus in sizes]


def _target_of(bounds: NodeBounds) -> StudyCluster:
    """Nodes that come and go, called like a cluster: 2..32x8."""
    least, most, gpus = bounds.least, bounds.most, bounds.gpus
    name = f"{most}x{gpus}" if least == most else f"{least}..{most}x{gpus}"
    return StudyCluster(name, most * gpus, Cluster.of(most * gpus, gpus), bounds)


def _refuse(bad: bool, name: str, value: object, because: str, try_: str) -> None:
    if bad:
        raise UserError(f"{name} {value} cannot be simulated", because, f"{name} {try_}")


class Study(dict[str, "np.ndarray[Any, Any]"]):  # Any: strings, whole and real numbers
    """The results, as columns: `study["avg_jct_s"]`, or `pandas.DataFrame(study)`.

    Of several seeds a column holds means, and `avg_jct_s_ci95` half the width of a 95 % interval.
    """

    def __init__(self, trace: Trace, runs: Sequence[Run], seeds: int, planned: int) -> None:
        self.trace = trace
        self.runs = tuple(runs)
        self.planned = planned  # jobs of all runs together, finished or not
        groups: dict[RunKey, list[Run]] = {}
        for run in runs:
            groups.setdefault(run.key.any_seed, []).append(run)
        self.row_keys = list(groups)
        self.rows = [_row(runs, seeds) for runs in groups.values()]
        flat = [_flat(row) for row in self.rows]
        super().__init__(
            {name: np.array([row[name] for row in flat]) for name in flat[0]} if flat else {}
        )

    @property
    def finished(self) -> int:
        """Jobs that finished in all runs together: less than planned if the study was stopped."""
        return sum(int(run.finished.sum()) for run in self.runs)

    def __repr__(self) -> str:
        shown = (f"{row['policy']}: {row['avg_jct_s']:,.0f} s" for row in self.rows)
        return f"<Study of {self.trace.name}; average JCT of {', '.join(shown)}>"

    def _repr_html_(self) -> str:
        """The table, for a notebook."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self)
        lines = zip(*(column.tolist() for column in self.values()), strict=True)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_cell(cell))}</td>" for cell in line) + "</tr>"
            for line in lines
        )
        return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: object) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def _flat(row: Mapping[str, object]) -> dict[str, object]:
    """A row without the nested intervals."""
    intervals = cast(Mapping[str, float], row.get("ci95", {}))
    flat = {name: value for name, value in row.items() if name != "ci95"}
    return flat | {f"{name}_ci95": width for name, width in intervals.items()}


def study(spec: StudySpec, watch: Watch | None = None) -> Study:
    """Run a study."""
    workload = _workload(spec)
    cases = list(_cases(spec, workload))
    watch = watch or Watch()
    runs = run_cases(cases, watch)
    for run in runs:
        if not run.finished.all() and not watch.stop.is_set():
            left = int((~run.finished).sum())
            rigid = ", or rigid = True in a policy that gives requests or nothing"
            raise UserError(
                f"{run.key.policy} on {run.key.gpus} GPUs does not finish",
                f"{left:,} of {run.trace.size:,} jobs never get GPUs",
                "a policy that serves every job at some time; check it with "
                "coddl.testing.PolicyContract" + rigid * (run.nodes is not None),
            )
    whole = workload(spec.loads[0], 0, spec.targets[0].gpus)
    planned = sum(case.trace.size for case in cases)
    return Study(whole, runs, spec.seeds, planned)


TraceSource: TypeAlias = Callable[[float, int, int], Trace]  # load, seed, GPUs -> trace


def _cases(spec: StudySpec, workload: TraceSource) -> Iterator[Case]:
    """Every run the spec asks for."""
    policies = {
        name: policy_named(policy) if isinstance(policy, str) else _decides(policy, "policy")
        for name, policy in _labelled(spec.policies, _with_parameters).items()
    }
    loads = dict.fromkeys(map(float, spec.loads))
    pairs = _placed(policies, spec)
    failures = failures_from(spec.failures)
    error = error_from(spec.error) if spec.error else None
    for seed, load, target in product(range(spec.seeds), loads, spec.targets):
        gpus, whole = target.gpus, workload(load, seed, target.gpus)
        if target.cluster is not None:
            speeds = speeds_on(whole.speeds, target.cluster)
            speeds = with_profiled_places(speeds, spec.profiled, target.cluster)
            whole = replace(whole, speeds=speeds)
        queues: list[str | None] = [spec.queue]
        if spec.queue == "all":  # those that have jobs
            queues = [whole.queues[at] for at in np.unique(whole.queue)]
        for queue in queues:
            trace = whole if queue is None else whole.of_queue(queue)
            trace = trace.fitted_to(gpus, spec.oversize)
            beliefs = beliefs_of(trace, error, seed) if error is not None else None
            if spec.known_speeds != "true":
                beliefs = _knowing(spec, trace, beliefs)
            quota_gpus = quotas_from(spec.quotas, trace, gpus)
            for label, policy, where, placement in pairs:
                yield Case(
                    RunKey(label, gpus, where, target.name, queue, load, seed),
                    policy,
                    trace,
                    reconfigure=spec.reconfigure,
                    stability=spec.stability,
                    cluster=target.cluster,
                    nodes=target.nodes,
                    placement=placement,
                    beliefs=beliefs,
                    quota_gpus=quota_gpus,
                    failures=failures,
                    prerun=spec.prerun,
                    keep_events=spec.keep_events,
                )


def _knowing(spec: StudySpec, trace: Trace, beliefs: Beliefs | None) -> Beliefs | None:
    """Beliefs with the speeds that the scheduler knows."""
    names, replayed = trace.speeds.names, spec.profiled.profiles  # estimated as they are
    models = [row for row in np.unique(trace.curve).tolist() if names[row] not in replayed]
    known = beliefs_with(spec.known_speeds, trace.speeds, models, spec.profiled.links)
    if beliefs is None or known is None:
        return known
    return replace(known, length=beliefs.length)


Pair: TypeAlias = tuple[str, Policy, str, Placement | None]  # each behind what results call it


def _placed(policies: Mapping[str, Policy], spec: StudySpec) -> list[Pair]:
    """Each policy with each placement to try; one that places jobs itself, once."""
    if not spec.has_nodes:
        return [(label, policy, "", None) for label, policy in policies.items()]
    given = _labelled(_each_once(spec.placements or ("consolidate",)))
    placements = {
        name: placement_named(p) if isinstance(p, str) else _decides(p, "placement")
        for name, p in given.items()
    }
    own = {label: getattr(policy, "own_placement", "") for label, policy in policies.items()}
    if spec.placements and all(own.values()):
        why = f"{' and '.join(own)} has its own placement"
        _refuse(True, "placement", next(iter(given)), why, "with another policy, or no --placement")
    pairs: list[Pair] = []
    for label, policy in policies.items():
        if own[label]:
            pairs.append((label, policy, "", placement_from(own[label])))
        else:
            pairs += [(label, policy, where, each) for where, each in placements.items()]
    return pairs


def _each_once(given: Sequence[T]) -> list[T]:
    """What was given, without names that were given before."""
    names = [each if isinstance(each, str) else None for each in given]
    return [each for at, each in enumerate(given) if not names[at] or names[at] not in names[:at]]


def _labelled(given: Sequence[T], shown: Callable[[T], str] | None = None) -> dict[str, T]:
    """What was given by what results call it; of two with one name the second gets a number."""
    labelled: dict[str, T] = {}
    for each in given:
        name = _name(each) if isinstance(each, str) or shown is None else shown(each)
        label, number = name, 2
        while label in labelled:
            label, number = f"{name} #{number}", number + 1
        labelled[label] = each
    return labelled


def _name(given: object) -> str:
    """What results call something that was given by name or as it is."""
    if isinstance(given, str):
        return given
    return str(getattr(given, "__name__", type(given).__name__.lower()))


def _with_parameters(policy: object) -> str:
    """A policy as results call it: the function's name, or the class with its parameters."""
    return str(getattr(policy, "__name__", repr(policy)))


def _decides(given: T, noun: str) -> T:
    """The same policy or placement, if it is one that can be asked."""
    if isinstance(given, type) or not callable(given):
        raise UserError(
            f"{noun} {given!r} cannot be used",
            "it is neither a name nor a function of a snapshot",
            f"the name of one, or an instance of your {noun}",
        )
    return given


def _workload(spec: StudySpec) -> TraceSource:
    """What gives the trace for a load, a seed and a size of the cluster."""
    make, first, servers = _source(spec), spec.first, spec.servers

    def made(load: float, seed: int, gpus: int) -> Trace:
        trace = make(load, seed, gpus)
        if first is not None:
            trace = trace.rows(np.arange(trace.size) < first)
        if servers is not None and not isinstance(trace.speeds, ServedSpeeds):
            trace = replace(trace, speeds=with_servers(trace.speeds, servers))
        return trace

    return made


def _source(spec: StudySpec) -> TraceSource:
    """The same, with all its jobs, and with servers only if they were measured so."""
    source, speeds = spec.workload, None
    if spec.speeds is not None:
        speeds = read_speeds(Path(spec.speeds), spec.servers)
    is_made = isinstance(source, str) and source in GENERATORS and not Path(source).exists()
    if spec.profiled.profiles and not isinstance(source, Trace):
        most = max(target.gpus for target in spec.targets)
        in_package = source is None or is_made
        speeds = speeds or (packaged_speeds() if in_package else speeds_beside(Path(str(source))))
        speeds = with_profiles(speeds, spec.profiled, spec.node_gpus, most)
    if isinstance(source, str) and is_made:
        make = GENERATORS[source]
        if source == "poisson":
            return lambda load, seed, gpus: make(speeds, gpus=gpus, load=load, seed=seed)
        return lambda load, seed, _gpus: make(speeds, seed=seed).at_load(load)
    if isinstance(source, Trace):
        trace = source
    else:
        trace = small_trace(speeds) if source is None else read_trace(Path(source), speeds)
    return lambda load, _seed, _gpus: trace.at_load(load)


def _row(runs: Sequence[Run], seeds: int) -> dict[str, object]:
    """One line of results from the runs of all seeds."""
    table = [asdict(run.metrics()) for run in runs]
    row = runs[0].key.columns | table[0]
    del row["seed"]
    if seeds > 1:
        means = {name: float(np.mean([line[name] for line in table])) for name in table[0]}
        row |= {**means, "seeds": len(runs)}
        row["ci95"] = {name: ci95([line[name] for line in table]) for name in means}
    return row


def ci95(values: Sequence[float] | FloatColumn) -> float:
    """Half the width of the 95 % interval of the mean."""
    if len(values) < 2:
        return math.nan
    quantile = T95[min(len(values) - 1, len(T95)) - 1]
    return float(quantile * np.std(values, ddof=1) / math.sqrt(len(values)))
