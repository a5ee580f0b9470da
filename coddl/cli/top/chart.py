"""Which job held how many GPUs in the last minutes, as a stacked chart of letters in colours."""

import math
from collections.abc import Sequence
from string import ascii_lowercase
from typing import Final

from rich.text import Text

from coddl.cli.poolview import Answer, duration

# Colours that are distinct with any colour vision (Okabe and Ito); letters for all others.
COLOURS: Final = (
    "#000000 on #e69f00",
    "#000000 on #56b4e9",
    "#000000 on #009e73",
    "#000000 on #f0e442",
    "#ffffff on #0072b2",
    "#000000 on #d55e00",
    "#000000 on #cc79a7",
)
OTHERS: Final = ("+", "#000000 on #999999")  # jobs without a letter of their own
FREE: Final = ("·", "dim")
NOTHING: Final = (" ", "")
LABEL: Final = 6  # columns left of the chart

Cell = tuple[str, str]  # a character and its style


class JobMarks:
    """The letter and the colour of each job that had GPUs lately."""

    def __init__(self) -> None:
        self._letters: dict[int, str] = {}

    def name(self, spans: Sequence[Answer]) -> None:
        """Give letters to jobs, the largest first. A letter stays as long as its job is seen."""
        largest: dict[int, int] = {}
        for span in spans:
            largest[span["job"]] = max(largest.get(span["job"], 0), span["gpus"])
        self._letters = {job: each for job, each in self._letters.items() if job in largest}
        free = [each for each in ascii_lowercase if each not in self._letters.values()]
        others = sorted(largest.keys() - self._letters.keys(), key=lambda job: (-largest[job], job))
        self._letters |= dict(zip(others, free, strict=False))

    def of(self, job: int) -> Cell:
        """Return the letter of a job, and its style."""
        if letter := self._letters.get(job):
            return letter, COLOURS[ascii_lowercase.index(letter) % len(COLOURS)]
        return OTHERS


def chart_lines(timeline: Answer, marks: JobMarks, width: int, rows_max: int) -> list[Text]:
    """Draw which jobs held the GPUs: time to the right, GPUs upwards, a letter per job."""
    most = max((step["gpus"] for step in timeline["gpus"]), default=0)
    rows, columns = min(rows_max, most), max(10, width - LABEL)
    if not rows:
        return []
    window_s = timeline["until_s"] - timeline["since_s"]
    step_s = window_s / columns
    # Columns begin at whole steps, so that they do not flicker as time goes on.
    last = math.floor(timeline["until_s"] / step_s)
    moments = [(last - columns + 1 + index) * step_s for index in range(columns)]
    held = _held(timeline["spans"], moments, step_s)
    drawn = [
        _column(held[index], marks, _capacity(timeline, at_s), (most, rows))
        for index, at_s in enumerate(moments)
    ]
    lines = []
    for row in reversed(range(rows)):
        line = Text().append(f"{most if row == rows - 1 else '':>{LABEL - 1}} ", style="dim")
        for column in drawn:
            line.append(*column[row])
        lines.append(line)
    ago = f"{duration(window_s)} ago"
    return [*lines, Text(" " * LABEL + ago + "now".rjust(columns - len(ago)), style="dim")]


def _held(spans: Sequence[Answer], moments: Sequence[float], step_s: float) -> list[dict[int, int]]:
    """Return what each job held at each moment."""
    held: list[dict[int, int]] = [{} for _ in moments]
    for span in spans:
        first = math.ceil((span["from_s"] - moments[0]) / step_s)
        end = len(moments)
        if span["to_s"] is not None:
            end = min(end, math.ceil((span["to_s"] - moments[0]) / step_s))
        for index in range(max(0, first), end):
            held[index][span["job"]] = span["gpus"]
    return held


def _capacity(timeline: Answer, at_s: float) -> int:
    """Return how many GPUs there were at a moment."""
    steps = [step["gpus"] for step in timeline["gpus"] if step["at_s"] <= at_s]
    return int(steps[-1] if steps else timeline["gpus"][0]["gpus"])


def _column(
    held: dict[int, int], marks: JobMarks, capacity: int, scale: tuple[int, int]
) -> list[Cell]:
    """Return the cells of one moment, from the bottom up: each shows what is at its middle.

    `scale` is the number of GPUs that all rows stand for, and the number of rows. Jobs that take
    turns on GPUs may hold more than there are: those above the edge are not drawn.
    """
    most, rows = scale
    cells, top = list[Cell](), 0
    for job in sorted(held, key=lambda job: (marks.of(job), job)):
        top += held[job]
        while len(cells) < rows and (len(cells) + 0.5) * most / rows < top:
            cells.append(marks.of(job))
    while len(cells) < rows:
        cells.append(FREE if (len(cells) + 0.5) * most / rows < capacity else NOTHING)
    return cells
