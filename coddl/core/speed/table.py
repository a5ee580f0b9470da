"""Training speed of every job at every share, as a table of curves."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log, sqrt
from typing import NamedTuple

import numpy as np

from coddl.core.columns import BoolMatrix, FloatMatrix, IntColumn, IntMatrix
from coddl.core.compiling import kernel, part
from coddl.core.speed.places import Places, plain


class ShareSteps(NamedTuple):
    """From each share of a curve: the next one worth holding, and what it gains per added GPU.

    With p now and p' at the next share, n GPUs on: short = (p'-p)/p/n and long = (p'-p)/p'/n, the
    two sides of the AFS rule; for n = 1 they are the published ones.
    """

    next: IntMatrix  # 0: no larger share is faster
    last: IntMatrix  # the largest one worth holding that is not larger
    short: FloatMatrix
    long: FloatMatrix
    power: FloatMatrix  # the speed to the power of 7/8
    log: FloatMatrix  # its logarithm


@part
def damped(speed: float) -> float:
    """A speed to the power of 7/8, by roots, which take less time than powers.

    Where gains are weighted: a job that is fast already gains a little less by becoming faster.
    """
    return sqrt(speed * sqrt(speed * sqrt(speed)))


@kernel
def fill_steps(step_s: FloatMatrix, useful: BoolMatrix, steps: ShareSteps) -> None:
    """Fill in Steps, from each curve's largest share down."""
    curves, width = step_s.shape
    for curve in range(curves):
        following = 0
        for share in range(width - 1, -1, -1):
            steps.next[curve, share] = following
            if following > 0 and share > 0:
                now, then = 1.0 / step_s[curve, share], 1.0 / step_s[curve, following]
                steps.short[curve, share] = (then - now) / now / (following - share)
                steps.long[curve, share] = (then - now) / then / (following - share)
            if useful[curve, share]:
                following = share
        largest = 0
        for share in range(width):
            speed = 1.0 / step_s[curve, share]
            steps.power[curve, share], steps.log[curve, share] = damped(speed), log(speed)
            if useful[curve, share]:
                largest = share
            steps.last[curve, share] = largest


@dataclass(frozen=True, eq=False)
class Speeds:
    """Seconds per iteration, one row a curve, one column a share. A job's `curve` names its row.

    At share 0, and below a curve's smallest, a step takes forever. Past its largest share it takes
    what it took there.
    """

    names: tuple[str, ...]
    step_s: FloatMatrix
    useful: BoolMatrix  # shares worth holding: faster than every smaller one
    measured: BoolMatrix  # measured, as against interpolated or assumed
    # None: places make no difference. A function is called when it is first asked for.
    known_places: Places | Callable[[], Places] | None = None
    kinds: tuple[str, ...] = ("gpu",)  # that `places.kinds` distinguishes; `step_s` is of the first
    variants: int = 1  # curves of each model, one after the other

    @cached_property
    def places(self) -> Places:
        """What a place costs each curve."""
        known = self.known_places
        return known() if callable(known) else known or plain(len(self.names))

    @cached_property
    def gpus_max(self) -> IntColumn:
        """The largest useful share of each curve."""
        last: IntColumn = self.useful.shape[1] - 1 - np.argmax(self.useful[:, ::-1], axis=1)
        return last

    @cached_property
    def steps(self) -> ShareSteps:
        """The next share and its gains, for the policies that hand out GPUs one by one."""
        shape = self.step_s.shape
        shares = np.zeros((2, *shape), np.int64)
        steps = ShareSteps(shares[0], shares[1], *np.zeros((4, *shape)))
        fill_steps(self.step_s, self.useful, steps)
        return steps


def speeds_of(names: tuple[str, ...], step_s: FloatMatrix, measured: BoolMatrix) -> Speeds:
    """A table from seconds per iteration at every share (share 0 first, infinite)."""
    best_below = np.minimum.accumulate(step_s, axis=1)
    useful = np.zeros(step_s.shape, np.bool_)
    useful[:, 1:] = step_s[:, 1:] < best_below[:, :-1]
    return Speeds(names, step_s, useful, measured)


def interpolated(points: Mapping[str, Sequence[tuple[int, float]]]) -> Speeds:
    """A table from (gpus, seconds per iteration) points of each curve; between two points step time
    is linear.
    """
    names = tuple(points)
    width = max(gpus for curve in points.values() for gpus, _ in curve) + 1
    step_s = np.full((len(names), width), np.inf)
    measured = np.zeros(step_s.shape, np.bool_)
    for row, name in enumerate(names):
        gpus, seconds = zip(*sorted(points[name]), strict=True)
        shares = np.arange(gpus[0], width)
        step_s[row, gpus[0] :] = np.interp(shares, gpus, seconds)
        measured[row, list(gpus)] = True
    return speeds_of(names, step_s, measured)
