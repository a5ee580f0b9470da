"""How the demo looks: shares over time in a terminal, plain lines elsewhere."""

import contextlib
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from coddl.cli.demo.history import DemoHistory, DemoJob
from coddl.cli.poolview import LEVELS, STYLES, counted

WAITS: Final = "·"
SPAN_S: Final = 60.0  # of time that is shown at least
LINES: Final = 6
BAR: Final = 10
NAME: Final = 8
STATE: Final = 10


class DemoDisplay(Protocol):
    """Shows how the demo goes."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def show(self, history: DemoHistory, new: Sequence[tuple[float, str, str]]) -> None: ...


class NoDisplay:
    """Shows nothing: a program reads the summary."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None: ...
    def show(self, history: DemoHistory, new: Sequence[tuple[float, str, str]]) -> None: ...


class LineDisplay(NoDisplay):
    """Prints what is new, a line each."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, history: DemoHistory, new: Sequence[tuple[float, str, str]]) -> None:  # noqa: ARG002
        for at_s, name, what in new:
            self._console.print(f"{at_s:6.1f} s  {name:{NAME}} {what}", soft_wrap=True)


class TerminalDisplay:
    """Redraws the whole screen in place."""

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

    def show(self, history: DemoHistory, new: Sequence[tuple[float, str, str]]) -> None:  # noqa: ARG002
        lines = list(screen(history, self._console.width))
        for line in lines:
            line.truncate(self._console.width, overflow="ellipsis")
        self._live.update(Group(*lines), refresh=True)


def screen(history: DemoHistory, width: int) -> Iterator[Text]:
    """Draw all of it: a row per job, its reason below, and what happened last."""
    about = f"  {history.gpus} {history.kind}, policy {history.policy}, {history.now_s:.0f} s"
    yield Text.assemble(("CoDDL demo", "bold"), (about, "dim"))
    columns = max(10, min(60, width - NAME - history.gpus - STATE - BAR - 12))
    span_s = max(SPAN_S, history.now_s)
    scale = f"share over time, {span_s / columns:.1f} s per column".ljust(columns)[:columns]
    now = "now".ljust(history.gpus)
    yield Text(f"{'':{NAME}}  {scale}  {now}  {'state':{STATE}} progress", style="dim")
    for part in history.parts:
        yield _row(history, part, columns, span_s)
        yield Text(f"{'':{NAME}}  {_below(part)}", style="dim")
    yield Text()
    styles = {part.scheduled.name: part.scheduled.style for part in history.parts}
    for at_s, name, what in history.lines[-LINES:]:
        yield Text.assemble((f"{at_s:6.1f} s  ", "dim"), (f"{name:{NAME}} ", styles[name]), what)


def _below(part: DemoJob) -> str:
    """Return why a job has what it has; how it went, when it is over."""
    if not part.is_over:
        return str(part.job["reason"])
    took_s, resizes = part.job["jct_s"] or 0.0, counted(len(part.pauses_s), "resize")
    return f"finished {took_s:.1f} s after its submission, with {resizes}"


def _row(history: DemoHistory, part: DemoJob, columns: int, span_s: float) -> Text:
    job, style = part.job, part.scheduled.style
    held = 0 if part.is_over else int(job["gpus"])
    done = 1.0 if job["state"] == "SUCCEEDED" else job["progress"] or 0.0
    full = round(done * BAR)
    return Text.assemble(
        (f"{part.scheduled.name:{NAME}}  ", f"bold {style}"),
        (timeline(part, history, columns, span_s) + "  ", style),
        ("■" * held, style),
        ("□" * (history.gpus - held) + "  ", "dim"),
        (f"{job['state']:{STATE}} ", STYLES.get(job["state"], "")),
        ("━" * full, style),
        ("━" * (BAR - full), "dim"),
        f" {done:4.0%}",
    )


def timeline(part: DemoJob, history: DemoHistory, columns: int, span_s: float) -> str:
    """Draw a job's share: its height, a dot while it waits, nothing before and after."""
    cells = []
    for column in range(columns):
        at_s = (column + 1) * span_s / columns
        past = [sample for sample in part.samples if sample.at_s < at_s]
        is_future = at_s - span_s / columns > history.now_s
        gpus = past[-1].gpus if past and not is_future else None
        if gpus is None:
            cells.append(" ")
        else:
            level = round(gpus / history.gpus * len(LEVELS)) - 1
            cells.append(LEVELS[max(0, level)] if gpus else WAITS)
    return "".join(cells)
