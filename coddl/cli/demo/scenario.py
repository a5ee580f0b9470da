"""The demo's jobs: when each is submitted, and how much it gains from more devices."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

SCRIPTS: Final = Path(__file__).with_name("scripts")
SCRIPT: Final = "train.py"
PARTS: Final = 8  # of a batch, of 8 samples each


@dataclass(frozen=True, slots=True)
class StepProfile:
    """How the time of a step depends on the number of GPUs."""

    shared_s: float  # per part: more devices share them
    serial_s: float  # per step: more devices don't shorten it

    def step_s(self, gpus: int) -> float:
        """Seconds that a step takes at least; batches are cut by sample, so evenly."""
        return PARTS / gpus * self.shared_s + self.serial_s


LINEAR: Final = StepProfile(0.020, 0.0)
FAIR: Final = StepProfile(0.015, 0.04)  # on four devices 2.3 times as fast as on one
POOR: Final = StepProfile(0.012, 0.07)  # 1.8 times
FLAT: Final = StepProfile(0.0, 0.15)
SHORT: Final = StepProfile(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class ScheduledJob:
    """A job, and when it is submitted."""

    at_s: float
    name: str
    steps: int
    kind: StepProfile
    style: str  # its colour
    gpus_max: int = 4

    def request(self, gpus: int, user: str) -> dict[str, object]:
        """Return the request that submits the job to a pool with `gpus` devices."""
        return {
            "name": self.name,
            "user": user,
            "script": SCRIPT,
            "args": [str(self.steps), str(self.kind.shared_s), str(self.kind.serial_s)],
            "gpus": {"min": 1, "max": min(self.gpus_max, gpus)},
        }


# Runs before the demo: its workers are warm when the others are submitted.
WARM_UP_JOB: Final = ScheduledJob(0.0, "rehearsal", 16, SHORT, "")
SCHEDULED_JOBS: Final = (
    ScheduledJob(0.0, "resnet", 256, LINEAR, "cyan"),
    ScheduledJob(3.0, "recsys", 112, FLAT, "magenta"),
    ScheduledJob(7.0, "vit", 64, FAIR, "green"),
    ScheduledJob(11.0, "bert", 192, FAIR, "yellow"),
    ScheduledJob(18.0, "gan", 48, FAIR, "blue"),
    ScheduledJob(24.0, "lstm", 80, POOR, "red"),
)
