"""Generators of workloads: the same seed gives the same workload."""

from collections.abc import Callable
from typing import Final

import numpy as np

from coddl.core.columns import FloatColumn, IntColumn
from coddl.core.errors import UserError
from coddl.core.speed.table import Speeds
from coddl.traces.cells import listed
from coddl.traces.files import packaged_speeds
from coddl.traces.trace import Trace, smallest_shares, trace_of

REQUESTS: Final = (
    (1, 0.6),
    (2, 0.15),
    (4, 0.15),
    (8, 0.1),
)  # GPUs and how often they are asked for
MEDIAN_S, SPREAD, SHORTEST_S, LONGEST_S = 20 * 60.0, 1.5, 60.0, 2 * 86_400.0
MOST_JOBS = 10_000_000
MOST_GPUS = 2**31 - 1

POSTER_MODELS: Final = (
    "facenet",
    "vgg16",
    "googlenet",
    "inception4",
    "resnet50",
    "dcgan",
    "chatbot",
    "videoprediction",
)
POSTER_JOBS, POSTER_GAP_S, POSTER_LENGTH_S = 512, 60.0, (600.0, 7200.0)

TIRESIAS_JOBS: Final = {2: 40, 4: 80, 8: 90, 16: 25, 32: 5}  # jobs by the GPUs they ask for
TIRESIAS_GAP_S, TIRESIAS_LENGTH_S = 30, (120.0, 7200.0)


def poisson(
    speeds: Speeds | None = None,
    *,
    jobs: int = 200,
    gpus: int = 64,
    load: float = 0.8,
    seed: int = 0,
) -> Trace:
    """Poisson arrivals of mostly small jobs, an even mix of the table's models.

    Requests are 1, 2, 4 or 8 GPUs, no more than the model can use or than `gpus`. Lengths at the
    request are log-normal with a median of 20 minutes, 1 minute to 2 days. `load` is the work that
    arrives per second, in GPU-seconds at the request, over `gpus`.
    """
    speeds = speeds or packaged_speeds()
    _check("poisson", "jobs", jobs, 1, MOST_JOBS)
    _check("poisson", "gpus", gpus, 1, MOST_GPUS)
    _check("poisson", "load", load, 1e-6, 1e6)
    rng = _rng("poisson", seed)
    curve = rng.integers(len(speeds.names), size=jobs)
    sizes, odds = zip(*REQUESTS, strict=True)
    wanted = rng.choice(np.array(sizes), p=odds, size=jobs)
    fitting = np.minimum(np.minimum(wanted, speeds.gpus_max[curve]), gpus)
    requested = np.maximum(fitting, smallest_shares(speeds)[curve])
    length_s = np.clip(rng.lognormal(np.log(MEDIAN_S), SPREAD, jobs), SHORTEST_S, LONGEST_S)
    # Given how many arrive in a span, the times of a Poisson process are uniform over it. The span
    # is the one that offers this work at just this load, however heavy the tail came out.
    span_s = float(requested @ length_s) / (load * gpus)
    submitted_s = np.sort(rng.random(jobs)) * span_s
    return _made(
        "poisson",
        speeds,
        submitted_s=submitted_s,
        curve=curve,
        requested=requested,
        length_s=length_s,
    )


def poster(speeds: Speeds | None = None, *, seed: int = 0) -> Trace:
    """512 jobs of eight models for a cluster of 512 GPUs: static against dynamic sharing.

    The experiment that CoDDL began with states jobs, models and cluster, but neither requests nor
    lengths nor arrivals. Here every job asks for all the GPUs its model can use, as users do, runs
    for 10 to 120 minutes (uniform) on those, and comes a minute (exponential) after the one before:
    more than twice the work that 512 GPUs can do in that time at the GPUs requested.
    """
    speeds = speeds or packaged_speeds()
    missing = [name for name in POSTER_MODELS if name not in speeds.names]
    if missing:
        raise UserError(
            'workload "poster" cannot be generated',
            f"the speed table has no {listed(missing)}",
            "the packaged speeds, or a table with all eight models of the experiment",
        )
    rng = _rng("poster", seed)
    models = np.array([speeds.names.index(name) for name in POSTER_MODELS])
    curve = models[rng.integers(len(models), size=POSTER_JOBS)]
    length_s = rng.uniform(*POSTER_LENGTH_S, size=POSTER_JOBS)
    submitted_s = np.cumsum(rng.exponential(POSTER_GAP_S, POSTER_JOBS))
    return _made(
        "poster",
        speeds,
        submitted_s=submitted_s,
        curve=curve,
        requested=speeds.gpus_max[curve],
        length_s=length_s,
    )


def tiresias(speeds: Speeds | None = None, *, seed: int = 0) -> Trace:
    """240 jobs of 2 to 32 GPUs, as in the Tiresias-like workload of the AFS evaluation.

    They run for 2 to 120 minutes (uniform) at the request, in random order, half a minute apart
    (Poisson, in whole seconds), and train models that can use what they ask for.
    """
    speeds = speeds or packaged_speeds()
    rng = _rng("tiresias", seed)
    requested = rng.permutation(np.repeat(list(TIRESIAS_JOBS), list(TIRESIAS_JOBS.values())))
    fits = (smallest_shares(speeds) <= requested[:, None]) & (requested[:, None] <= speeds.gpus_max)
    if not fits.any(axis=1).all():
        raise UserError(
            'workload "tiresias" cannot be generated',
            f"no model of the speed table can use {requested[~fits.any(axis=1)].max()} GPUs",
            "the packaged speeds, or a table with models for 2, 4, 8, 16 and 32 GPUs",
        )
    # The n-th of the models that fit, n being drawn.
    nth = rng.integers(fits.sum(axis=1))
    curve = np.argmax(np.cumsum(fits, axis=1) > nth[:, None], axis=1)
    length_s = rng.uniform(*TIRESIAS_LENGTH_S, size=len(requested))
    gaps_s = rng.poisson(TIRESIAS_GAP_S, len(requested) - 1)
    submitted_s = np.concatenate(([0.0], np.cumsum(gaps_s)))
    return _made(
        "tiresias",
        speeds,
        submitted_s=submitted_s,
        curve=curve,
        requested=requested,
        length_s=length_s,
    )


GENERATORS: Final[dict[str, Callable[..., Trace]]] = {
    "poisson": poisson,
    "poster": poster,
    "tiresias": tiresias,
}


def _made(
    name: str,
    speeds: Speeds,
    *,
    submitted_s: FloatColumn,
    curve: IntColumn,
    requested: IntColumn,
    length_s: FloatColumn,
) -> Trace:
    """The trace of jobs that run for so long at the GPUs they ask for, in whole iterations."""
    # Past the table's last share a step takes what it took there.
    column = np.minimum(requested, speeds.step_s.shape[1] - 1)
    return trace_of(
        name,
        speeds,
        submitted_s=np.round(submitted_s, 3),
        curve=curve,
        iterations=np.ceil(length_s / speeds.step_s[curve, column]),
        gpus_requested=requested,
    )


def _rng(name: str, seed: int) -> np.random.Generator:
    _check(name, "seed", seed, 0, np.inf)
    return np.random.default_rng(seed)


def _check(name: str, option: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise UserError(
            f'workload "{name}" cannot be generated',
            f"{option} is {value} and must be "
            + (f"within {least}..{most}" if most < np.inf else f"at least {least}"),
            f"--{option} {max(least, 1):g}",
        )
