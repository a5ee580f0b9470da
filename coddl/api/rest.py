"""What REST answers and is asked, below `/api/v1`. (Jobs as users write them: `spec`.)

Points in time, in fields that end in `_s`, are wall-clock seconds since 1970. Every error
is a `Problem`, as application/problem+json.
"""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from coddl.api.spec import refusal

API: Final = "/api/v1"
PROBLEM_JSON: Final = "application/problem+json"
BY_HEADER: Final = "Coddl-User"  # the user, for the journal; the token alone gives access

State = Literal[
    "PENDING",
    "STARTING",
    "RUNNING",
    "RESIZING",
    "SUSPENDED",
    "PREEMPTED",
    "STOPPING",
    "SUCCEEDED",
    "FAILED",
    "CANCELLED",
]


NodeCondition = Literal["UP", "SILENT", "DRAINED", "LOST"]


class View(BaseModel):
    """Something REST answers."""

    model_config = ConfigDict(frozen=True)


class Problem(View):
    """What went wrong: for people what, because, try; for programs code. (RFC 9457)"""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    what: str
    because: str
    try_: str = Field(alias="try")
    instance: str | None = None  # by which the server's log knows it


class TroubleView(View):
    """What went wrong: why a job's last run ended badly, or why a decision failed."""

    what: str
    because: str
    try_: str = Field(alias="try")


class ParkedView(View):
    """Workers of a job without GPUs that a node has kept in host memory, to resume it fast."""

    node: str
    bytes: int  # host memory that they use; 0: unknown


class TurnsView(View):
    """How a job takes turns on its GPU with others."""

    turn_s: float  # how long a turn lasts
    jobs: list[int]  # the others
    has_turn: bool | None  # None: not reported by its node
    share: float | None  # 0..1: the part of the GPU's time that it had so far; None: not reported


class LossView(View):
    """The mean of the losses that a script has logged around a step."""

    step: int
    loss: float


class LengthView(View):
    """How many steps a job still has to make."""

    source: Literal["told", "predicted", "unknown"]  # by its script; from its losses
    steps_left: int | None  # None: unknown
    error: float | None  # by which part of itself a prediction may be off
    sentence: str


class SpeedView(View):
    """How fast a job is at one size, and how that is known."""

    gpus: int
    step_s: float  # as measured, or else what is most likely
    speedup: float  # over the smallest size
    source: str  # measured, remembered, interpolated, estimated, submitted, assumed
    iterations: int  # that were measured
    predicted_s: float | None = None  # from its profile, before that is adjusted; null: it can't be
    error: float | None = None  # of the prediction, as a part of what was measured
    relative_sd: float | None = None  # standard deviation of what was not measured; null: unknown
    is_trial: bool = False  # it is expected to be slower, and is still worth a trial


class JobView(View):
    """A job, as it stands."""

    id: int
    name: str
    user: str
    priority: int
    tier: str
    state: State
    gpus: int  # devices it has now
    gpus_min: int  # as its user says, or as its memory requires
    gpus_max: int
    nodes: list[str]
    slots: list[int]
    attempt: int
    step: int
    steps: int | None
    progress: float | None  # 0..1
    eta_s: float | None  # seconds to its end, at its present speed; `length` says how that is known
    samples_per_s: float
    still_s: float = 0.0  # for which no step was made; 0: steps come as they should
    submitted_s: float
    started_s: float | None
    ended_s: float | None
    runtime_s: float  # with devices
    waited_s: float  # without
    jct_s: float | None
    resizes: int
    restarts: int  # after preemptions, failures and losses; a resumed job was not restarted
    last_pause_s: float | None
    switch_s: float | None = None  # that its GPUs were idle when it last gave them up and came back
    state_bytes: int = 0  # of host memory that its state needs then; 0: unknown
    code: str | None  # why it waits, for programs
    reason: str  # why it waits, or why it has what it has
    exit_code: int | None
    trouble: TroubleView | None
    metrics: dict[str, float]
    saved_step: int | None
    command: list[str]
    failures: int
    lead: str | None  # the node whose agent leads it
    unsaved: TroubleView | None = None  # why the newest state of its run is not on disk
    left_early: bool = False  # it succeeded, but its script left its loop before the last step
    memory_limit: str | None = None  # why its memory requires more than 1 GPU, if it does
    parked: ParkedView | None = None  # where its workers are parked, if they are
    turns: TurnsView | None = None  # if it takes turns on its GPU with other jobs
    length: LengthView | None = None  # None: it is over, or has not reported its length
    losses: list[LossView] = []  # from the first to the last; some of them, if there are many
    trials: int = 0  # resizes to measure a size that was expected to be slower
    speeds: list[SpeedView] | None = None  # of an elastic job; null in lists of jobs
    in_history: bool = False  # it ended long ago, and is no longer in the server's memory


