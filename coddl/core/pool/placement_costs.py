"""What placements cost the jobs of a pool: an estimate, computed on demand.

A job's run tells how large its model is once its script has called `coddl.prepare`. From that, its
speeds and the links of the cluster follows what it costs to lie on several nodes, islands or racks,
as in the simulator. A job that has told nothing counts as equally fast everywhere.

A size that was measured on scattered devices counts as the best case all the same, for nobody keeps
where it was measured: such a job is taken to be slower than it is, by the estimated factor, until
that size is measured anew. Which of two places is better for it does not depend on that.

Kinds of GPU count as alike: what runs has been measured on the mix it got. And no two jobs share a
device here, so nothing is said on packing.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from coddl.core.cluster import Cluster, Node
from coddl.core.columns import FloatMatrix
from coddl.core.pool.job import JobState
from coddl.core.speed.estimate import NODES_MOST, Model, estimated_places
from coddl.core.speed.places import Places, plain

Estimator = Callable[[bytes, Model], Places]


def placement_costs(
    jobs: Sequence[JobState], sizes: Sequence[int], step_s: FloatMatrix, cluster: Cluster
) -> Places:
    """Return what placements cost jobs; `sizes` are the lengths of their speed curves."""
    estimator, found = _estimator(_outline(cluster)), dict[int, Places]()
    for row, (job, size) in enumerate(zip(jobs, sizes, strict=True)):
        if job.gradient_bytes:
            model = Model(job.gradient_bytes, job.largest_tensor_bytes / job.gradient_bytes)
            found[row] = estimator(step_s[row, : size + 1].tobytes(), model)
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


def _outline(cluster: Cluster) -> Cluster:
    """All of a cluster that estimates depend on: its largest node, how many there are, its links.

    So they need not be worked out anew whenever some node comes or goes.
    """
    widest = max(cluster.nodes, key=lambda node: node.gpus, default=Node("", 1))
    node = Node("", widest.gpus, island_gpus=widest.island_gpus)
    return Cluster((node,) * min(len(cluster.nodes), NODES_MOST), links=cluster.links)


@lru_cache(maxsize=2)
def _estimator(outline: Cluster) -> Estimator:
    """Give estimates for a cluster, remembered: few jobs have news since the last decision."""

    @lru_cache(maxsize=1 << 14)
    def estimated(step_s: bytes, model: Model) -> Places:
        return estimated_places(np.frombuffer(step_s).reshape(1, -1), [model], outline)

    return estimated
