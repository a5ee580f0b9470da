"""Estimates as people see them: a table, time lines, and a sentence on which is fastest."""

from collections.abc import Sequence
from math import hypot
from typing import Final, NamedTuple

from rich.text import Text

from coddl.cli.poolview import counted, show, table
from coddl.core.speed.adjustment import MeasuredStep, adjusted, predicted_step
from coddl.core.speed.profile import TrainingProfile
from coddl.core.speed.replay import Arrangement, StepTimeline, What

COLUMNS: Final = 60  # of a time line
ALIKE: Final = 0.05  # steps that differ by less count as equally long
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


class ShownEstimate(NamedTuple):
    """An arrangement, and a step there."""

    arrangement: Arrangement
    timeline: StepTimeline
    relative_sd: float
    speedup: float  # over one worker


def shown_estimate(
    arrangement: Arrangement, timeline: StepTimeline, alone: ShownEstimate | None
) -> ShownEstimate:
    """Put a step beside that of one worker."""
    alone_s = timeline.step_s if alone is None else alone.timeline.step_s
    predicted = predicted_step(arrangement, timeline)
    one = predicted if alone is None else predicted_step(alone.arrangement, alone.timeline)
    guess = adjusted([MeasuredStep(one, alone_s)], predicted)  # the profile is a measurement
    return ShownEstimate(arrangement, timeline, guess.relative_sd, alone_s / timeline.step_s)


def show_estimates(
    training: TrainingProfile, shown: Sequence[ShownEstimate], source: str, asked: int
) -> None:
    """Print the table; for the last ones, which were asked for, time lines and which is fastest."""
    show([Text(f"{training.device}, batch {training.batch} · {source}"), Text()])
    show(table([_row(each) for each in shown]))
    if not asked:
        return
    for each in shown[-asked:]:
        show([Text(), *timeline_lines(each)])
    if len(shown) > 1:
        show([Text(), Text(verdict(shown[-asked:] if asked > 1 else shown))])


def _row(each: ShownEstimate) -> dict[str, str]:
    timeline = each.timeline
    return {
        "ON": str(each.arrangement),
        "WORKERS": str(each.arrangement.workers),
        "NODES": str(each.arrangement.nodes),
        "STEP": seconds(timeline.step_s),
        "±": f"{each.relative_sd:.0%}",
        "SAMPLES/S": f"{timeline.samples_per_s:,.1f}",
        "SPEEDUP": f"{each.speedup:.2f}x",
        "PASSES": str(timeline.passes),
        "BOUND BY": timeline.bound_by,
    }


def timeline_lines(each: ShownEstimate) -> list[Text]:
    """Draw what happens when in a step; where spans follow each other they alternate."""
    timeline = each.timeline
    where = f"{each.arrangement}: {described_place(each.arrangement)}"
    lines = [Text(f"{where}, {seconds(timeline.step_s)} a step", style="bold")]
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
    best, *others = sorted(compared, key=lambda each: each.timeline.step_s)
    second = others[0]
    ratio = second.timeline.step_s / best.timeline.step_s
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
    alone = " One worker alone is faster." if best.speedup < 1.0 else ""
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
