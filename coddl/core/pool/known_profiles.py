"""What jobs have measured of their trainings, for themselves and for jobs to come."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from coddl.core.pool import records as r
from coddl.core.pool.job import JobState, is_news
from coddl.core.speed.profile import SliceMemory, SliceTime, TrainingProfile

if TYPE_CHECKING:
    from coddl.core.pool.state import Pool

PROFILES_MAX: Final = 200  # trainings whose profile is remembered
SIZES_MAX: Final = 16  # of slices in a profile
STEPS_MAX: Final = 32  # sizes of a training whose step times are remembered

Measured = TypeVar("Measured", bound=SliceTime | SliceMemory)


def hear_training(pool: "Pool", job: JobState, fact: r.RunPrepared | r.RunProfiled) -> None:
    """Take in what a job trains, or what it has measured of that."""
    if isinstance(fact, r.RunProfiled):
        job.profile = merged(job.profile, fact.profile)
        pool.profiles = with_profile(pool.profiles, job.profile)
        return
    job.prepare(fact)
    if job.profile is None or job.profile.signature != fact.training:
        job.profile = pool.profiles.get(fact.training)


def learn_steps(pool: "Pool", job: JobState, step_s: Mapping[int, float]) -> None:
    """Remember the step times of a job for others that train the same.

    Times of a job that shares its slots by turns include the turns of others.
    """
    name = _training_on(job.profile)
    if not name or not step_s or job.sharers > 1 or job.has_shared:
        return
    assert job.profile is not None
    if pool.kinds_of(job) == [job.profile.device]:
        pool.step_times = with_steps(pool.step_times, name, step_s)


def remembered_steps(pool: "Pool", job: JobState) -> Mapping[int, float]:
    """Return the step times, by size, that jobs with the same training have measured."""
    return pool.step_times.get(_training_on(job.profile), {})


def _training_on(profile: TrainingProfile | None) -> str:
    """Name a training on a kind of device; empty: it is not known."""
    return f"{profile.signature} {profile.device}" if profile and profile.signature else ""


def with_steps(
    known: Mapping[str, dict[int, float]], name: str, found: Mapping[int, float]
) -> dict[str, dict[int, float]]:
    """Remember step times; the oldest trainings are forgotten, and the oldest sizes of one."""
    before = known.get(name, {})
    news = {
        gpus: step_s
        for gpus, step_s in found.items()
        if gpus not in before or is_news(step_s, before[gpus])
    }
    if not news and name in known:
        return dict(known)
    steps = [(gpus, step_s) for gpus, step_s in before.items() if gpus not in news]
    others = [(each, steps) for each, steps in known.items() if each != name]
    return dict([*others, (name, dict([*steps, *news.items()][-STEPS_MAX:]))][-PROFILES_MAX:])


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
    return replace(
        found,
        slices=_with_others(known.slices, found.slices),
        memory=_with_others(known.memory, found.memory),
        update_memory=_with_others(known.update_memory, found.update_memory),
    )


def knows_profile(known: TrainingProfile | None, found: TrainingProfile) -> bool:
    """Return whether a profile is no news: every run measures, and most measure the same."""
    if known is None or not _is_same(known, found) or len(found.buckets) != len(known.buckets):
        return False
    before_s, now_s = _times_s(known), _times_s(found)
    if not now_s.keys() <= before_s.keys():
        return False
    if _tells_host(found) and not _tells_host(known):
        return False
    if not _sizes(found.memory) <= _sizes(known.memory):
        return False
    if not _sizes(found.update_memory) <= _sizes(known.update_memory):
        return False
    return not any(is_news(now_s[n], before_s[n]) for n in now_s)


def _is_same(known: TrainingProfile, found: TrainingProfile) -> bool:
    about = (found.signature, found.device, found.batch, found.virtual_nodes)
    return about == (known.signature, known.device, known.batch, known.virtual_nodes)


def _sizes(measured: tuple[SliceMemory, ...]) -> set[int]:
    return {each.samples for each in measured}


def _tells_host(profile: TrainingProfile) -> bool:
    return any(each.forward_host_s or each.backward_host_s for each in profile.slices)


def _times_s(profile: TrainingProfile) -> dict[int, float]:
    """Return the time of an update on one worker, by samples."""
    besides_s = profile.update_s + profile.other_s + profile.data_s
    return {each.samples: each.forward_s + each.backward_s + besides_s for each in profile.slices}


def _with_others(known: tuple[Measured, ...], found: tuple[Measured, ...]) -> tuple[Measured, ...]:
    mine = {each.samples for each in found}
    others = [each for each in known if each.samples not in mine]
    kept = [*found, *others[: SIZES_MAX - len(found)]]
    return tuple(sorted(kept, key=lambda each: each.samples))
