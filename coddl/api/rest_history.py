"""What REST answers of the past: which GPUs jobs held, what they logged, what was decided."""

from coddl.api.rest import View


class CapacityView(View):
    """How many GPUs the pool has had from a moment on."""

    at_s: float
    gpus: int  # of nodes that were up


class SpanView(View):
    """A time for which a job held a number of GPUs."""

    job: int
    name: str
    gpus: int
    from_s: float
    to_s: float | None  # null: it holds them still
    paused_s: float | None  # of the resize that began it; null: unknown, or it is a start


class TimelineView(View):
    """Which job held how many GPUs, and when."""

    since_s: float
    until_s: float
    gpus: list[CapacityView]  # in steps; the first one holds at `since_s`
    spans: list[SpanView]  # that overlap the interval, by their begin
    truncated: bool = False  # there were more spans, which were older


class SeriesView(View):
    """A number that a job has logged over time."""

    name: str
    step: list[int]
    at_s: list[float]
    value: list[float | None]  # null: it was NaN or infinite


class MetricsView(View):
    """What a job has logged, by name; and `step_s` and `samples_per_s`, as they were measured."""

    series: list[SeriesView]


class ShareChangeView(View):
    """A job whose share a decision has changed."""

    job: int
    name: str
    gpus_before: int
    gpus: int
    reason: str


class DecisionView(View):
    """A decision: what led to it, and what it changed."""

    number: int  # of its record
    at_s: float
    policy: str
    cause: str
    changes: list[ShareChangeView]
    waiting: int | None  # jobs that it left without GPUs; null: not recorded
    trouble: str | None = None  # why it failed; jobs keep what they hold


class DecisionsView(View):
    items: list[DecisionView]
    next: int | None  # `before` of the next page


class SeenJobView(View):
    """What a decision knew of a job."""

    job: int
    name: str
    gpus_min: int
    gpus_max: int
    gpus: int  # that it held
    gpus_after: int  # that it was to hold from then on
    remaining_iterations: int | None  # null: unknown
    attained_gpu_s: float | None  # when its numbers were last recorded; null: not recorded
    reason: str  # for its share, or why it waits; empty: as before


class SeenView(View):
    """What a policy saw when it decided."""

    now_s: float
    gpus_total: int  # that jobs could have
    jobs: list[SeenJobView]


class DecisionDetailView(DecisionView):
    saw: SeenView | None  # null: it failed, and what it saw is not recorded
