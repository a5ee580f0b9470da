"""The input of an emulated pool: its settings, in a file of its state folder, and its jobs.

The settings are there for the server, which has the pool's clock from them, and for the process
that hosts the emulated nodes. A job names its model and how many iterations it trains for.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from coddl.core.errors import UserError
from coddl.core.time_scale import TimeScale

FILE: Final = "emulation.json"  # in the state folder
INTERPRETER: Final = "emulated"  # what an emulated node tells in place of Python's version
SCRIPT: Final = "emulated"  # what an emulated job runs, by its own account
TRY: Final = "coddl replay jobs.csv, which submits jobs that can be emulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """The settings of an emulated pool."""

    cluster: str  # its nodes: a short form, or the whole path of a file
    clock: TimeScale
    speeds: str = ""  # whole path of a file or folder with speeds; empty: those in the package
    reconfigure: str = "none"  # what it costs a job to change its GPUs

    def write(self, folder: Path) -> None:
        """Keep the settings in a state folder."""
        half = folder / f"{FILE}.tmp"
        half.write_text(json.dumps(asdict(self), indent=2) + "\n", "utf-8")
        half.replace(folder / FILE)


def emulation_in(folder: Path) -> Emulation | None:
    """Read the settings of the pool of a state folder; None: it is not emulated."""
    try:
        about = json.loads((folder / FILE).read_text("utf-8"))
        return Emulation(**{**about, "clock": TimeScale(**about["clock"])})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        because = error.strerror if isinstance(error, OSError) else "it does not say what it should"
        raise UserError(
            f"{folder / FILE} can't be read", f"{because}", "another --state-dir"
        ) from None


@dataclass(frozen=True, slots=True)
class EmulatedJob:
    """What a job of an emulated pool trains, and for how long."""

    model: str  # by its name in the speeds
    iterations: float

    @property
    def args(self) -> list[str]:
        """Return the arguments that say so."""
        return ["--model", self.model, "--iterations", repr(self.iterations)]

    @classmethod
    def of(cls, argv: tuple[str, ...]) -> Self:
        """Read what a job runs; raises UserError if it does not say what to emulate."""
        match argv:
            case (_, "--model", model, "--iterations", iterations):
                try:
                    found = cls(model, float(iterations))
                except ValueError:
                    found = cls(model, 0.0)
                if 0.0 < found.iterations < float("inf"):
                    return found
                because = f'"{iterations}" is not a number of iterations above 0'
            case _:
                because = f"{argv[0]} does not say which model it trains, and for how long"
        raise UserError("the job can't be emulated", because, TRY)
