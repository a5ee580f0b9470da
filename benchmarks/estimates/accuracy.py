"""How far estimates are from what was measured, and how often they rank two placements right."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Final, NamedTuple

from coddl.core.speed.adjustment import MeasuredStep, PredictedStep, adjusted
from coddl.core.speed.live import scaled

ALONE: Final = "1"
DIFFERS: Final = 0.1  # from which on two measured steps are to be told apart


class PlacedStep(NamedTuple):
    """A step of a model on an arrangement: as replayed, and as it was."""

    on: str
    predicted: PredictedStep
    measured_s: float


class Setting(NamedTuple):
    """All steps of a model over one kind of link."""

    model: str
    link: str
    steps: tuple[PlacedStep, ...]  # the first one is that of one worker

    @property
    def several(self) -> tuple[PlacedStep, ...]:
        """Those of more than one worker."""
        return self.steps[1:]


class Estimate(NamedTuple):
    """A step that is not known, and what it turned out to be."""

    on: str
    step_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """How far off it is, as a part of what was measured; below 0: too short."""
        return self.step_s / self.measured_s - 1.0


def before(setting: Setting) -> list[Estimate]:
    """Estimate all steps from the profile and the links alone."""
    return [Estimate(each.on, each.predicted.step_s, each.measured_s) for each in setting.steps]


def after(setting: Setting, known: PlacedStep) -> list[Estimate]:
    """Estimate all others when one worker and one larger arrangement were measured.

    It is done as pools do it: what one worker takes scales the computing, then the known step
    adjusts the rest.
    """
    alone = setting.steps[0]
    factor = alone.measured_s / alone.predicted.step_s
    points = [
        MeasuredStep(scaled(each.predicted, factor), each.measured_s) for each in (alone, known)
    ]
    return [
        Estimate(each.on, adjusted(points, scaled(each.predicted, factor)).step_s, each.measured_s)
        for each in setting.steps
        if each not in (alone, known)
    ]


def afterwards(setting: Setting) -> Iterator[tuple[str, list[Estimate]]]:
    """Give what is estimated after each resize that may have been the first."""
    for known in setting.several:
        yield known.on, after(setting, known)


def is_ranked_right(one: Estimate, other: Estimate) -> bool | None:
    """Tell whether the faster of two is estimated to be; None where they hardly differ."""
    fast, slow = sorted((one, other), key=lambda each: each.measured_s)
    if slow.measured_s <= fast.measured_s * (1.0 + DIFFERS):
        return None
    return fast.step_s < slow.step_s


def ranked(estimates: Sequence[Estimate]) -> list[bool]:
    """Tell for each pair that differs whether it is ranked right."""
    found = (is_ranked_right(*pair) for pair in combinations(estimates, 2))
    return [each for each in found if each is not None]


def _known(setting: Setting, on: str) -> list[Estimate]:
    """Steps that are known, as estimates that are exact."""
    return [
        Estimate(each.on, each.measured_s, each.measured_s)
        for each in setting.steps
        if each.on in (ALONE, on)
    ]


def ranked_after(setting: Setting) -> list[bool]:
    """The same after each first resize; pairs of two known steps don't count."""
    found: list[bool | None] = []
    for on, estimates in afterwards(setting):
        pairs = [*combinations(estimates, 2)]
        pairs += [(one, other) for one in estimates for other in _known(setting, on)]
        found += [is_ranked_right(*pair) for pair in pairs]
    return [each for each in found if each is not None]


class _Case(NamedTuple):
    """An estimate, and what of."""

    model: str
    link: str
    known: str
    estimate: Estimate


def _summed_up(cases: Sequence[_Case], ranks: Sequence[bool]) -> dict[str, Any]:
    errors = [abs(each.estimate.error) for each in cases]
    worst = max(cases, key=lambda each: abs(each.estimate.error))
    return {
        "mean_error": sum(errors) / len(errors),
        "worst_error": worst.estimate.error,
        "worst": {"model": worst.model, "link": worst.link, "on": worst.estimate.on}
        | ({"known": worst.known} if worst.known else {}),
        "estimates": len(errors),
        "ranked_right": sum(ranks) / len(ranks) if ranks else None,
        "pairs": len(ranks),
    }


def summary(settings: Iterable[Setting]) -> dict[str, Any]:
    """Sum it all up: before any resize, and after one."""
    settings = tuple(settings)
    first = [
        _Case(setting.model, setting.link, "", each)
        for setting in settings
        for each in before(setting)[1:]
    ]
    later = [
        _Case(setting.model, setting.link, on, each)
        for setting in settings
        for on, estimates in afterwards(setting)
        for each in estimates
    ]
    found = {"before": _summed_up(first, [r for s in settings for r in ranked(before(s))])}
    if later:
        ranks = [r for s in settings for r in ranked_after(s)]
        found["after_one_resize"] = _summed_up(later, ranks)
    return found


def by_model(settings: Iterable[Setting]) -> Mapping[str, Mapping[str, Any]]:
    """Sum it up for each model."""
    of: dict[str, list[Setting]] = {}
    for setting in settings:
        of.setdefault(setting.model, []).append(setting)
    return {model: summary(each) for model, each in of.items()}
