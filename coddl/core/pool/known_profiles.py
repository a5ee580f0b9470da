"""What jobs have measured of their trainings, for themselves and for jobs to come. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeVar

from coddl.core.pool.job import is_news
from coddl.core.speed.profile import SliceMemory, SliceTime, TrainingProfile

PROFILES_MAX: Final = 200  # trainings whose profile is remembered
SIZES_MAX: Final = 16  # of slices in a profile

Measured = TypeVar("Measured", bound=SliceTime | SliceMemory)


def with_profile(
    known: Mapping[str, TrainingProfile], found: TrainingProfile
) -> dict[str, TrainingProfile]:
    """Remember a profile under its signature; the oldest are forgotten."""
    if not found.signature:
        return dict(known)
    others = [(name, each) for name, each in known.items() if name != found.signature]
    return dict([*others, (found.signature, found)][-PROFILES_MAX:])


def merged(known: TrainingProfile | None, found: TrainingProfile) -> TrainingProfile:
    """Add what was known of other sizes of slices of the same training on the same device."""
    if known is None or not _is_same(known, found):
        return found
    slices = _with_others(known.slices, found.slices)
    return replace(found, slices=slices, memory=_with_others(known.memory, found.memory))


def knows_profile(known: TrainingProfile | None, found: TrainingProfile) -> bool:
    """Tell whether a profile is no news: every run measures, and most measure the same."""
    if known is None or not _is_same(known, found) or len(found.buckets) != len(known.buckets):
        return False
    before_s, now_s = _times_s(known), _times_s(found)
    if not now_s.keys() <= before_s.keys():
        return False
    has_memory = {each.samples for each in found.memory} <= {each.samples for each in known.memory}
    return has_memory and not any(is_news(now_s[n], before_s[n]) for n in now_s)


def _is_same(known: TrainingProfile, found: TrainingProfile) -> bool:
    about = (found.signature, found.device, found.batch, found.virtual_nodes)
    return about == (known.signature, known.device, known.batch, known.virtual_nodes)


def _times_s(profile: TrainingProfile) -> dict[int, float]:
    """Give the time of an update on one worker, by samples."""
    besides_s = profile.update_s + profile.other_s + profile.data_s
    return {each.samples: each.forward_s + each.backward_s + besides_s for each in profile.slices}


def _with_others(known: tuple[Measured, ...], found: tuple[Measured, ...]) -> tuple[Measured, ...]:
    mine = {each.samples for each in found}
    others = [each for each in known if each.samples not in mine]
    kept = [*found, *others[: SIZES_MAX - len(found)]]
    return tuple(sorted(kept, key=lambda each: each.samples))
