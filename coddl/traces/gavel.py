"""Rates measured on several kinds of GPU, alone and in pairs: the file of the Gavel artifact.

The JSON object of Gavel (OSDI '20) holds steps per second by kind of GPU, then by
`('MODEL', GPUS)`, then alone (`"null"`) or with another job on the same GPUs (both rates). A
kind with `_unconsolidated` has its GPUs on different nodes.

A step there is a batch of the size in the model's name, however many GPUs there are: each GPU works
on its own batches, and the rate counts all. So an iteration here is one such batch, and more GPUs
do more of them a second, as if they shared each (strong scaling). Kinds are compared on one GPU. A
pair with rate 0 does not fit into memory. Pairs on several GPUs were not measured (all are 0), and
count as pairs on one.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np

from coddl.core.columns import FloatCube, FloatMatrix
from coddl.core.errors import UserError
from coddl.core.speed.places import plain
from coddl.core.speed.table import Speeds, interpolated, speeds_of
from coddl.traces.cells import listed, shown
from coddl.traces.models import skews_of

BASE: Final = "v100"  # the kind that the step times are of
APART: Final = "_unconsolidated"
ALONE: Final = "null"
KEY: Final = re.compile(r"\('(.+)', (\d+)\)")
TRY: Final = "the throughputs.json of the Gavel artifact"

Json: TypeAlias = Mapping[str, Any]  # Any: what it is shows where it is read
ModelOnGpus: TypeAlias = tuple[str, int]  # model, GPUs
Rates: TypeAlias = Mapping[ModelOnGpus, float]  # steps per second


def read_gavel(text: str, what: str) -> Speeds:
    """Speeds on the base kind, and the cost of other kinds, of distance and of sharing a GPU."""
    content = _content(text, what)
    try:
        alone = {kind: _alone(jobs) for kind, jobs in content.items()}
        near, apart = _table(alone[BASE]), _table(alone[BASE + APART])
        kinds = (BASE, *(kind for kind in alone if kind != BASE and not kind.endswith(APART)))
        factors = [_beside_base(alone[BASE], alone[kind], near.names) for kind in kinds]
        packed = _packed(content[BASE], alone[BASE], near.names)
        far_s = np.array([apart.step_s[apart.names.index(name)] for name in near.names])
        best_s = np.minimum(near.step_s, far_s)
    except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise UserError(what, f"it is not as expected: {error!r}", TRY) from None
    places = plain(len(near.names), len(kinds))._replace(
        nodes=_by_distance(near.step_s, far_s, best_s),
        kinds=np.array(factors).T.copy(),
        packed=packed,
        skew=skews_of(near.names),
        busy=np.zeros(1),  # not measured: whether to pack two jobs is to be tried
    )
    speeds = speeds_of(near.names, best_s, near.measured)
    return replace(speeds, known_places=places, kinds=kinds)


def _content(text: str, what: str) -> Json:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(what, f"it is not JSON that can be read: {error}", TRY) from None
    missing = [kind for kind in (BASE, BASE + APART) if kind not in content]
    if missing:
        raise UserError(what, f"it has no {listed([shown(kind) for kind in missing])}", TRY)
    found: Json = content
    return found


def _job(key: str) -> ModelOnGpus:
    found = KEY.fullmatch(key)
    if found is None:
        raise ValueError(f"{key} does not name a job")
    return found[1], int(found[2])


def _alone(jobs: Json) -> dict[ModelOnGpus, float]:
    """Rates of jobs that have their GPUs to themselves, where they run at all."""
    rates = {_job(key): float(pinned_tasks[ALONE]) for key, pinned_tasks in jobs.items()}
    return {job: rate for job, rate in rates.items() if rate > 0.0}


def _table(rates: Rates) -> Speeds:
    points: dict[str, list[tuple[int, float]]] = {}
    for (model, gpus), rate in rates.items():
        points.setdefault(model, []).append((gpus, 1.0 / rate))
    return interpolated(points)


def _beside_base(base: Rates, other: Rates, models: Sequence[str]) -> list[float]:
    """Step time on a kind of GPU over that on the base, for each model."""
    ones = [(model, 1) for model in models]
    return [base[one] / other[one] if one in other else np.inf for one in ones]


def _packed(jobs: Json, alone: Rates, models: Sequence[str]) -> FloatMatrix:
    """Step time with each other model on the same GPUs, over the step time alone."""
    out = np.full((len(models), len(models)), np.inf)
    place = {model: at for at, model in enumerate(models)}
    for key, pinned_tasks in jobs.items():
        model, gpus = _job(key)
        for other, rates in pinned_tasks.items():
            if gpus == 1 and other != ALONE and float(rates[0]) > 0.0:
                out[place[model], place[_job(other)[0]]] = alone[model, 1] / float(rates[0])
    return out


def _by_distance(near_s: FloatMatrix, far_s: FloatMatrix, best_s: FloatMatrix) -> FloatCube:
    """The factors of one node and of several, where the table tells the better of the two."""
    nodes = np.ones((*best_s.shape, 3))
    known = np.isfinite(best_s)
    nodes[..., 1][known] = near_s[known] / best_s[known]
    nodes[..., 2][known] = far_s[known] / best_s[known]
    return nodes
