"""How the demo looks: shares over time in a terminal, plain lines elsewhere."""

import contextlib
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from coddl.cli.demo.playbill import Part, Playbill
from coddl.cli.poolview import STYLES, counted

LEVELS: Final = "▁▂▃▄▅▆▇█"
WAITS: Final = "·"
SPAN_S: Final = 60.0  # of time that is shown at least
LINES: Final = 6
BAR: Final = 10
NAME: Final = 8
STATE: Final = 10


class Stage(Protocol):
    """Shows how the demo goes."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def show(self, bill: Playbill, new: Sequence[tuple[float, str, str]]) -> None: ...


class Curtain:
    """Shows nothing: a program reads the summary."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None: ...
    def show(self, bill: Playbill, new: Sequence[tuple[float, str, str]]) -> None: ...


class Reader(Curtain):
    """Prints what is new, a line each."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, bill: Playbill, new: Sequence[tuple[float, str, str]]) -> None:  # noqa: ARG002
        for at_s, who, what in new:
            self._console.print(f"{at_s:6.1f} s  {who:{NAME}} {what}", soft_wrap=True)


class Theatre:
    """Draws the picture again and again, in the same place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            self._live.__exit__(kind, error, trace)

    def show(self, bill: Playbill, new: Sequence[tuple[float, str, str]]) -> None:  # noqa: ARG002
        lines = list(picture(bill, self._console.width))
        for line in lines:
            line.truncate(self._console.width, overflow="ellipsis")
        self._live.update(Group(*lines), refresh=True)


def picture(bill: Playbill, width: int) -> Iterator[Text]:
    """Draw all of it: a row per job, its reason below, and what happened last."""
    about = f"  {bill.gpus} {bill.kind}, shared by {bill.policy}, {bill.now_s:.0f} s"
    yield Text.assemble(("CoDDL demo", "bold"), (about, "dim"))
    columns = max(10, min(60, width - NAME - bill.gpus - STATE - BAR - 12))
    span_s = max(SPAN_S, bill.now_s)
    scale = f"share over time, a column is {span_s / columns:.1f} s".ljust(columns)[:columns]
    now = "now".ljust(bill.gpus)
    yield Text(f"{'':{NAME}}  {scale}  {now}  {'state':{STATE}} progress", style="dim")
    for part in bill.parts:
        yield _row(bill, part, columns, span_s)
        yield Text(f"{'':{NAME}}  {_below(part)}", style="dim")
    yield Text()
    styles = {part.act.name: part.act.style for part in bill.parts}
    for at_s, who, what in bill.lines[-LINES:]:
        yield Text.assemble((f"{at_s:6.1f} s  ", "dim"), (f"{who:{NAME}} ", styles[who]), what)


def _below(part: Part) -> str:
    """Say why a job has what it has; how it went, when it is over."""
    if not part.is_over:
        return str(part.job["reason"])
    took_s, resizes = part.job["jct_s"] or 0.0, counted(len(part.pauses_s), "resize")
    return f"took {took_s:.1f} s from its submission to its end, with {resizes}"


def _row(bill: Playbill, part: Part, columns: int, span_s: float) -> Text:
    job, style = part.job, part.act.style
    held = 0 if part.is_over else int(job["gpus"])
    done = 1.0 if job["state"] == "SUCCEEDED" else job["progress"] or 0.0
    full = round(done * BAR)
    return Text.assemble(
        (f"{part.act.name:{NAME}}  ", f"bold {style}"),
        (timeline(part, bill, columns, span_s) + "  ", style),
        ("■" * held, style),
        ("□" * (bill.gpus - held) + "  ", "dim"),
        (f"{job['state']:{STATE}} ", STYLES.get(job["state"], "")),
        ("━" * full, style),
        ("━" * (BAR - full), "dim"),
        f" {done:4.0%}",
    )


def timeline(part: Part, bill: Playbill, columns: int, span_s: float) -> str:
    """Draw a job's share: its height, a dot while it waits, nothing before and after."""
    cells = []
    for column in range(columns):
        at_s = (column + 1) * span_s / columns
        past = [sample for sample in part.samples if sample.at_s < at_s]
        is_future = at_s - span_s / columns > bill.now_s
        gpus = past[-1].gpus if past and not is_future else None
        if gpus is None:
            cells.append(" ")
        else:
            level = round(gpus / bill.gpus * len(LEVELS)) - 1
            cells.append(LEVELS[max(0, level)] if gpus else WAITS)
    return "".join(cells)
