"""What an experiment is: a claim, the runs that test it, and what differs in the set-up."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from coddl.core.errors import UserError

Points: TypeAlias = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, as published and as found."""

    what: str
    published: str  # "": nothing was published, the number is for comparison
    ours: str


@dataclass(frozen=True, slots=True)
class Plot:
    """The picture of a finding: lines of (x, y), or bars with a value for each category.

    Where values are means over seeds, `errors` are half the widths of their 95 % intervals. `marks`
    are (x, y, text) on a line.
    """

    title: str
    x: str
    y: str
    lines: Mapping[str, Points] = field(default_factory=dict)
    bars: Mapping[str, Sequence[float]] = field(default_factory=dict)  # series -> by category
    categories: Sequence[str] = ()
    errors: Mapping[str, Sequence[float]] = field(default_factory=dict)  # series -> half the width
    marks: Mapping[str, Sequence[tuple[float, float, str]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Details:
    """The numbers behind the figures."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Finding:
    """What an experiment has found."""

    figures: tuple[Figure, ...]
    plot: Plot
    notes: tuple[str, ...] = ()  # sentences on how to read the figures
    details: Details | None = None


class MissingData(UserError):
    """Measured data that an experiment needs is not available."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What an experiment may use."""

    data: Path | None = None  # a folder with philly/, t4_placements/, k80_p100_v100/
    seeds: int = 3

    def folder(self, name: str) -> Path:
        """A folder of the data; an error says what is missing."""
        if self.data is None or not (self.data / name).is_dir():
            raise MissingData(
                "the experiment cannot be run",
                f"there is no folder {name} with measured data"
                + (f" in {self.data}" if self.data is not None else ""),
                "--data DIR, with philly/, t4_placements/ and k80_p100_v100/ in it",
            )
        return self.data / name


@dataclass(frozen=True, slots=True)
class Experiment:
    """A claim that can be tried."""

    name: str  # as in `coddl reproduce NAME`
    title: str
    source: str  # where the claim is made
    differs: str  # how our set-up differs from the published one
    run: Callable[[Inputs], Finding]
    needs: Literal["", "philly", "t4_placements", "k80_p100_v100"] = ""  # measured data
