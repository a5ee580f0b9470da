"""Facts about models other than speed, and the speeds on a given cluster that follow from them."""

from dataclasses import replace
from functools import cache
from importlib.resources import as_file, files
from statistics import median
from typing import Final

import numpy as np

from coddl.core.cluster import Cluster
from coddl.core.columns import FloatColumn
from coddl.core.errors import UserError
from coddl.core.parameter_server.costs import ServedSpeeds, beside_servers
from coddl.core.speed.estimate import (
    BACKWARD,
    Buckets,
    Model,
    estimated_places,
    even_buckets,
)
from coddl.core.speed.table import Speeds
from coddl.traces.cells import Cells, Constraint, cells_of, listed, shown
from coddl.traces.text_file import read_text

COLUMNS: Final = ("model", "parameters", "largest_tensor", "recurrent", "source")
BYTES: Final = 4  # of a gradient: single precision
STAGE_COLUMNS: Final = ("model", "stage", "parameters", "mmacs", "source")
MEBIBYTE: Final = 2**20
FIRST_BUCKET, LATER_BUCKETS = MEBIBYTE, 25 * MEBIBYTE  # as PyTorch cuts them, and our runtime
NONE_BELOW: Final = Constraint(lambda v: v >= 0, "be a number, at least 0", "134.2")
YES_OR_NO: Final = Constraint(lambda v: (v == 0) | (v == 1), "be 0 or 1", "0")
COUNT: Final = Constraint(lambda v: v >= 1, "be a number, at least 1", "25557032")
ANY_KIND: Final = "gpu"  # of a cluster or a table that does not say


@cache
def _facts() -> Cells:
    what = "the packaged facts on models cannot be read"
    with as_file(files("coddl.traces") / "data" / "models.csv") as path:
        return cells_of(read_text(path, what), what, COLUMNS)


@cache
def known_models() -> dict[str, Model]:
    """Facts on models by name."""
    parameters = _facts().numbers("parameters", COUNT).tolist()
    largest = _facts().numbers("largest_tensor", COUNT).tolist()
    rows = zip(_facts().columns["model"], parameters, largest, strict=True)
    return {name: Model(BYTES * count, most / count) for name, count, most in rows}


@cache
def recurrent_models() -> frozenset[str]:
    """The models that take one time step after the other."""
    flags = _facts().numbers("recurrent", YES_OR_NO).tolist()
    names = _facts().columns["model"]
    return frozenset(name for name, is_so in zip(names, flags, strict=True) if is_so)


def known_name(name: str) -> str | None:
    """What the facts call a model: `ResNet-50 (batch size 64)` and `resnet50-128` are resnet50."""
    short = name.lower().partition(" (")[0]
    keys = (short, short.replace("-", ""), short.rpartition("-")[0].replace("-", ""))
    return next((key for key in keys if key in known_models()), None)


def model_named(name: str) -> Model:
    """Facts on a model; on an unknown one, the median of those we know."""
    known, key = known_models(), known_name(name)
    if key is not None:
        return known[key]
    sizes, skews = zip(*known.values(), strict=True)
    return Model(median(sizes), median(skews))


@cache
def known_buckets() -> dict[str, Buckets]:
    """Buckets of models whose stages are known: when the gradients of each are complete.

    The backward pass takes a stage as long as its part of all multiplications; within a stage
    gradients come evenly. Embeddings are looked up: their gradients come with the last of it.
    """
    what = "the packaged facts on stages of models cannot be read"
    with as_file(files("coddl.traces") / "data" / "stages.csv") as path:
        cells = cells_of(read_text(path, what), what, STAGE_COLUMNS)
    names = np.array(cells.columns["model"])
    parameters, macs = cells.numbers("parameters", COUNT), cells.numbers("mmacs", NONE_BELOW)
    return {
        name: _cut(parameters[names == name], macs[names == name])
        for name in dict.fromkeys(cells.columns["model"])
    }


def buckets_of(name: str) -> Buckets:
    """Gradients of a model as they are sent: by its stages if we know them, else evenly."""
    known = known_buckets().get(name)
    return even_buckets(model_named(name)) if known is None else known


def _cut(parameters: FloatColumn, macs: FloatColumn) -> Buckets:
    """Cut gradients of stages into buckets."""
    ends = BYTES * np.cumsum(parameters)
    later = np.arange(FIRST_BUCKET, ends[-1], LATER_BUCKETS)
    cuts = np.append(later, ends[-1])
    done = np.append(0.0, np.cumsum(macs)) / macs.sum()
    stage = np.minimum(np.searchsorted(ends, cuts), len(ends) - 1)
    begins = np.append(0.0, ends)[stage]
    inside = np.where(macs[stage] > 0.0, (cuts - begins) / (ends[stage] - begins), 1.0)
    ready = done[stage] + inside * (done[stage + 1] - done[stage])
    return Buckets(1.0 - BACKWARD + BACKWARD * ready, np.diff(cuts, prepend=0.0))


def skews_of(names: tuple[str, ...]) -> FloatColumn:
    """The largest tensor's part of each model's parameters."""
    return np.array([model_named(name).skew for name in names])


def speeds_on(speeds: Speeds, cluster: Cluster) -> Speeds:
    """The same speeds, with what places of this cluster cost.

    What was measured stays; the rest is estimated from facts on the models. Kinds of GPU are those
    of the cluster, in its order. With parameter servers it is not the links that count: see there.
    """
    places = speeds.places
    if speeds.known_places is None:  # not measured
        models = [model_named(name) for name in speeds.names]
        places = estimated_places(speeds.step_s, models, cluster)
    if isinstance(speeds, ServedSpeeds):
        places = beside_servers(places)
    if speeds.kinds == (ANY_KIND,):
        kinds = np.ones((len(speeds.names), len(cluster.kinds)))
    else:
        at = [_place_of(kind, speeds.kinds) for kind in cluster.kinds]
        kinds = places.kinds[:, at].copy()
    return replace(speeds, known_places=places._replace(kinds=kinds), kinds=cluster.kinds)


def _place_of(kind: str, known: tuple[str, ...]) -> int:
    if kind == ANY_KIND:
        return 0
    if kind not in known:
        raise UserError(
            f"a cluster with GPUs of kind {shown(kind)} cannot be simulated",
            f"the speed table knows {listed(known)}",
            f"one of those as kind, as in 16x4:{known[0]}",
        )
    return known.index(kind)
