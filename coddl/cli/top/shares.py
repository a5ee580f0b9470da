"""Which job held how many GPUs in the last minutes, by letter and colour, as a stacked chart."""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Final

from rich.text import Text

from coddl.cli.poolview import Answer, duration

# Colours that people with any colour vision tell apart (Okabe and Ito); letters for all others.
COLOURS: Final = (
    "black on #e69f00",
    "black on #56b4e9",
    "black on #009e73",
    "black on #f0e442",
    "white on #0072b2",
    "black on #d55e00",
    "black on #cc79a7",
)
OTHERS, OTHERS_STYLE = "+", "black on #999999"  # jobs without a letter of their own
FREE, FREE_STYLE = "·", "dim"
KNOWN_FOR_S: Final = 30.0  # a share that was not seen for longer is not drawn
GRID_S: Final = 5.0
LABEL: Final = 5  # columns left of the chart


@dataclass(frozen=True, slots=True)
class Shares:
    """How many GPUs each job has at one moment, of how many."""

    at_s: float
    total: int
    gpus: Mapping[int, float]


def shares_of(jobs: Sequence[Answer], total: int, at_s: float) -> Shares:
    """Give what jobs hold; jobs that take turns on a GPU have equal parts of it."""
    gpus = {
        job["id"]: job["gpus"] / (1 + len(job["turns"]["jobs"]) if job.get("turns") else 1)
        for job in jobs
        if job["gpus"]
    }
    return Shares(at_s, total, gpus)


class ShareHistory:
    """Shares of the last minutes, and the letter of each job that had some."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self.letters: dict[int, str] = {}
        self._samples: deque[Shares] = deque()

    def note(self, shares: Shares) -> None:
        """Add what is held now."""
        self._samples.append(shares)
        while self._samples[0].at_s < shares.at_s - self.window_s:
            self._samples.popleft()
        self._name_jobs()

    def fill(self, spans: Sequence[Answer], total: int, now_s: float) -> None:
        """Add what the server tells of the time before the first sample, or since the last."""
        begin_s = self._samples[-1].at_s if self._samples else now_s - self.window_s
        for index in range(1, math.ceil((now_s - begin_s) / GRID_S)):
            at_s = begin_s + index * GRID_S
            held = [span for span in spans if _covers(span, at_s)]
            self.note(Shares(at_s, total, {span["job"]: span["gpus"] for span in held}))

    def at(self, at_s: float) -> Shares | None:
        """Give what was held at a moment; None: it is not known."""
        index = bisect_right(self._samples, at_s, key=lambda shares: shares.at_s) - 1
        if index < 0 or self._samples[index].at_s < at_s - KNOWN_FOR_S:
            return None
        return self._samples[index]

    @property
    def total_max(self) -> int:
        return max((shares.total for shares in self._samples), default=0)

    def _name_jobs(self) -> None:
        """Give letters to jobs, the largest first. A letter stays as long as its job is seen."""
        seen: dict[int, float] = {}
        for shares in self._samples:
            for job, gpus in shares.gpus.items():
                seen[job] = max(seen.get(job, 0.0), gpus)
        self.letters = {job: letter for job, letter in self.letters.items() if job in seen}
        free = [each for each in ascii_lowercase if each not in self.letters.values()]
        nameless = sorted(seen.keys() - self.letters.keys(), key=lambda job: (-seen[job], job))
        self.letters |= dict(zip(nameless, free, strict=False))

    def mark(self, job: int) -> tuple[str, str]:
        """Give the letter of a job, and its style."""
        if letter := self.letters.get(job):
            return letter, COLOURS[ascii_lowercase.index(letter) % len(COLOURS)]
        return OTHERS, OTHERS_STYLE


def _covers(span: Answer, at_s: float) -> bool:
    return bool(span["from_s"] <= at_s and (span["to_s"] is None or at_s < span["to_s"]))


def chart_lines(history: ShareHistory, now_s: float, width: int, rows_max: int) -> list[Text]:
    """Draw who held the GPUs: time to the right, GPUs upwards, a letter and a colour per job."""
    total = history.total_max
    columns = max(10, width - LABEL)
    step_s = history.window_s / columns
    rows = min(rows_max, total)
    if not rows:
        return []
    newest_s = math.ceil(now_s / step_s) * step_s  # so that columns stay whole as time goes on
    drawn = [
        _column(history, newest_s - step_s * (columns - 1 - index), total, rows)
        for index in range(columns)
    ]
    lines = []
    for row in reversed(range(rows)):
        line = Text(f"{total if row == rows - 1 else '':>{LABEL - 1}} ", style="dim")
        for column in drawn:
            line.append(*column[row])
        lines.append(line)
    ago = f"{duration(history.window_s)} ago"
    return [*lines, Text(" " * LABEL + ago + "now".rjust(columns - len(ago)), style="dim")]


def _column(history: ShareHistory, at_s: float, total: int, rows: int) -> list[tuple[str, str]]:
    """Give the cells of one moment, from the bottom up; each shows what is at its middle."""
    shares = history.at(at_s)
    if shares is None:
        return [(" ", "")] * rows
    cells, top = list[tuple[str, str]](), 0.0
    for job in sorted(shares.gpus, key=lambda job: (history.mark(job), job)):
        top += shares.gpus[job]
        mark = history.mark(job)
        while len(cells) < rows and (len(cells) + 0.5) * total / rows < top:
            cells.append(mark)
    while len(cells) < rows:
        is_there = (len(cells) + 0.5) * total / rows < shares.total
        cells.append((FREE, FREE_STYLE) if is_there else (" ", ""))
    return cells
