"""What packing jobs on a GPU gains: Table 1 of Gandiva (OSDI '18), measured on an NVIDIA P40."""

import math
from dataclasses import replace
from importlib.resources import as_file, files
from typing import Final, NamedTuple

import numpy as np

from coddl.core.speed.places import plain
from coddl.core.speed.table import Speeds, interpolated
from coddl.traces.cells import Constraint, cells_of
from coddl.traces.text_file import read_text

COLUMNS: Final = ("model", "gpu_busy", "in_turns_per_s", "packed_per_s", "gain_percent")
RATE: Final = Constraint(lambda v: v > 0, "be a number above 0", "10.3")
GAIN: Final = Constraint(lambda v: v > -100, "be a number above -100", "46")
PART: Final = Constraint(lambda v: (v >= 0) & (v <= 1), "be within 0..1", "0.94")


class PackingRow(NamedTuple):
    """Jobs of one model on one GPU."""

    model: str
    busy: float  # the part of the time that one of them keeps the GPU busy
    in_turns_per_s: float  # mini-batches of all together, one job at a time
    packed_per_s: float  # the same with as many at once as is best
    gain_percent: float  # as printed in the paper, with its rounding

    @property
    def gain(self) -> float:
        """How much more is done packed than in turns, as a part."""
        return self.packed_per_s / self.in_turns_per_s - 1.0

    @property
    def throughput(self) -> float:
        """What one job takes of all that a GPU can do for its like.

        At its full speed, one job does 1 / (1 + gain) of what as many as is best do together.
        """
        return 1.0 / (1.0 + self.gain)

    @property
    def pair_factor(self) -> float:
        """Step time of each of two jobs that share the GPU, over that alone.

        With both at their full speed a pair does twice what one does. Where the table has more, it
        is of more than two jobs.
        """
        return max(1.0, 2.0 * self.throughput)

    @property
    def jobs(self) -> int:
        """How many jobs the GPU's memory has held at least, as the packed rate tells.

        None of them is faster than alone, and packed are two at least.
        """
        return max(2, math.ceil(self.packed_per_s / self.in_turns_per_s))


def packing_table() -> list[PackingRow]:
    """The models of the table, the least busy first."""
    what = "the packaged table of packing cannot be read"
    with as_file(files("coddl.traces") / "data" / "gandiva_packing.csv") as path:
        cells = cells_of(read_text(path, what), what, COLUMNS)
    busy = cells.numbers("gpu_busy", PART).tolist()
    in_turns, packed = (cells.numbers(name, RATE).tolist() for name in COLUMNS[2:4])
    gain_percent = cells.numbers("gain_percent", GAIN).tolist()
    columns = (cells.columns["model"], busy, in_turns, packed, gain_percent)
    return [PackingRow(*row) for row in zip(*columns, strict=True)]


def packing_speeds(gpus_max: int = 1) -> Speeds:
    """Speeds of the models, with what sharing a GPU costs them.

    The table is of one GPU and of pairs of one model. We assume that more GPUs do proportionally
    more, and that models side by side slow each other down as the worst of them does its like. A
    job takes as much memory as the table leaves for it: the GPU's by the jobs it has held at least.
    """
    table = packing_table()
    shares = range(1, gpus_max + 1)
    speeds = interpolated(
        {row.model: [(gpus, 1.0 / (row.in_turns_per_s * gpus)) for gpus in shares] for row in table}
    )
    factors = np.array([row.pair_factor for row in table])
    places = plain(len(table))._replace(
        packed=np.maximum.outer(factors, factors),
        busy=np.array([row.busy for row in table]),
        throughput=np.array([row.throughput for row in table]),
        memory=np.array([1.0 / row.jobs for row in table]),
    )
    return replace(speeds, known_places=places)
