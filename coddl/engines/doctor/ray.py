"""Whether a Ray cluster is fit for a pool: what was gathered, and what follows from it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from coddl.core.errors import UserError
from coddl.engines.doctor.machine import in_gigabytes
from coddl.engines.doctor.reach import PoolReach, reach_results
from coddl.engines.doctor.results import CheckResult, failure_of, fine

# Ray's defaults, by their names in its configuration.
DEFAULTS: Final = {
    "health_check_period_ms": 3000,
    "health_check_timeout_ms": 10000,
    "health_check_failure_threshold": 5,
    "health_check_initial_delay_ms": 5000,
}
ADVISED: Final = (
    "start Ray's head with RAY_health_check_period_ms=1000 RAY_health_check_timeout_ms=2000 "
    "RAY_health_check_failure_threshold=3 RAY_health_check_initial_delay_ms=1000"
)
NOTICED_WITHIN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """How the process was started that answers for a cluster."""

    redis: str = ""  # its address
    settings: dict[str, str] = field(default_factory=dict)  # that differ from Ray's defaults

    @property
    def store(self) -> str:
        """Name what keeps the state of the cluster over a restart; empty: nothing does."""
        return "Redis" if self.redis else self.settings.get("gcs_storage", "").replace("memory", "")

    def number(self, name: str) -> int:
        """Return a setting in force."""
        return int(self.settings.get(name, DEFAULTS[name]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNodeFacts:
    """A machine of a cluster."""

    host: str
    gpus: float  # as Ray counts them
    gpus_free: float
    trouble: str = ""  # why it could not be asked for the rest
    python: str = ""
    coddl: str = ""  # empty: it can't be imported
    torch: str = ""
    niceness: int = 0
    gpu_sizes: tuple[tuple[str, int], ...] = ()  # kind and bytes of each real GPU
    worker_ports: tuple[int, ...] = ()  # least and most
    server_trouble: str = ""
    jobs_dir_trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayFacts:
    """What was found of a Ray cluster."""

    trouble: UserError | None = None  # it can't be connected to
    ray: str = ""  # versions: here
    python: str = ""
    coddl: str = ""
    cluster_ray: str = ""  # and of the cluster
    cluster_python: str = ""
    address: str = ""
    dashboard: str = ""
    head: HeadFacts | None = None  # None: it can't be read
    nodes: tuple[RayNodeFacts, ...] = ()
    gpus_per_node: int = 1  # that the pool wants
    server: str = ""  # that was tried from each node
    jobs_dir: str = ""


def ray_results(facts: RayFacts) -> Iterator[CheckResult]:
    """Judge a Ray cluster."""
    if facts.cluster_ray:
        yield from _versions(facts)
    if facts.trouble is not None:
        yield failure_of("ray", facts.trouble)
        return
    yield fine("ray", f"{facts.address}, {len(facts.nodes)} machines")
    yield _health(facts.head)
    yield _store(facts.head)
    yield from _ports(facts)
    yield _gpus(facts)
    for node in facts.nodes:
        if node.gpus:  # on others there are no agents
            yield from _node(facts, node)


def _versions(facts: RayFacts) -> Iterator[CheckResult]:
    pairs = (
        ("ray version", facts.ray, facts.cluster_ray, f"pip install ray=={facts.cluster_ray}"),
        ("ray python", facts.python, facts.cluster_python, f"Python {facts.cluster_python}"),
    )
    for check, ours, theirs, try_ in pairs:
        if ours == theirs:
            yield fine(check, f"{ours}, here and in the cluster")
            continue
        what, because = f"{ours} here, {theirs} in the cluster", "Ray refuses to connect"
        yield CheckResult(check, "FAIL", what, because, f"run coddl with {try_}")


def _health(head: HeadFacts | None) -> CheckResult:
    check = "ray health check"
    if head is None:
        because = "its process is another user's, or in another container"
        return CheckResult(check, "WARN", "the head's settings can't be read", because, ADVISED)
    period_s, timeout_s = (head.number(f"health_check_{k}_ms") / 1e3 for k in ("period", "timeout"))
    threshold = head.number("health_check_failure_threshold")
    dead_s = threshold * period_s
    silent_s = threshold * timeout_s + (threshold - 1) * period_s
    what = (
        f"a dead raylet is noticed after {dead_s:g} s, "
        f"a machine that falls silent after up to {silent_s:g} s"
    )
    if silent_s <= NOTICED_WITHIN_S:
        return fine(check, what)
    because = (
        f"{threshold} checks must fail, every {period_s:g} s with a timeout of {timeout_s:g} s"
    )
    return CheckResult(check, "WARN", what, because, ADVISED)


def _store(head: HeadFacts | None) -> CheckResult:
    check, try_ = "ray head", "RAY_REDIS_ADDRESS for Ray's head, with a Redis that outlives it"
    if head is None:
        what = "whether the head has Redis behind it can't be read"
        return CheckResult(check, "WARN", what, "its process can't be seen", try_)
    if head.store:
        return fine(check, f"{head.store} keeps its state")
    because = "without Redis, a head that ends takes the cluster with it; jobs are saved then"
    return CheckResult(check, "WARN", "nothing keeps its state", because, try_)


def _ports(facts: RayFacts) -> Iterator[CheckResult]:
    """Check for ports of the head that workers may take first after a restart."""
    ports = {"GCS": facts.address, "dashboard": facts.dashboard}
    for name, address in ports.items():
        port = address.rpartition(":")[2]
        for least, most in {n.worker_ports for n in facts.nodes if len(n.worker_ports) == 2}:
            if port.isdecimal() and least <= int(port) <= most:
                what = f"the {name} port {port} is among the workers' ports {least}..{most}"
                because = "a worker may take it before the head is started again"
                try_ = "another --port or --dashboard-port for ray start --head"
                yield CheckResult("ray ports", "WARN", what, because, try_)


def _gpus(facts: RayFacts) -> CheckResult:
    wanted = facts.gpus_per_node
    free = sum(int(node.gpus_free // wanted) for node in facts.nodes)
    most = sum(int(node.gpus // wanted) for node in facts.nodes)
    kinds = sorted({f"{k} {in_gigabytes(size)}" for n in facts.nodes for k, size in n.gpu_sizes})
    each = f"{wanted} GPU{'s' if wanted > 1 else ''}"
    what = f"{free} of {most} nodes with {each} are free" + "".join(f"; {k}" for k in kinds)
    if free:
        return fine("ray GPUs", what)
    if most:
        because, try_ = "other users of Ray, or this pool, hold the rest", "ray status"
        return CheckResult("ray GPUs", "WARN", what, because, try_)
    largest = max((node.gpus for node in facts.nodes), default=0.0)
    because = f"the largest machine has {largest:g} GPUs"
    try_ = f"--gpus-per-node {largest:g}" if largest else "ray start --num-gpus, on each machine"
    return CheckResult("ray GPUs", "FAIL", what, f"{because}; autoscalers may add others", try_)


def _node(facts: RayFacts, node: RayNodeFacts) -> Iterator[CheckResult]:
    check = f"ray node {node.host}"
    if node.trouble:
        what = "it can't run a task"
        yield CheckResult(check, "FAIL", what, node.trouble, f"ray logs raylet.out, on {node.host}")
        return
    yield _package(facts, node, check)
    if not node.torch:
        what, try_ = "torch is not installed there", "pip install 'coddl[runtime]', there"
        yield CheckResult(check, "WARN", what, "elastic jobs need it", try_)
    if node.niceness > 0:
        what = f"workers of Ray run at niceness {node.niceness}"
        because = "jobs inherit it, unless agents run as root"
        yield CheckResult(check, "WARN", what, because, "start Ray with RAY_worker_niceness=0")
    reach = PoolReach(facts.server, node.server_trouble, facts.jobs_dir, node.jobs_dir_trouble)
    yield from reach_results(check, reach)


def _package(facts: RayFacts, node: RayNodeFacts, check: str) -> CheckResult:
    if node.coddl == facts.coddl:
        return fine(check, f"coddl {node.coddl}, Python {node.python}")
    try_ = f"pip install 'coddl[ray]=={facts.coddl}', there"
    if not node.coddl:
        what, because = "coddl can't be imported there", "it is not installed for Ray's Python"
        return CheckResult(check, "FAIL", what, because, try_)
    what, because = f"coddl {node.coddl} there, {facts.coddl} here", "all must have one version"
    return CheckResult(check, "FAIL", what, because, try_)
