"""What happens in a pool. Past tense; frozen; the journal holds these and nothing else. (C5, D3)

*Facts* come from outside: users, agents, the clock. *Conclusions* (`SlotFreed`, `ParkingEnded`,
`Decided`, `DecisionFailed`, `Aimed`) are drawn by `control` and recorded with the fact that
led to them, so that they are read back and never drawn anew. The state of the pool is a fold of
both. (`state`)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from coddl.core.pool.engine_records import EngineBounded as EngineBounded
from coddl.core.pool.engine_records import EngineReported as EngineReported
from coddl.core.pool.engine_records import NodeAcquired as NodeAcquired
from coddl.core.pool.engine_records import NodeLeft as NodeLeft
from coddl.core.pool.engine_records import NodesWanted as NodesWanted
from coddl.core.pool.engine_records import ReportedNode as ReportedNode
from coddl.core.pool.node_versions import NodeVersions
from coddl.core.pool.run_records import ENDS as ENDS
from coddl.core.pool.run_records import STEPS_MAX as STEPS_MAX
from coddl.core.pool.run_records import ChangeKind as ChangeKind
from coddl.core.pool.run_records import Evidence as Evidence
from coddl.core.pool.run_records import LossMeasured as LossMeasured
from coddl.core.pool.run_records import Outcome as Outcome
from coddl.core.pool.run_records import RunChanged as RunChanged
from coddl.core.pool.run_records import RunEnded as RunEnded
from coddl.core.pool.run_records import RunFact as RunFact
from coddl.core.pool.run_records import RunPrepared as RunPrepared
from coddl.core.pool.run_records import RunProfiled as RunProfiled
from coddl.core.pool.run_records import RunProgressed as RunProgressed
from coddl.core.pool.run_records import RunStalled as RunStalled
from coddl.core.pool.run_records import RunStepped as RunStepped
from coddl.core.pool.run_records import RunUnsaved as RunUnsaved
from coddl.core.pool.run_records import SliceDidNotFit as SliceDidNotFit
from coddl.core.pool.run_records import Trouble as Trouble
from coddl.core.pool.spec import JobSpec
from coddl.core.speed.inspection import LinkClass, LinkSpeed
from coddl.core.waiting import Waiting

# Users.


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A user has handed in a job; `job` is the number it goes by."""

    job: int
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class JobCancelled:
    job: int
    by: str


@dataclass(frozen=True, slots=True)
class JobSuspended:
    """A user has suspended a job: it gives up its devices and gets none until resumed."""

    job: int
    by: str


@dataclass(frozen=True, slots=True)
class JobResumed:
    """A user has resumed a job."""

    job: int
    by: str


@dataclass(frozen=True, slots=True)
class JobBounded:
    """A user has set how many devices a job may hold."""

    job: int
    gpus_min: int
    gpus_max: int
    by: str


@dataclass(frozen=True, slots=True)
class JobPrioritised:
    job: int
    priority: int
    by: str


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """Nothing new may start on a node; what runs there moves away.

    With a time after which the node leaves: by then nothing runs there, even if a job has to be
    saved and stopped for it.
    """

    node: str
    by: str
    within_s: float | None = None
    because: str = ""  # it leaves; empty: that is not known


@dataclass(frozen=True, slots=True)
class NodeUndrained:
    node: str
    by: str


@dataclass(frozen=True, slots=True)
class NodeForgotten:
    """A node that was lost is not expected back; one of that name is another one."""

    node: str
    by: str


@dataclass(frozen=True, slots=True)
class PolicyChosen:
    policy: str  # as users write it
    by: str
    placement: str = ""  # empty: as before


@dataclass(frozen=True, slots=True)
class JobsForgotten:
    """Jobs that had ended have left memory; the history has them."""

    jobs: tuple[int, ...]


# Nodes.


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or a place for one worker on a machine without."""

    index: int  # on its node
    kind: str  # "cpu", or the GPU's model
    gpu: str | None = None  # as CUDA_VISIBLE_DEVICES wants it
    memory_bytes: int = 0


class RunId(NamedTuple):
    """A run: one attempt at a job."""

    job: int
    attempt: int


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """An agent has come, or come back; `boot` names its process."""

    node: str
    boot: str
    host: str
    devices: tuple[Device, ...]
    slots: tuple[int, ...] = ()  # the devices' numbers in the pool; filled in by `control`
    folder: str = ""  # the id of its jobs folder: nodes with the same one share it
    versions: NodeVersions = field(default_factory=NodeVersions)
    parking_bytes: int = 0  # host memory that workers without their GPU may use
    links: Mapping[LinkClass, LinkSpeed] = field(default_factory=dict)  # as they were inspected


@dataclass(frozen=True, slots=True)
class SlotTurns:
    """How turns go on a slot: which job has the turn, and which part of the time each had."""

    job: int | None = None  # None: none has it now
    shares: Mapping[int, float] = field(default_factory=dict)  # by job, since it takes turns there
    switch_s: Mapping[int, float] = field(default_factory=dict)  # by job: to end and begin a turn
    bytes_: Mapping[int, int] = field(default_factory=dict)  # by job: of host memory, outside a GPU


@dataclass(frozen=True, slots=True)
class NodeReported:
    """An agent has reported what it has, with the version of its orders.

    `runs` are those that it leads or is about to, and those whose end it has told and not seen
    acknowledged; None: it does not tell.
    """

    node: str
    boot: str
    version: int
    # Slots that have live processes. Of several runs by turns: one that must leave, else the
    # one that is at work.
    holding: Mapping[int, RunId]
    runs: frozenset[RunId] | None = None
    others: Mapping[int, str] = field(default_factory=dict)  # by index: other users of a GPU
    parked: frozenset[int] | None = None  # jobs whose workers are parked there; None: not reported
    turns: Mapping[int, SlotTurns] = field(default_factory=dict)  # soft; by slot


@dataclass(frozen=True, slots=True)
class NodeSilent:
    """The line to an agent is down; its lease may well hold."""

    node: str
    boot: str


@dataclass(frozen=True, slots=True)
class NodeNoticed:
    """An agent was notified that its machine goes away; it works on until then."""

    node: str
    boot: str
    within_s: float


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node's lease has run out, or its agent is another process now: nothing lives there."""

    node: str
    boot: str
    because: str


