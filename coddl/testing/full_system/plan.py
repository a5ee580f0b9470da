"""What one seed draws: a cluster, jobs, what users do, and what goes wrong, as plain data.

A plan holds all that a run depends on, so that parts of it can be left out to find out which of
them a failure needs. Lateness of messages and the like is drawn from the seed while it runs.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from coddl.core.pool.spec import JobSpec, Launch, Tier
from coddl.core.scheduler import Stability
from coddl.testing.full_system.virtual_time import Skew

# All that a pool can follow whose jobs take no turns on a GPU, which emulated jobs can't.
POLICIES: Final = (
    *("afs-l", "afs-p", "afs-p:tie=keep,lease_h=0.005", "drf", "fifo", "fifo:backfill=true"),
    *("max-min", "max-speedup", "optimus", "optimus-ps", "philly", "ranked-speedup", "srsf"),
    *("srtf", "tetris", "themis", "themis:lease_s=10", "tiresias-g", "tiresias-l"),
)
PLACEMENTS: Final = ("consolidate", "consolidate", "spread", "tiresias", "philly", "estimate")
KINDS: Final = ("cpu", "V100", "A100")

FaultKind = Literal[
    "server killed",  # at any step of it
    "server killed before a commit",
    "server killed after a commit",
    "server stopped",  # SIGSTOP, and SIGCONT some time later
    "disk full",  # of the server
    "disk slow",
    "agent killed",  # at any step of it; its workers die with it
    "agent stopped",
    "node lost",  # the machine is gone, without a word
    "node leaves",  # with notice
    "agent ended",  # in order, as by SIGTERM
    "line broken",  # and dialled again
    "line cut",  # for some time, both ways
    "line cut upwards",
    "line cut downwards",
    "line slow",
    "worker killed",  # one of a node
    "nodes cut",  # from each other, both ways: leads from workers, and workers from workers
    "nodes cut one way",
    "states full",  # what jobs save their states to
]
SERVER_FAULTS: Final = frozenset[FaultKind](
    {
        *("server killed", "server killed before a commit", "server killed after a commit"),
        *("server stopped", "disk full", "disk slow", "states full"),
    }
)
MOMENTS: Final = frozenset[FaultKind]({"line broken", "agent ended", "worker killed"})
CUTS: Final = frozenset[FaultKind]({"nodes cut", "nodes cut one way"})
WEIGHTS: Final[Mapping[FaultKind, int]] = {
    "server killed": 2,
    "server killed before a commit": 2,
    "server killed after a commit": 2,
    "server stopped": 1,
    "disk full": 1,
    "disk slow": 1,
    "agent killed": 4,
    "agent stopped": 2,
    "node lost": 2,
    "node leaves": 1,
    "agent ended": 1,
    "line broken": 2,
    "line cut": 2,
    "line cut upwards": 1,
    "line cut downwards": 1,
    "line slow": 2,
    "worker killed": 4,
    "nodes cut": 2,
    "nodes cut one way": 1,
    "states full": 1,
}


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """A node."""

    name: str
    slots: int
    kind: str
    joins_s: float
    skew: Skew


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job that a user submits."""

    number: int  # by which users' acts name it
    at_s: float
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class UserAct:
    """Something else that a user does; what can't be is refused."""

    at_s: float
    kind: Literal[
        "cancel", "suspend", "resume", "resize", "prioritise", "drain", "undrain", "policy"
    ]
    job: int = 0  # its number in the plan
    node: str = ""
    least: int = 1
    most: int = 1
    priority: int = 0
    policy: str = ""
    placement: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong."""

    at_s: float
    kind: FaultKind
    node: str = ""
    other: str = ""  # the node that it is cut off from
    for_s: float = 0.0
    callbacks: int = 0  # of the process, before it is killed
    tears: bool = False  # the newest snapshot is torn

    def __str__(self) -> str:
        lasts = f" for {self.for_s:.1f} s" if self.for_s else ""
        where = " and ".join(node for node in (self.node, self.other) if node)
        return f"{self.kind}{f' ({where})' if where else ''}{lasts}"


@dataclass(frozen=True, slots=True)
class SimulationPlan:
    """All that a run is made of."""

    seed: int
    nodes: tuple[PlannedNode, ...]
    jobs: tuple[PlannedJob, ...]
    acts: tuple[UserAct, ...]
    faults: tuple[Fault, ...]
    policy: str
    placement: str
    stability: Stability
    lease_s: float
    reconfigure: str
    save_s: float  # that saving a state takes
    decision_s: float  # that a decision takes
    snapshot_every: int  # records
    trouble_s: float  # when all faults are over


def draw(seed: int) -> SimulationPlan:
    """Draw the plan of a seed."""
    chance = random.Random(f"{seed}:plan")
    trouble_s = chance.uniform(60.0, 120.0)
    nodes = tuple(_node(chance, name) for name in "abcde"[: chance.randint(2, 5)])
    slots = sum(node.slots for node in nodes)
    widest = max(node.slots for node in nodes)
    count = chance.randint(14, 30)
    jobs = [_job(chance, number, (slots, widest), trouble_s) for number in range(count)]
    jobs.sort(key=lambda job: job.at_s)
    acts = [_act(chance, nodes, len(jobs), trouble_s) for _ in range(chance.randint(4, 16))]
    faults = [_fault(chance, nodes, trouble_s) for _ in range(chance.randint(6, 18))]
    return SimulationPlan(
        seed=seed,
        nodes=nodes,
        jobs=tuple(jobs),
        acts=tuple(sorted(acts, key=lambda act: act.at_s)),
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
        policy=chance.choice(POLICIES),
        placement=chance.choice(PLACEMENTS),
        stability=Stability(
            cool_down_s=chance.choice([0.0, 2.0, 10.0]), reserve_s=chance.choice([0.0, 5.0, 10.0])
        ),
        lease_s=chance.choice([12.0, 20.0, 30.0]),
        reconfigure=chance.choice(["none", "concurrent:1,0.1", "concurrent:4,1", "stall:3"]),
        save_s=chance.choice([0.0, 0.3, 3.0]),
        decision_s=chance.choice([0.0, 0.0, 0.01, 0.3]),
        snapshot_every=chance.choice([20, 100, 2000]),
        trouble_s=trouble_s,
    )


def _node(chance: random.Random, name: str) -> PlannedNode:
    return PlannedNode(
        name,
        slots=chance.randint(1, 4),
        kind=chance.choice(KINDS[:2] if name < "c" else KINDS),
        joins_s=chance.uniform(0.0, 5.0) if chance.random() < 0.8 else chance.uniform(5.0, 40.0),
        skew=Skew(
            wall_s=chance.choice([0.0, chance.uniform(-3600.0, 3600.0)]),
            steady_s=chance.uniform(0.0, 1e6),
            rate=chance.uniform(0.995, 1.005),
        ),
    )


def _job(
    chance: random.Random, number: int, slots: tuple[int, int], trouble_s: float
) -> PlannedJob:
    """Draw a job of a pool with so many slots in all, and on its largest node."""
    tier: Tier = chance.choice(["elastic", "elastic", "elastic", "elastic", "restartable"])
    least = min(chance.choice([1, 1, 1, 1, 2]), slots[tier == "restartable"])
    more = 0 if tier == "restartable" else chance.choice([0, 0, 1, 2, 4])
    iterations = chance.uniform(3.0, 40.0)
    spec = JobSpec(
        name=f"job-{number}",
        launch=Launch(
            argv=("emulated", "--model", chance.choice(MODELS), "--iterations", f"{iterations!r}"),
            precheck=("true",) if chance.random() < 0.15 else (),
            grace_s=chance.choice([1.0, 5.0]),
            checkpoint_every_s=chance.choice([5.0, 20.0, 60.0]),
        ),
        user=chance.choice(["ada", "bob"]),
        tier=tier,
        gpus_min=least,
        gpus_max=min(least + more, slots[0]),
        priority=chance.choice([0, 0, 0, 1, 2]),
        group=chance.choice(["", "", "sweep"]),
    )
    return PlannedJob(number, chance.uniform(0.0, trouble_s * 0.8), spec)


MODELS: Final = ("flat", "good", "skewed")


def _act(
    chance: random.Random, nodes: tuple[PlannedNode, ...], jobs: int, trouble_s: float
) -> UserAct:
    least = chance.randint(1, 3)
    return UserAct(
        chance.uniform(5.0, trouble_s),
        chance.choice(
            [
                *("cancel", "suspend", "suspend", "resume", "resume", "resize", "resize"),
                *("prioritise", "drain", "undrain", "policy"),
            ]
        ),
        job=chance.randrange(jobs),
        node=chance.choice(nodes).name,
        least=least,
        most=least + chance.randint(0, 4),
        priority=chance.randint(0, 2),
        policy=chance.choice(POLICIES),
        placement=chance.choice(("", *PLACEMENTS)),
    )


def _fault(chance: random.Random, nodes: tuple[PlannedNode, ...], trouble_s: float) -> Fault:
    kind = chance.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
    at_s = chance.uniform(5.0, trouble_s - 5.0)
    node = "" if kind in SERVER_FAULTS else chance.choice(nodes).name
    other = chance.choice([each.name for each in nodes if each.name != node])
    for_s = min(trouble_s - at_s, chance.choice([0.5, 2.0, 8.0, 20.0, 45.0]))
    return Fault(
        at_s,
        kind,
        node=node,
        other=other if kind in CUTS else "",
        for_s=0.0 if kind in MOMENTS else for_s,
        callbacks=chance.randint(0, 40),
        tears=chance.random() < 0.3,
    )
