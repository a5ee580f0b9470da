"""What placements cost the jobs of a pool: an estimate, computed on demand.

A job's run reports its model's size once its script has called `coddl.prepare`. From that, its
speeds and the links of the cluster follows what it costs to lie on several nodes, islands or racks,
as in the simulator. A job that has told nothing counts as equally fast everywhere.

Where a job's profile is known and the links of the nodes were inspected, what it costs to lie on
several nodes, and to share their network, is replayed from these. Islands and racks are not
inspected: they cost what is estimated.

A size that was measured on scattered devices counts as the best case all the same, because the
place where it was measured is not recorded: such a job is taken to be slower than it is, by the
estimated factor, until that size is measured anew. Which of two places is better for it does not
depend on that.

Kinds of GPU count as alike: what runs has been measured on the mix it got. And no two jobs share a
device here, so nothing is said on packing.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from coddl.core.cluster import Cluster, Node
from coddl.core.columns import FloatColumn, FloatMatrix
from coddl.core.errors import UserError
from coddl.core.pool.job import JobState
from coddl.core.speed.curves import profile_places
from coddl.core.speed.estimate import NODES_MOST, Model, estimated_places
from coddl.core.speed.inspection import LinkClass, LinkSpeed
from coddl.core.speed.places import Places, plain
from coddl.core.speed.profile import TrainingProfile

Estimator = Callable[[bytes, Model], Places]
KnownLinks = tuple[tuple[LinkClass, LinkSpeed], ...]


def placement_costs(
    jobs: Sequence[JobState],
    sizes: Sequence[int],
    step_s: FloatMatrix,
    cluster: Cluster,
    links: KnownLinks = (),
) -> Places:
    """Return what placements cost jobs; `sizes` are the lengths of their speed curves.

    `links` are those that nodes were inspected to have.
    """
    outline, found = _outline(cluster), dict[int, Places]()
    estimator = _estimator(outline)
    for row, (job, size) in enumerate(zip(jobs, sizes, strict=True)):
        if job.gradient_bytes:
            model = Model(job.gradient_bytes, job.largest_tensor_bytes / job.gradient_bytes)
            found[row] = estimator(step_s[row, : size + 1].tobytes(), model)
            if job.profile is not None and links:
                found[row] = _with_replays(found[row], job.profile, outline, links)
    rows = len(step_s)
    width = max((each.nodes.shape[1] for each in found.values()), default=1)
    depth = max((each.nodes.shape[2] for each in found.values()), default=1)
    places = plain(1)._replace(
        nodes=np.ones((rows, width, depth)),
        islands=np.ones((rows, width)),
        racks=np.ones((rows, width)),
        network=np.zeros((rows, width)),
        kinds=np.ones((rows, len(cluster.kinds))),
        skew=np.zeros(rows),
    )
    gpus, nodes = np.arange(width), np.arange(depth)
    for row, each in found.items():  # beyond its last size a curve goes on as it ends
        near = np.minimum(gpus, each.nodes.shape[1] - 1)
        few = np.minimum(nodes, each.nodes.shape[2] - 1)
        places.nodes[row] = each.nodes[0, near[:, None], few]
        places.islands[row] = each.islands[0, near]
        places.racks[row] = each.racks[0, near]
        places.network[row] = each.network[0, near]
        places.skew[row] = each.skew[0]
    return places


class ReplayedCosts(NamedTuple):
    """The cost of places, as estimated from a job's profile."""

    nodes: FloatMatrix  # [gpus, nodes]
    network: FloatColumn  # [gpus]


def _with_replays(
    estimated: Places, profile: TrainingProfile, outline: Cluster, links: KnownLinks
) -> Places:
    """Put replays in the place of estimates, if the profile can be replayed."""
    _, width, depth = estimated.nodes.shape
    node_gpus = max((node.gpus for node in outline.nodes), default=1)
    # Rounded up, so that a node that comes or goes seldom has all replayed anew.
    nodes_most, gpus_most = (_power_of_two(each - 1) for each in (depth, width))
    replays = _replayed(profile, links, node_gpus, nodes_most, gpus_most)
    if replays is None:
        return estimated
    gpus = np.minimum(np.arange(width), replays.nodes.shape[0] - 1)
    nodes = np.minimum(np.arange(depth), replays.nodes.shape[1] - 1)
    return estimated._replace(
        nodes=replays.nodes[np.ix_(gpus, nodes)][None], network=replays.network[gpus][None]
    )


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length() if least > 0 else 0


@lru_cache(maxsize=1 << 12)
def _replayed(
    profile: TrainingProfile, links: KnownLinks, node_gpus: int, nodes: int, most: int
) -> ReplayedCosts | None:
    if nodes < 1 or most < 1:
        return None
    try:
        found = profile_places(profile, dict(links), node_gpus, nodes=nodes, most=most)
    except (UserError, ArithmeticError, ValueError):  # a link is not known, or numbers are absurd
        return None
    return ReplayedCosts(found.nodes[0], found.network[0])


def _outline(cluster: Cluster) -> Cluster:
    """All of a cluster that estimates depend on: its largest node, how many there are, its links.

    So they need not be worked out anew whenever some node comes or goes.
    """
    widest = max(cluster.nodes, key=lambda node: node.gpus, default=Node("", 1))
    node = Node("", widest.gpus, island_gpus=widest.island_gpus)
    return Cluster((node,) * min(len(cluster.nodes), NODES_MOST), links=cluster.links)


@lru_cache(maxsize=2)
def _estimator(outline: Cluster) -> Estimator:
    """Return estimates for a cluster, remembered: few jobs have news since the last decision."""

    @lru_cache(maxsize=1 << 14)
    def estimated(step_s: bytes, model: Model) -> Places:
        return estimated_places(np.frombuffer(step_s).reshape(1, -1), [model], outline)

    return estimated