# Runs.


@dataclass(frozen=True, slots=True)
class RunReported:
    """An agent has reported a fact about a run."""

    node: str
    boot: str
    fact: RunFact | RunProgressed


@dataclass(frozen=True, slots=True)
class Woke:
    """The time that was asked for has come. Soft."""


# Conclusions.


@dataclass(frozen=True, slots=True)
class SlotFreed:
    """A job's last process on a device was seen to be gone: it no longer owns it."""

    slot: int
    job: int


@dataclass(frozen=True, slots=True)
class ParkingEnded:
    """A job's parked workers are gone: its next run starts from its checkpoint."""

    job: int
    because: str


@dataclass(frozen=True, slots=True)
class StartOverdue:
    """A run has had devices for long and made no step: it is given up, and counts as lost."""

    job: int
    attempt: int
    after_s: float

    def end(self, step: int) -> RunEnded:
        """Return the end of the run, as its lead would have reported it."""
        because = f"it made no step within {self.after_s:g} s of its start"
        more = f"coddl logs {self.job}; a larger start_within_s if it needs more time"
        trouble = Trouble("it did not start", because, more)
        return RunEnded(self.job, self.attempt, "lost", step, trouble=trouble)


@dataclass(frozen=True, slots=True)
class Target:
    """The devices a job will have, and why."""

    slots: tuple[int, ...]
    reason: str
    turn_s: float = 0.0  # above 0: it takes turns of that length with the job that has the slot
    is_trial: bool = False  # the size is to be measured: it is expected to be slower


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """What a decision knew of a job; less than a tenth is no news, and not decided on."""

    job: int
    gpus: int
    gpus_min: int
    gpus_max: int
    remaining: int | None  # iterations; None: unknown
    step_s: Mapping[int, float]  # measured, by GPUs
    share: int  # what the policy gave it
    # As it was when the rest was news: by itself it never is.
    attained_gpu_s: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision: the jobs' new targets, and the inputs it is based on; only what changed."""

    policy: str
    seed: int
    gpus: int  # usable then
    why: str  # what made us decide
    targets: Mapping[int, Target]  # by job; only those that changed
    waiting: Mapping[int, Waiting]  # by job; only those that changed
    rows: tuple[DecisionRow, ...]  # only those that differ from the job's last recorded row
    memory: Mapping[int, tuple[float, ...]] = field(default_factory=dict)  # the policy's, by job
    wake_at_s: float | None = None
    wake_why: str = ""  # what will have happened by then; empty: the policy asks for it
    left_waiting: int | None = None  # jobs that were left without devices; None: not recorded


@dataclass(frozen=True, slots=True)
class DecisionFailed:
    """A policy or placement that is not ours has failed: jobs keep what they hold meanwhile.

    Jobs that must leave whatever a policy says have a target; only what is new is recorded.
    """

    policy: str
    placement: str
    why: str  # what made us decide
    trouble: Trouble
    targets: Mapping[int, Target]  # by job
    waiting: Mapping[int, Waiting]  # by job


@dataclass(frozen=True, slots=True)
class Aimed:
    """A job's target was put into effect: its agents get new orders.

    No slots: it gives up what it has, as `reason` says. `adopt`: a new lead takes over workers that
    are alive.
    """

    job: int
    attempt: int
    generation: int
    slots: tuple[int, ...]
    lead: str  # node
    reason: str
    adopt: bool = False
    precheck: bool = False


Event = (
    EngineBounded
    | JobSubmitted
    | JobCancelled
    | JobSuspended
    | JobResumed
    | JobBounded
    | JobPrioritised
    | NodeDrained
    | NodeUndrained
    | NodeForgotten
    | PolicyChosen
    | JobsForgotten
    | NodeJoined
    | NodeReported
    | NodeSilent
    | NodeNoticed
    | NodeLost
    | EngineReported
    | RunReported
    | Woke
)

NodeRecord = (
    NodeJoined
    | NodeDrained
    | NodeUndrained
    | NodeForgotten
    | NodeLost
    | EngineBounded
    | NodeAcquired
    | NodeLeft
    | NodesWanted
)

Record = (
    JobSubmitted
    | JobCancelled
    | JobSuspended
    | JobResumed
    | JobBounded
    | JobPrioritised
    | PolicyChosen
    | JobsForgotten
    | NodeRecord
    | RunPrepared
    | SliceDidNotFit
    | RunProfiled
    | LossMeasured
    | RunStepped
    | RunChanged
    | RunStalled
    | RunUnsaved
    | RunEnded
    | SlotFreed
    | ParkingEnded
    | StartOverdue
    | Decided
    | DecisionFailed
    | Aimed
)

# Kinds whose class has another name by now: journals, and clients of REST, know them by these.
_KINDS: Final[dict[type, str]] = {JobSuspended: "JobHeld", JobResumed: "JobReleased"}


def kind_of(record: type[Record]) -> str:
    """Return the name of a kind of record in journals and in REST. It never changes."""
    return _KINDS.get(record, record.__name__)
