"""Trials: sizes that a job is given to measure them, though they are expected to be slower.

An estimate that is wrong would never be found out otherwise. A trial costs two resizes, so it is
only made where that may pay off before the job ends.
"""

from typing import Final

from coddl.core.pool.job import JobState
from coddl.core.speed.live import Speed
from coddl.core.waiting import counted

TRIALS_MAX: Final = 2  # of a job; more than one only if the first was cut short
TRIAL_S: Final = 2.0  # that a trial costs at least: a resize there, and one back
NONE_PAYS: Final = 1.0


def least_trial_gain(job: JobState, alone_s: float | None) -> float:
    """Return the part of its time that a job must gain, at best, for a trial to pay off.

    `alone_s` is its step time on one GPU, if that is known. Rounded to one digit: what is worked
    out for it is not to be lost with every step.
    """
    if job.trials >= TRIALS_MAX:
        return NONE_PAYS
    left = job.remaining
    if alone_s is None or left is None:
        return 0.0
    cost_s = max(TRIAL_S, 2.0 * (job.last_pause_s or 0.0))
    left_s = left * alone_s
    return NONE_PAYS if left_s <= cost_s else float(f"{cost_s / left_s:.0e}")


def trial_sentence(speeds: dict[int, Speed], gpus: int) -> str:
    """Say that a job is given a size only to measure it; empty if it is not."""
    speed = speeds.get(gpus)
    if speed is None or not speed.is_trial:
        return ""
    ratio, sd = speeds[1].step_s / speed.likely_s, speed.relative_sd or 0.0
    return f"to measure {counted(gpus, 'GPU')}: estimated {ratio:.2f}x ± {sd:.0%}"
