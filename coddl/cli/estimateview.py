"""Estimates as people see them: a table, time lines, and a sentence on which is fastest."""

from collections.abc import Sequence
from math import hypot
from typing import Final, Literal, NamedTuple

from rich.text import Text

from coddl.cli.estimateinput import EstimateInput
from coddl.cli.poolview import counted, show, table
from coddl.core.speed.adjustment import predicted_step
from coddl.core.speed.live import REMEMBERED_SD, StepEvidence
from coddl.core.speed.replay import Arrangement, StepTimeline, What

COLUMNS: Final = 60  # of a time line
ALIKE: Final = 0.05  # steps that differ by less count as equally long
ADJUSTED: Final = 0.01  # a step that differs from its replay by more is shown next to it
ROWS: Final[dict[str, tuple[What, ...]]] = {
    "data": ("data",),
    "earlier passes": ("passes",),
    "forward": ("forward",),
    "backward": ("backward",),
    "exchange": ("exchange", "gather"),
    "update": ("update",),
    "other": ("other",),
}
MARKS: Final = "#="  # of spans that follow each other


Source = Literal["measured", "remembered", "estimated"]


class ShownEstimate(NamedTuple):
    """An arrangement, and a step there."""

    arrangement: Arrangement
    timeline: StepTimeline  # as replayed from the profile
    step_s: float  # adjusted by what was measured
    relative_sd: float
    speedup: float | None  # over one worker; None: that can't be estimated
    source: Source

    @property
    def samples_per_s(self) -> float:
        """Samples of all workers in a second."""
        return self.timeline.batch / self.step_s


class FailedEstimate(NamedTuple):
    """An arrangement that can't be estimated."""

    arrangement: Arrangement
    because: str


Row = ShownEstimate | FailedEstimate


def shown_estimate(
    arrangement: Arrangement,
    timeline: StepTimeline,
    evidence: StepEvidence,
    alone: ShownEstimate | None,
) -> ShownEstimate:
    """Adjust a step by what was measured, and compare it with that of one worker."""
    guess = evidence.adjusted(predicted_step(arrangement, timeline))
    is_one = arrangement.workers == 1
    alone_s = guess.step_s if is_one else alone.step_s if alone is not None else None
    source: Source = "estimated"
    if guess.known_by == "measured":
        source = "remembered" if guess.relative_sd == REMEMBERED_SD else "measured"
    speedup = None if alone_s is None else alone_s / guess.step_s
    return ShownEstimate(arrangement, timeline, guess.step_s, guess.relative_sd, speedup, source)


def fastest(rows: Sequence[Row]) -> ShownEstimate:
    """Return the fastest of those that could be estimated; there is one."""
    return min(_shown(rows), key=lambda each: each.step_s)


def _shown(rows: Sequence[Row]) -> list[ShownEstimate]:
    return [each for each in rows if isinstance(each, ShownEstimate)]


def warnings(given: EstimateInput, rows: Sequence[Row]) -> list[str]:
    """Return which arrangements have more workers than the links were inspected with."""
    found: dict[str, list[str]] = {}
    for each in _shown(rows):
        if name := given.extrapolated(each.arrangement.on_nodes):
            found.setdefault(name, []).append(str(each.arrangement))
    links = {str(name): link for name, link in given.links.items()}
    return [
        f"{', '.join(which)}: more workers than the link {name} was inspected with "
        f"({max(links[name].workers)}), so the time of the exchange is extrapolated"
        for name, which in found.items()
    ]


def show_estimates(given: EstimateInput, rows: Sequence[Row], asked: int) -> None:
    """Print the table; for the last ones, which were asked for, time lines and which is fastest."""
    training = given.training
    head = [f"{training.device}, batch {training.batch} · {given.about_links}"]
    show([Text(line) for line in [*head, given.about_measured] if line])
    show([Text()])
    show(table([_row(each, bool(given.about_measured)) for each in rows]))
    show([Text(f"warning: {each}", style="yellow") for each in warnings(given, rows)])
    if not asked:
        return
    for each in _shown(rows[-asked:]):
        show([Text(), *timeline_lines(each)])
    compared = _shown(rows[-asked:] if asked > 1 else rows)
    if len(compared) > 1:
        show([Text(), Text(verdict(compared))])


