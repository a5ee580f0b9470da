"""What a scheduler knows of speeds while jobs run at the true ones.

true        the speed table
estimated   replays of a step, from one GPU (`coddl.core.speed.calibration`)
adjusted    the same, adjusted by what was measured at the sizes that a job has had, as in a pool
visited     nothing is replayed: a job counts as one that scales perfectly until it has been
            measured at a second size, as in a pool without profiles

In all of them the step on one GPU is known. What is measured of a job is not carried to others.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal

import numpy as np

from coddl.core.columns import FloatColumn
from coddl.core.errors import UserError
from coddl.core.speed.adjustment import PredictedStep, predicted_step
from coddl.core.speed.calibration import (
    Calibration,
    KnownTraining,
    MeasuredScaling,
    all_errors,
    calibrated_without,
    table_sizes,
)
from coddl.core.speed.curves import curve_of, fewest_nodes
from coddl.core.speed.estimate import NODE_GPUS_MEASURED
from coddl.core.speed.live import Speed, curve
from coddl.core.speed.replay import LinkSpeeds, replayed
from coddl.core.speed.table import Speeds
from coddl.sim.beliefs import Beliefs
from coddl.sim.learning import Belief, SpeedLearning, as_speeds
from coddl.traces.cells import listed, shown
from coddl.traces.models import known_models, known_name, model_named, recurrent_models

KnownSpeeds = Literal["true", "estimated", "adjusted", "visited"]
RECURRENT: Final = "recurrent"  # the family of models whose computing is divided less
REMEMBERED: Final = 1 << 16  # curves

Steps = Mapping[int, PredictedStep]  # by size


def beliefs_with(
    known: KnownSpeeds, speeds: Speeds, models: Sequence[int], links: LinkSpeeds | None = None
) -> Beliefs | None:
    """What a scheduler believes; None is the truth. `models` are the curves that jobs have.

    Without `links`, they are calibrated on the other models of the table.
    """
    if known == "true":
        return None
    if known == "visited":
        learning = SpeedLearning(speeds, _visited(speeds))
        return Beliefs(learning.at_first, learning=learning)
    steps = estimated_steps(speeds, models, links)
    if known == "adjusted":
        learning = SpeedLearning(speeds, _adjusted(speeds, steps))
        return Beliefs(learning.at_first, learning=learning)
    return Beliefs(estimated_speeds(speeds, steps))


def estimated_speeds(speeds: Speeds, steps: Mapping[int, Steps]) -> Speeds:
    """The table with replays in place of what was measured; curves without jobs stay as they are.

    Between two sizes step time is linear, as it is between two measured ones.
    """
    step_s, most = speeds.step_s.copy(), speeds.step_s.shape[1] - 1
    for row, each in steps.items():
        step_s[row] = curve_of(each, most)
    return as_speeds(speeds, np.arange(len(step_s)), step_s)


def estimated_steps(
    speeds: Speeds,
    models: Sequence[int],
    links: LinkSpeeds | None = None,
    *,
    knows_recurrent: bool = True,
) -> dict[int, Steps]:
    """Replay steps of these curves at the sizes at which tables are measured.

    A model's links are calibrated on all the others whose parameters are known. If it is not given
    which models are recurrent, the calibration takes all for alike.
    """
    measured = {
        name: each
        for row, name in enumerate(speeds.names)
        if (each := _measured(speeds, row, knows_recurrent)) is not None
    }
    _refuse_unknown(speeds, models, measured)
    most = speeds.step_s.shape[1] - 1
    if links is None:
        several = {name: each for name, each in measured.items() if each.step_s}
        off = all_errors(several, NODE_GPUS_MEASURED)
    found: dict[int, Steps] = {}
    for row in models:
        name = speeds.names[row]
        if links is None:
            calibration = calibrated_without(name, several | {name: measured[name]}, off)
        else:
            calibration = Calibration(links)
        profile = calibration.profile(measured[name].training)
        sizes = table_sizes(NODE_GPUS_MEASURED, most)
        places = [fewest_nodes(size, NODE_GPUS_MEASURED) for size in sizes]
        found[row] = {
            place.workers: predicted_step(place, replayed(profile, place, calibration.links))
            for place in places
        }
    return found


def _measured(speeds: Speeds, row: int, knows_recurrent: bool) -> MeasuredScaling | None:
    """A curve as calibrations take it; None if its parameters or its first step are not known."""
    key, step_s = known_name(speeds.names[row]), speeds.step_s[row]
    if key is None or not np.isfinite(step_s[1]):
        return None
    family = RECURRENT if knows_recurrent and key in recurrent_models() else ""
    training = KnownTraining(float(step_s[1]), model_named(key), family)
    sizes = table_sizes(NODE_GPUS_MEASURED, int(speeds.gpus_max[row]))
    return MeasuredScaling(training, {n: float(step_s[n]) for n in sizes if n > 1})


def _refuse_unknown(
    speeds: Speeds, models: Sequence[int], known: Mapping[str, MeasuredScaling]
) -> None:
    for name in (speeds.names[row] for row in models):
        if name in known:
            continue
        no_step = "the speed table has no step of it on one GPU"
        no_bytes = "how many parameters it has is not known"
        raise UserError(
            f"speeds of {shown(name)} cannot be estimated",
            no_bytes if known_name(name) is None else no_step,
            f"--known-speeds visited, or models that are known: {listed(known_models())}"
            if known_name(name) is None
            else "--known-speeds visited, or a speed table that begins at 1 GPU",
        )


def _visited(truth: Speeds) -> Belief:
    """Believe what a pool without profiles does."""
    most = truth.step_s.shape[1] - 1

    @lru_cache(maxsize=REMEMBERED)
    def believed(row: int, visited: frozenset[int]) -> FloatColumn:
        return _column(curve(most, _seen(truth, row, visited), {}, None), most)

    return believed


def _adjusted(truth: Speeds, steps: Mapping[int, Steps]) -> Belief:
    """Believe what a pool with profiles does; curves without jobs count as known."""
    most = truth.step_s.shape[1] - 1

    @lru_cache(maxsize=REMEMBERED)
    def believed(row: int, visited: frozenset[int]) -> FloatColumn:
        if row not in steps:
            known: FloatColumn = truth.step_s[row]
            return known
        return _column(curve(most, _seen(truth, row, visited), {}, None, steps[row]), most)

    return believed


def _seen(truth: Speeds, row: int, visited: frozenset[int]) -> dict[int, float]:
    """What was measured of a job: the sizes it has had, and the smallest, where it was profiled."""
    least = int(np.argmax(np.isfinite(truth.step_s[row])))
    return {size: float(truth.step_s[row, size]) for size in sorted(visited | {least})}


def _column(speeds: Mapping[int, Speed], most: int) -> FloatColumn:
    return np.array([np.inf, *(speeds[size].step_s for size in range(1, most + 1))])
