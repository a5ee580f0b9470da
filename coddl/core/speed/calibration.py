"""What the links of a cluster do, fitted to steps that were measured there.

Where links were not inspected, they are derived from the step times of trainings. Of each training,
its step on one GPU and its gradient bytes are known, and a replay gives its steps on more GPUs for
any links. The links are those with which the replays are least off, in the mean over all trainings
of the mean absolute logarithm of replayed over measured. They are searched on a grid:

    GB/s within a node          1 to 32         call                0 to 20 ms
    GB/s between nodes          0.5 to 16       message between nodes  0 to 1 ms

together with two things that are the same for all trainings, but that a step on one GPU does not
tell: how large the buckets are in which gradients are sent, and which part of the computing is not
divided among GPUs. The latter is one value for each family of trainings, such as those that are
recurrent: they take one time step after the other, however few samples there are.

What is fitted to a training must not be used to estimate it: `calibrated_without` leaves it out.
"""

from collections.abc import Mapping
from itertools import product
from math import ceil, inf, log2
from typing import Final, NamedTuple

import numpy as np

from coddl.core.columns import FloatColumn, FloatCube, FloatMatrix
from coddl.core.errors import UserError
from coddl.core.speed.estimate import BACKWARD, BUCKET_BYTES, Model, even_buckets
from coddl.core.speed.inspection import LinkSpeed
from coddl.core.speed.profile import GradientBucket, SliceTime, TrainingProfile
from coddl.core.speed.replay import LinkSpeeds

NODE_GB_S: Final = np.geomspace(1.0, 32.0, 11)
CLUSTER_GB_S: Final = np.geomspace(0.5, 16.0, 11)
CALL_US: Final = (0.0, 1e3, 2e3, 3e3, 5e3, 7e3, 1e4, 1.4e4, 2e4)  # however many workers
MESSAGE_US: Final = (0.0, 30.0, 100.0, 300.0, 1e3)  # between nodes
BUCKETS: Final = (BUCKET_BYTES, inf)  # as PyTorch cuts them, or all at the end
UNDIVIDED: Final = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
SAMPLES: Final = 1 << 20  # of a batch, if its size is not known: it can be cut evenly
BACKEND: Final = "nccl"


class KnownTraining(NamedTuple):
    """What is known of a training without having run it on several GPUs."""

    alone_s: float  # a step on one GPU
    model: Model
    family: str = ""


class MeasuredScaling(NamedTuple):
    """A training, and its steps on several GPUs."""

    training: KnownTraining
    step_s: Mapping[int, float]  # by size, above 1


