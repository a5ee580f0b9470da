"""Step times measured on placements: a folder with a CSV file for each model.

The files are those of the Pollux artifact (OSDI '21): `placement`, with a digit for each node that
tells how many GPUs are used there, `local_bsz`, `step_time` and `sync_time`, in seconds. The last
is the part of the step after the backward pass in which gradients are still under way; the rest of
the step is what a pass takes that only accumulates gradients.

There local batches vary; here a model has one global batch, divided among the GPUs: what gives each
of the most GPUs the middle (the geometric mean) of the smallest and the largest batch measured on
them. So no step time is extrapolated; between two measured batches it is linear. Where a GPU's part
is larger than any batch measured there, it accumulates over several passes.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from math import ceil, sqrt
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from coddl.core.columns import FloatCube, FloatMatrix
from coddl.core.errors import UserError
from coddl.core.speed.places import Places, plain
from coddl.core.speed.table import Speeds, interpolated
from coddl.traces.cells import Cells, Constraint, cells_of
from coddl.traces.models import skews_of
from coddl.traces.text_file import read_text

COLUMNS: Final = ("placement", "local_bsz", "step_time", "sync_time")
SECONDS: Final = Constraint(
    lambda v: (v >= 0) & (v <= 1e9), "be a number of seconds, at least 0", "0.35"
)
SAMPLES: Final = Constraint(lambda v: (v >= 1) & (v <= 1e9), "be a number, at least 1", "32")


class StepTime(NamedTuple):
    """A step, and its part in which only gradients are under way."""

    step_s: float
    sync_s: float


class MeasuredPlacement(NamedTuple):
    """GPUs used on each node."""

    on_nodes: tuple[int, ...]

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return sum(self.on_nodes)


# What was measured of a model: local batch -> step, for each placement.
Measured = Mapping[MeasuredPlacement, Mapping[float, StepTime]]


def read_pollux(folder: Path) -> Speeds:
    """Speeds at the best placement of each share, and what other numbers of nodes cost."""
    measured = measurements(folder)
    tables = {name: _by_nodes(each) for name, each in measured.items()}
    points = {name: _best(table) for name, table in tables.items()}
    speeds = interpolated(points)
    return replace(speeds, known_places=_places(tables, speeds))


def measurements(folder: Path) -> dict[str, Measured]:
    """What the folder holds, by model."""
    what = f"speed table {folder} cannot be read"
    paths = sorted(folder.glob("*.csv"))
    if not paths:
        try_ = "a folder with MODEL.csv files of " + ",".join(COLUMNS)
        raise UserError(what, "no file in that folder ends in .csv", try_)
    return {path.stem: _measured(path) for path in paths}


def _measured(path: Path) -> Measured:
    what = f"speed table {path} cannot be read"
    cells = cells_of(read_text(path, what), what, COLUMNS)
    batch = cells.numbers("local_bsz", SAMPLES).tolist()
    step_s, sync_s = (cells.numbers(name, SECONDS) for name in COLUMNS[2:])
    out: defaultdict[MeasuredPlacement, dict[float, StepTime]] = defaultdict(dict)
    for row, size in enumerate(batch):
        step = StepTime(float(step_s[row]), float(sync_s[row]))
        if not 0.0 < step.step_s >= step.sync_s:
            raise cells.bad(row, "sync_time", "be a part of step_time, which is above 0", "0.01")
        out[_placement(cells, row)][size] = step
    return out


def _placement(cells: Cells, row: int) -> MeasuredPlacement:
    digits = cells.columns["placement"][row]
    if not (digits.isascii() and digits.isdigit() and "0" not in digits and len(digits) <= 64):
        must = "be a digit above 0 for each node"
        raise cells.bad(row, "placement", must, "12, for 1 GPU of a node and 2 of another")
    return MeasuredPlacement(tuple(map(int, digits)))


def global_batch(measured: Measured) -> int:
    """The batch that all GPUs of a job share."""
    most = max(measured, key=lambda placement: placement.gpus)
    sizes = measured[most]
    return most.gpus * round(sqrt(min(sizes) * max(sizes)))


def step_at(steps: Mapping[float, StepTime], samples: float) -> StepTime:
    """The step with this number of samples per GPU, in the fewest passes that hold them."""
    sizes = sorted(steps)
    passes = ceil(samples / sizes[-1])
    step_s, sync_s = (
        float(np.interp(samples / passes, sizes, [steps[size][part] for size in sizes]))
        for part in (0, 1)
    )
    return StepTime(passes * (step_s - sync_s) + sync_s, sync_s)


def _by_nodes(measured: Measured) -> dict[int, dict[int, StepTime]]:
    """The mean step of all placements, by number of GPUs and of nodes."""
    batch = global_batch(measured)
    found: defaultdict[int, defaultdict[int, list[StepTime]]]
    found = defaultdict(lambda: defaultdict(list))
    for placement, steps in measured.items():
        samples = ceil(batch / placement.gpus)
        found[placement.gpus][len(placement.on_nodes)].append(step_at(steps, samples))
    return {
        gpus: {nodes: StepTime(*np.mean(each, axis=0).tolist()) for nodes, each in by_nodes.items()}
        for gpus, by_nodes in found.items()
    }


def _best(table: Mapping[int, Mapping[int, StepTime]]) -> list[tuple[int, float]]:
    return [(gpus, min(step.step_s for step in by.values())) for gpus, by in table.items()]


def _places(tables: Mapping[str, Mapping[int, Mapping[int, StepTime]]], speeds: Speeds) -> Places:
    """The cost of other numbers of nodes than the best, and of sharing a network card.

    Another job on the card halves the bandwidth, so that what was seen of the exchange takes twice
    as long. A number of nodes that was not measured costs what the next one does that was.
    """
    curves, width = speeds.step_s.shape
    depth = 1 + max(max(by) for table in tables.values() for by in table.values())
    nodes: FloatCube = np.ones((curves, width, depth))
    network: FloatMatrix = np.zeros((curves, width))
    for curve, table in enumerate(tables.values()):
        for gpus in range(min(table), width):
            by = table[max(known for known in table if known <= gpus)]
            best_s, known = min(step.step_s for step in by.values()), sorted(by)
            for count in range(1, depth):
                near = next((n for n in known if n >= count), known[-1])
                nodes[curve, gpus, count] = by[near].step_s / best_s
            crossing = [step.sync_s / step.step_s for n, step in by.items() if n > 1]
            network[curve, gpus] = np.mean(crossing) if crossing else 0.0
    return plain(curves)._replace(nodes=nodes, network=network, skew=skews_of(speeds.names))
