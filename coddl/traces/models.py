"""Facts on models besides their speed, and what speeds on a given cluster follow from them."""

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
from coddl.core.speed.estimate import Model, estimated_places
from coddl.core.speed.table import Speeds
from coddl.traces.cells import Constraint, cells_of, listed, shown
from coddl.traces.text_file import read_text

COLUMNS: Final = ("model", "parameters", "largest_tensor", "source")
BYTES: Final = 4  # of a gradient: single precision
COUNT: Final = Constraint(lambda v: v >= 1, "be a number, at least 1", "25557032")
ANY_KIND: Final = "gpu"  # of a cluster or a table that does not say


@cache
def known_models() -> dict[str, Model]:
    """Facts on models by name."""
    what = "the packaged facts on models cannot be read"
    with as_file(files("coddl.traces") / "data" / "models.csv") as path:
        cells = cells_of(read_text(path, what), what, COLUMNS)
    parameters = cells.numbers("parameters", COUNT).tolist()
    largest = cells.numbers("largest_tensor", COUNT).tolist()
    rows = zip(cells.columns["model"], parameters, largest, strict=True)
    return {name: Model(BYTES * count, most / count) for name, count, most in rows}


def model_named(name: str) -> Model:
    """Facts on a model; on an unknown one, the median of those we know.

    `ResNet-50 (batch size 64)` and `resnet50-128` are resnet50.
    """
    known = known_models()
    short = name.lower().partition(" (")[0]
    for key in (short, short.replace("-", ""), short.rpartition("-")[0].replace("-", "")):
        if key in known:
            return known[key]
    sizes, skews = zip(*known.values(), strict=True)
    return Model(median(sizes), median(skews))


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
