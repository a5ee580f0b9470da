"""What REST is asked and answers of a replay of the pool's journal under other policies."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from coddl.api.rest import TroubleView, View


class WhatIfRequest(BaseModel):
    """Which policies, and pools of which size, to try on the jobs that were recorded."""

    model_config = ConfigDict(extra="forbid")

    policies: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200)]],
        Field(max_length=8, description="As `/policy` takes them; none: a few that are usual."),
    ] = []
    gpus: Annotated[
        list[Annotated[int, Field(ge=1, le=100_000)]],
        Field(max_length=8, description="GPUs of the pool; none: as it was."),
    ] = []
    since_s: Annotated[
        float | None,
        Field(ge=0, description="Only what happened since then (seconds since 1970)."),
    ] = None


class WhatIfStartedView(View):
    id: str


class JctView(View):
    """Job completion times, in seconds."""

    mean: float | None
    median: float | None
    p95: float | None
    p99: float | None


class LeftOutView(View):
    """Jobs that were recorded and can't be replayed."""

    count: int
    why: str


class RecordedRunView(View):
    """What has happened, as the journal records it."""

    policy: str
    gpus: int
    jct_s: JctView
    makespan_s: float | None
    utilisation: float | None
    resizes: int | None


class WhatIfRunView(RecordedRunView):
    """What would have happened."""

    is_replay: bool  # the recorded policy and GPUs: it shows how far replays can be trusted
    mean_against_recorded: float | None  # mean completion time, as a multiple of the recorded one
    mean_against_replay: float | None  # the same, of the replay of the recorded policy


class ReplayErrorView(View):
    """How far the replay of the recorded policy is from what has happened."""

    mean_jct_error: float | None
    median_job_error: float | None
    within_5_percent: float | None  # part of the jobs


class WhatIfResultView(View):
    """What `coddl whatif -o json` prints."""

    since_s: float | None
    until_s: float | None
    jobs: int
    left_out: list[LeftOutView]
    recorded: RecordedRunView
    runs: list[WhatIfRunView]
    replay: ReplayErrorView
    sentence: str


class WhatIfView(View):
    """How a replay is doing, or what has come of it."""

    state: Literal["running", "done", "failed"]
    progress: float | None  # 0..1; null: not reported
    trouble: TroubleView | None
    result: WhatIfResultView | None