class JobsView(View):
    items: list[JobView]
    next: str | None = None  # cursor of the next page


class JobChange(BaseModel):
    """Other bounds, or another priority, for a job."""

    model_config = ConfigDict(extra="forbid")

    gpus_min: int | None = Field(None, ge=1, le=100_000)
    gpus_max: int | None = Field(None, ge=1, le=100_000)
    priority: int | None = Field(None, ge=-1_000_000, le=1_000_000)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.gpus_min is None and self.gpus_max is None and self.priority is None:
            raise refusal("the request changes nothing", "gpus_min, gpus_max or priority")
        return self


class EffectView(View):
    """How a job's share would change."""

    job: int  # of the new job: the number it would get now
    name: str
    gpus_before: int
    gpus: int
    reason: str


class PreviewView(View):
    """What would happen to everyone if a job were submitted now."""

    policy: str
    slots_total: int
    slots_free: int
    job: EffectView
    others: list[EffectView]  # whose share would be another


class SliceTimeView(View):
    """How long a pass over a number of samples takes on one device."""

    samples: int
    forward_s: float
    backward_s: float
    forward_host_s: float = 0.0  # of the host while the GPU computes: no pass is shorter
    backward_host_s: float = 0.0


class BucketView(View):
    """Gradients that are sent together."""

    bytes: int
    ready: float  # the part of the backward pass after which they are complete


class SliceMemoryView(View):
    """How much GPU memory a pass over a number of samples needs, or the update after it."""

    samples: int
    peak_bytes: int


class ProfileView(View):
    """What one worker has measured of a training."""

    version: int
    device: str  # the GPU's name, or "cpu"
    batch: int  # samples of a step, over all workers
    slices: list[SliceTimeView]  # by samples, ascending
    update_s: float  # of the optimizer, per step
    other_s: float  # per step: what is in no other number
    data_s: float  # per step: the wait for the loader
    buckets: list[BucketView]  # in the order in which they are sent
    memory: list[SliceMemoryView]  # of passes; where no update is known, of both
    update_memory: list[SliceMemoryView] = []  # of updates
    state_bytes: int  # of parameters, buffers and the optimizers' state
    largest_tensor_bytes: int
    virtual_nodes: int | None  # of a strict training
    signature: str  # jobs with the same one train the same model with the same batch


class ExchangeFactorView(View):
    """What an all-reduce takes, as a multiple of what the formula says."""

    workers: int
    bytes: int
    factor: float


class ExchangeLinkView(View):
    """What a link between workers was measured to do."""

    gb_s: float  # of a ring all-reduce: bytes that each worker sends over the link, a second
    latency_us: float  # of one of its messages
    call_us: float  # of a collective by itself
    backend: str
    workers: list[int]  # numbers of workers it was measured with; empty: not reported
    factors: list[ExchangeFactorView] = []  # by workers, then bytes, ascending


class MeasuredStepView(View):
    """How long a step takes a job at one size."""

    gpus: int
    step_s: float


class EstimateInputView(View):
    """All that the pool estimates the speed of a job from."""

    profile: ProfileView
    links: dict[str, ExchangeLinkView]  # node, cluster: medians of what nodes report
    node_gpus: int  # of the largest node: workers are on as few nodes as they take
    measured: list[MeasuredStepView]  # by the job
    remembered: list[MeasuredStepView]  # by earlier jobs that train the same


class StoryView(View):
    number: int  # of the record
    at_s: float
    text: str


class ExplainView(View):
    """Why a job is where it is, and how it came there."""

    job: JobView
    sentence: str
    code: str | None
    position: int | None  # among those that wait
    ahead: int  # other jobs that hold devices
    speeds: list[SpeedView]
    story: list[StoryView]
    parked_sentence: str = ""  # where its workers are parked, and how fast it resumes there
    removed: str = ""  # which of its events were removed because they are old


class EventView(View):
    """One record of the journal."""

    number: int
    at_s: float
    kind: str
    job: int | None
    node: str | None
    text: str
    detail: dict[str, Any]  # Any: JSON


