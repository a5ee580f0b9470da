"""What an engine reports to the pool over REST: which nodes it has, and how many it may have."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class EngineNodeReport(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    state: Literal["starting", "up", "releasing"]
    leaves_in_s: float | None = None  # when the engine takes it away
    expires_in_s: float | None = None  # the same, and another one can come before that
    because: Annotated[str, Field(max_length=500)] = ""


class EngineReport(BaseModel):
    """All that an engine has for this pool, and within which bounds."""

    model_config = ConfigDict(extra="forbid")

    engine: Annotated[str, Field(min_length=1, max_length=32)]
    nodes_min: Annotated[int, Field(ge=0, le=10_000)]
    nodes_max: Annotated[int, Field(ge=0, le=10_000)]
    slots: Annotated[int, Field(ge=1, le=1024)]  # of each node
    start_s: Annotated[float, Field(ge=0)] = 60.0
    idle_s: Annotated[float, Field(ge=0)] = 300.0
    nodes: Annotated[list[EngineNodeReport], Field(max_length=10_000)] = []
    ended: Annotated[list[str], Field(max_length=10_000)] = []  # nodes, with all their processes
    trouble: Annotated[str, Field(max_length=500)] = ""  # why the engine does not answer
    notes: Annotated[list[str], Field(max_length=100)] = []  # why nodes leave, or do not come
