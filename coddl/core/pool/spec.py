"""What a user asks for: a job, as the pool keeps it. Checked where it enters (`coddl.api.spec`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Tier = Literal["elastic", "restartable", "opaque"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a job's processes are started; the pool itself never looks into it."""

    argv: tuple[str, ...]  # elastic: a Python script and its arguments; else: any command
    python: str = ""  # interpreter of an elastic job; empty: the agent's own
    env: Mapping[str, str] = field(default_factory=dict)
    code: str = ""  # hash of the submitted folder; empty: nothing was submitted
    folder: str = "."  # where to start, within the submitted folder
    precheck: tuple[str, ...] = ()  # a command that must succeed on one device first
    grace_s: float = 30.0  # between the notice to leave and the end
    checkpoint_every_s: float = 60.0
    start_within_s: float = 7200.0  # from its devices to the first step: it may prepare data
    watchdog_s: float = 1800.0  # after which a worker whose loop is silent is replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job as it was accepted."""

    name: str
    launch: Launch
    user: str = ""
    tier: Tier = "elastic"
    gpus_min: int = 1
    gpus_max: int = 1  # of a job that is not elastic: the same as gpus_min
    priority: int = 0  # jobs of a higher one are served first
    group: str = ""  # of its user's: the jobs of a search are one app to policies that count apps
    weight: float = 1.0  # slices of time that its turn lasts, with policies that take turns
    step_s: Mapping[int, float] = field(default_factory=dict)  # seconds an iteration takes, by GPUs
    max_failures: int = 0  # of its own, after which it is tried again
    uid: str = ""  # of all jobs of all pools; empty: submitted to a version that gave none
    gpus_requested: int = 0  # what policies give it that resize no jobs; 0: its maximum

    @property
    def is_elastic(self) -> bool:
        """Return whether it may be resized while it runs, once it has called `coddl.prepare`."""
        return self.tier == "elastic"

    def request_within(self, least: int, most: int) -> int:
        """Return how many GPUs it asks for, as far as these bounds allow it."""
        return max(least, min(self.gpus_requested or most, most))
