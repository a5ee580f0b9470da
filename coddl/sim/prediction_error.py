"""Prediction error: lengths and speeds as a scheduler believes them, with random errors."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from coddl.core.columns import FloatMatrix
from coddl.core.errors import UserError
from coddl.core.parameter_server.costs import ServedSpeeds, ServerTimes, served_by
from coddl.core.speed.places import Places
from coddl.core.speed.table import Speeds, speeds_of
from coddl.sim.beliefs import Beliefs
from coddl.traces.trace import Trace

VARIANTS: Final = 32  # curves with errors per model; each job has one of them
LEAST: Final = 0.05  # the smallest factor: a prediction stays above 0
LENGTHS, SPEEDS = range(2)  # each has its own random stream


@dataclass(frozen=True, slots=True)
class PredictionError:
    """Largest relative error: a prediction is multiplied by 1 + error x u, u uniform in -1..1.

    Each job has one u for its length, and one u for its speed at each number of GPUs. The costs of
    placements are predicted without error.
    """

    length: float = 0.0
    speed: float = 0.0


def error_from(spec: str) -> PredictionError:
    """Read `length=0.3,speed=0.1`, either or both."""
    what, given = f'error "{spec}" cannot be simulated', dict[str, float]()
    for each in spec.split(","):
        name, _, text = each.partition("=")
        if name not in ("length", "speed") or name in given:
            twice = f"{name} is given twice"
            because = twice if name in given else f'"{each}" is not length=X or speed=X'
            raise UserError(what, because, "length=0.3,speed=0.1")
        try:
            given[name] = float(text)
        except ValueError:
            given[name] = np.nan
        if not 0.0 <= given[name] <= 1.0:
            raise UserError(what, f'{name}="{text}" is not within 0..1', f"{name}=0.3")
    return PredictionError(**given)


def beliefs_of(trace: Trace, error: PredictionError, seed: int) -> Beliefs:
    """What a scheduler takes for the lengths and speeds of a trace's jobs."""
    length = curve = None
    speeds = trace.speeds
    if error.length > 0.0:
        length = _factors(error.length, np.random.default_rng((seed, LENGTHS)), (trace.size, 1))
    if error.speed > 0.0:
        rng = np.random.default_rng((seed, SPEEDS))
        curve = trace.curve * VARIANTS + rng.integers(VARIANTS, size=trace.size)
        shape = (len(speeds.names) * VARIANTS, speeds.step_s.shape[1])
        speeds = _wrong(speeds, _factors(error.speed, rng, shape))
    return Beliefs(speeds, curve, length)


def _factors(error: float, rng: np.random.Generator, shape: tuple[int, ...]) -> FloatMatrix:
    return np.maximum(LEAST, 1.0 + error * rng.uniform(-1.0, 1.0, shape))


def _wrong(speeds: Speeds, factors: FloatMatrix) -> Speeds:
    """A table of VARIANTS curves for each, with speeds off by factors [curve, share]."""
    names = tuple(f"{name} #{at}" for name in speeds.names for at in range(VARIANTS))
    # Past its largest useful share a curve is flat, and stays flat: chance adds no useful shares.
    last = np.repeat(speeds.gpus_max, VARIANTS)[:, None]
    shares = np.minimum(np.arange(factors.shape[1]), last)
    factors = np.take_along_axis(factors, shares, axis=1)
    step_s = np.repeat(speeds.step_s, VARIANTS, axis=0) / factors
    measured = np.zeros(step_s.shape, np.bool_)
    wrong = replace(
        speeds_of(names, step_s, measured),
        known_places=None if speeds.known_places is None else _repeated(speeds.places),
        kinds=speeds.kinds,
        variants=VARIANTS,
    )
    if isinstance(speeds, ServedSpeeds):
        return served_by(wrong, _wrong_servers(speeds.servers, factors))
    return wrong


def _repeated(places: Places) -> Places:
    """The same places for every variant of a curve."""
    every = Places(*(np.repeat(column, VARIANTS, axis=0) for column in places))
    return every._replace(packed=np.repeat(every.packed, VARIANTS, axis=1))


def _wrong_servers(servers: ServerTimes, factors: FloatMatrix) -> ServerTimes:
    """Times with parameter servers, off as those of as many workers."""
    workers = np.minimum(np.arange(servers.step_s.shape[1]), factors.shape[1] - 1)
    off = factors[:, workers, None]
    return ServerTimes(*(np.repeat(times, VARIANTS, axis=0) / off for times in servers))
