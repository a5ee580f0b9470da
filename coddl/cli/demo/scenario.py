"""What is shown: which jobs come when."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

SCRIPTS: Final = Path(__file__).with_name("scripts")


@dataclass(frozen=True, slots=True)
class Act:
    """A job, and when it is handed in."""

    at_s: float
    name: str
    script: str
    steps: int
    pause_s: float  # per micro-batch where it scales, per step where it does not
    gpus_max: int
    style: str  # its colour

    @property
    def kind(self) -> str:
        """What its steps are like."""
        return f"{self.script} {self.pause_s}"

    def request(self, gpus: int, user: str) -> dict[str, object]:
        """Give the job as it is handed in to a pool of so many devices."""
        return {
            "name": self.name,
            "user": user,
            "script": self.script,
            "args": [str(self.steps), str(self.pause_s)],
            "gpus": {"min": 1, "max": min(self.gpus_max, gpus)},
        }


ACTS: Final = (
    Act(0.0, "resnet", "scales.py", 320, 0.02, 4, "cyan"),
    Act(4.0, "recsys", "stalls.py", 96, 0.15, 4, "magenta"),
    Act(8.0, "vit", "scales.py", 96, 0.02, 4, "green"),
    Act(14.0, "bert", "scales.py", 224, 0.02, 4, "yellow"),
    Act(22.0, "gan", "scales.py", 64, 0.02, 4, "blue"),
    Act(30.0, "lstm", "scales.py", 112, 0.02, 2, "red"),
)