class Calibration(NamedTuple):
    """All that a replay needs in addition to a training."""

    links: LinkSpeeds
    bucket_bytes: float = BUCKET_BYTES
    undivided: Mapping[str, float] = {}  # by family: the part of the computing

    def profile(self, training: KnownTraining) -> TrainingProfile:
        """The profile that one worker would measure of a training."""
        fixed = self.undivided.get(training.family, 0.0)
        halves = [
            SliceTime(samples, forward * whole_s, (1.0 - forward) * whole_s)
            for forward in (1.0 - BACKWARD,)
            for samples in (SAMPLES // 2, SAMPLES)
            for whole_s in (training.alone_s * (fixed + (1.0 - fixed) * samples / SAMPLES),)
        ]
        buckets = even_buckets(training.model, self.bucket_bytes)
        ready = (buckets.ready - (1.0 - BACKWARD)) / BACKWARD
        sent = zip(buckets.size_bytes.tolist(), ready.tolist(), strict=True)
        return TrainingProfile(
            device="",
            batch=SAMPLES,
            slices=tuple(halves),
            update_s=0.0,
            other_s=0.0,
            data_s=0.0,
            buckets=tuple(GradientBucket(round(size), min(part, 1.0)) for size, part in sent),
        )


class LinkGrid(NamedTuple):
    """Links to try, one in each row."""

    node_gb_s: FloatMatrix
    cluster_gb_s: FloatMatrix
    call_us: FloatMatrix
    message_us: FloatMatrix

    @classmethod
    def all(cls) -> "LinkGrid":
        """Return every combination."""
        tried = np.array(list(product(NODE_GB_S, CLUSTER_GB_S, CALL_US, MESSAGE_US)))
        return cls(*(column[:, None] for column in tried.T))

    def links(self, at: int) -> LinkSpeeds:
        """Return those of a row."""
        node, cluster, call, message = (float(column[at, 0]) for column in self)
        return {
            "node": LinkSpeed(node, 0.0, call, BACKEND),
            "cluster": LinkSpeed(cluster, message, call, BACKEND),
        }


def calibrated_without(
    name: str, measured: Mapping[str, MeasuredScaling], off: Mapping[str, FloatCube]
) -> Calibration:
    """Calibrate with all trainings but one; `off` is what `all_errors` gives for them.

    Its family's undivided part is that of the others in the family; without others, of all.
    """
    families: dict[str, list[FloatCube]] = {}
    for other, each in measured.items():
        if other != name:
            families.setdefault(each.training.family, []).append(off[other])
    if not families:
        raise UserError(
            f"speeds of {name} cannot be estimated",
            "no other model of the speed table was measured on several GPUs, so the speed "
            "of the links is unknown",
            "--links inspection.json, as coddl inspect --save writes it",
        )
    sums = {family: sum(each[1:], each[0]) for family, each in families.items()}
    least = sum(each.min(axis=1) for each in sums.values())
    bucket, row = np.unravel_index(np.argmin(least), np.shape(least))
    parts = {family: each[bucket, :, row] for family, each in sums.items()}
    everyone = np.sum(list(parts.values()), axis=0)
    parts.setdefault(measured[name].training.family, everyone)
    undivided = {family: UNDIVIDED[int(np.argmin(each))] for family, each in parts.items()}
    return Calibration(LinkGrid.all().links(int(row)), BUCKETS[bucket], undivided)


def all_errors(measured: Mapping[str, MeasuredScaling], node_gpus: int) -> dict[str, FloatCube]:
    """How far replays of each training are off, for [bucket size, undivided part, links]."""
    grid = LinkGrid.all()
    return {
        name: np.stack([_errors(each, bucket, grid, node_gpus) for bucket in BUCKETS])
        for name, each in measured.items()
    }


def _errors(
    measured: MeasuredScaling, bucket_bytes: float, grid: LinkGrid, node_gpus: int
) -> FloatMatrix:
    """Errors of a training with buckets of a size, for [undivided part, links]."""
    alone_s, model, _ = measured.training
    buckets, fixed = even_buckets(model, bucket_bytes), np.array(UNDIVIDED)
    off = np.zeros((len(fixed), len(grid.call_us)))
    for size, step_s in measured.step_s.items():
        exchanges = _exchanged_s(size, buckets.size_bytes, grid, node_gpus)
        chains = np.cumsum(exchanges[:, ::-1], axis=1)[:, ::-1]
        compute_s = (alone_s * (fixed + (1.0 - fixed) / size))[:, None, None]
        ends = (buckets.ready * compute_s + chains).max(axis=2)
        off += np.abs(np.log(np.maximum(compute_s[:, :, 0], ends) / step_s))
    return off / len(measured.step_s)


def _exchanged_s(size: int, bytes_: FloatColumn, grid: LinkGrid, node_gpus: int) -> FloatMatrix:
    """Seconds of each bucket's exchange, for all links: the formulas of `collectives`."""
    widest, nodes, call_s = min(size, node_gpus), ceil(size / node_gpus), 1e-6 * grid.call_us
    node_s, cluster_s = (1e-9 * bytes_ / gb_s for gb_s in (grid.node_gb_s, grid.cluster_gb_s))
    message_s = 1e-6 * grid.message_us

    def ring(members: int, whole_s: FloatMatrix, per_message_s: FloatMatrix | float) -> FloatMatrix:
        if members < 2:
            return np.zeros_like(whole_s)
        sent: FloatMatrix = call_s + 2.0 * (members - 1) * (per_message_s + whole_s / members)
        return sent

    hierarchical = ring(widest, node_s, 0.0) + ring(nodes, cluster_s, message_s)
    one_ring = ring(size if widest > 1 else 1, node_s, 0.0)
    tree = call_s + 2.0 * node_s if widest > 1 else np.zeros_like(node_s)
    if nodes > 1:
        one_ring = np.maximum(one_ring, ring(size, cluster_s, message_s))
        tree = np.maximum(tree, call_s + 2.0 * ceil(log2(size)) * message_s + 2.0 * cluster_s)
    fastest: FloatMatrix = np.minimum(np.minimum(hierarchical, one_ring), tree)
    return fastest


def table_sizes(node_gpus: int, most: int) -> list[int]:
    """The sizes at which tables of step times are measured: halves of a node, and whole nodes."""
    halves = [size for power in range(node_gpus.bit_length()) if (size := 1 << power) < node_gpus]
    whole = range(node_gpus, most + 1, node_gpus)
    return [size for size in (*halves, *whole) if size <= most]