class EventsView(View):
    items: list[EventView]
    next: int  # `after` of the next page
    removed: str = ""  # of a job: which of its events were removed because they are old


class LogLineView(View):
    """A line that a worker printed, or that an agent says about the job (stream "coddl")."""

    number: int
    at_s: float
    attempt: int
    worker: int
    rank: int | None
    stream: str
    text: str


class LogsView(View):
    items: list[LogLineView]
    removed: str = ""  # that all of it was removed because it is old


class SlotView(View):
    """A device."""

    slot: int
    index: int
    kind: str
    gpu: str | None
    memory_bytes: int
    job: int | None  # that has it; of several that take turns, the one that has the turn
    jobs: list[int] = []  # all that may have processes there
    used_by_others: str = ""  # name of the user; then no job gets it
    busy: float | None = None  # 0..1: the part of the last moments in which a GPU computed
    memory_used_bytes: int | None = None  # by any process; null: not reported, or a CPU slot


class NodeView(View):
    name: str
    host: str
    state: NodeCondition
    is_up: bool
    is_silent: bool
    is_drained: bool
    leaves_at_s: float | None = None  # when it must be empty; None: no time was named
    is_awaited: bool  # after a restart of the server
    lease_left_s: float | None
    slots: list[SlotView]
    used: int
    free: int
    jobs: list[int]
    python: str = ""  # version of the agent's interpreter, and of jobs that name none
    torch: str = ""  # the version installed there; empty: none, or not reported
    coddl: str = ""  # version of the agent
    parked: int = 0  # jobs without GPUs whose workers are parked there
    parked_bytes: int = 0  # host memory that these use


class ReleaseView(View):
    node: str
    within_s: float


class EngineOrdersView(View):
    """Orders for an engine."""

    acquire: int  # more nodes
    release: list[ReleaseView]


class EngineView(View):
    """What brings the nodes of the pool."""

    engine: str  # empty: nodes come by themselves
    nodes_min: int
    nodes_max: int
    slots: int  # of each node
    wanted: int
    because: str
    starting: list[str]  # nodes that were asked for and have not joined
    trouble: str  # why the engine does not answer
    notes: list[str]  # why nodes leave, or do not come
    is_connected: bool  # it has reported since the server was started


class NodesView(View):
    items: list[NodeView]
    engine: EngineView | None = None  # what brings nodes; None: they come by themselves
    problems: list[str] = []  # where nodes differ: versions, and the jobs folder


class PolicyView(View):
    policy: str
    placement: str
    since_s: float
    by: str
    trouble: TroubleView | None = None  # why the last decision failed; jobs keep their devices


class ParameterView(View):
    """A parameter of a policy or a placement."""

    name: str
    kind: str
    default: str
    meaning: str


class PluggedView(View):
    """A policy or a placement of a plug-in that the pool's operator has loaded."""

    name: str  # as /policy takes it
    summary: str
    rules: str
    parameters: list[ParameterView]


class PluginsView(View):
    """What plug-ins offer; only the operator, at the server's start, says which there are."""

    policies: list[PluggedView]
    placements: list[PluggedView]


class PolicyChange(BaseModel):
    model_config = ConfigDict(extra="forbid")

    policy: Annotated[str, Field(max_length=200)] = ""  # empty: as before
    placement: Annotated[str, Field(max_length=200)] = ""


class PoolView(View):
    """The pool in one screen."""

    id: str = ""  # identifies this pool
    slots_total: int  # of nodes that are up
    slots_used: int
    slots_free: int
    nodes: int
    nodes_up: int
    jobs: dict[str, int]  # by state
    policy: str
    version: str  # of the server
    lease_s: float
    started_s: float
    is_ready: bool
    checkpoints: str = ""  # the URI where jobs keep them; empty: the jobs folders of the nodes
    now_s: float = 0.0  # the pool's time
    time_scale: float = 1.0  # seconds of the pool's time in a second; of an emulated pool above 1


class AccessView(View):
    """What the token of a request may do."""

    access: Literal["full", "read"]


class VersionView(View):
    version: str
    protocol: int
    api: str = API


class ReadyView(View):
    ready: bool
    waits_for: list[str]  # what is missing, in words
    problems: list[str] = []  # what an operator should see to; the server decides all the same
    unsaved: list[str] = []  # of these, jobs whose state can't be saved