def _row(each: Row, has_source: bool) -> dict[str, str]:
    where = {
        "ON": str(each.arrangement),
        "WORKERS": str(each.arrangement.workers),
        "NODES": str(each.arrangement.nodes),
    }
    if isinstance(each, FailedEstimate):
        names = ("STEP", "±", "SAMPLES/S", "SPEEDUP", "PASSES", *["SOURCE"] * has_source)
        return where | dict.fromkeys(names, "-") | {"BOUND BY": f"not estimated: {each.because}"}
    timeline = each.timeline
    return {
        **where,
        "STEP": seconds(each.step_s),
        "±": f"{each.relative_sd:.0%}",
        "SAMPLES/S": f"{each.samples_per_s:,.1f}",
        "SPEEDUP": f"{each.speedup:.2f}x" if each.speedup is not None else "-",
        "PASSES": str(timeline.passes),
        **({"SOURCE": each.source} if has_source else {}),
        "BOUND BY": timeline.bound_by,
    }


def timeline_lines(each: ShownEstimate) -> list[Text]:
    """Draw what happens when in a step; where spans follow each other they alternate."""
    timeline = each.timeline
    where = f"{each.arrangement}: {described_place(each.arrangement)}"
    head = f"{where}, {seconds(each.step_s)} a step"
    if abs(each.step_s / timeline.step_s - 1.0) > ADJUSTED:
        head += f" ({each.source}; {seconds(timeline.step_s)} as replayed from its profile)"
    lines = [Text(head, style="bold")]
    per_column_s = timeline.step_s / COLUMNS
    for name, kinds in ROWS.items():
        spans = [
            span for span in timeline.spans if span.what in kinds and span.end_s > span.begin_s
        ]
        if not spans:
            continue
        drawn = [" "] * COLUMNS
        for at, span in enumerate(spans):
            begin = min(round(span.begin_s / per_column_s), COLUMNS - 1)
            end = max(begin + 1, round(span.end_s / per_column_s))
            drawn[begin:end] = MARKS[at % 2] * (min(end, COLUMNS) - begin)
        lines.append(Text(f"  {name:<15}|{''.join(drawn)}| {seconds(timeline.total_s(*kinds))}"))
    return lines  # fmt: skip


def verdict(compared: Sequence[ShownEstimate]) -> str:
    """Say in words which arrangement is fastest, and by how much."""
    best, *others = sorted(compared, key=lambda each: each.step_s)
    second = others[0]
    ratio = second.step_s / best.step_s
    if ratio < 1.0 + ALIKE:
        fewer = min(best, second, key=lambda each: each.arrangement.workers)
        text = f"{best.arrangement} and {second.arrangement} are about equally fast"
        if best.arrangement.workers != second.arrangement.workers:
            text += f"; {fewer.arrangement} takes fewer workers"
    else:
        text = (
            f"{best.arrangement} is fastest: {described_place(best.arrangement)} make "
            f"{ratio:.2f}x as many samples per second as {described_place(second.arrangement)}"
        )
    uncertain = hypot(best.relative_sd, second.relative_sd)
    if 1.0 + ALIKE <= ratio < 1.0 + uncertain:
        text += f". The difference is within the uncertainty of the two estimates, {uncertain:.0%}"
    alone = " One worker alone is faster." if (best.speedup or 1.0) < 1.0 else ""
    return f"{text}.{alone}"


def described_place(arrangement: Arrangement) -> str:
    """Write an arrangement in words."""
    nodes = "one node" if arrangement.nodes == 1 else f"{arrangement.nodes} nodes"
    return f"{counted(arrangement.workers, 'worker')} on {nodes}"


def seconds(value: float) -> str:
    """Write a short time with three digits."""
    factor, unit = next(
        (each for each in ((1.0, "s"), (1e3, "ms")) if value * each[0] >= 0.9995), (1e6, "µs")
    )
    digits = value * factor
    return f"{digits:.3g} {unit}" if digits < 999.5 else f"{digits:,.0f} {unit}"
