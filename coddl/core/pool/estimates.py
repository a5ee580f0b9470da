"""Steps at sizes that a job was never seen at, replayed from its profile on the links of the pool.

Nodes tell what `coddl inspect` has measured of their links. A job's profile comes with its first
steps on one device, or from an earlier job that was alike. Both together tell how it scales before
it has been tried. Without either, nothing is estimated.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from coddl.core.errors import UserError
from coddl.core.pool.state import Pool
from coddl.core.speed.adjustment import PredictedStep, predicted_step
from coddl.core.speed.inspection import LINK_CLASSES, LinkClass, LinkSpeed
from coddl.core.speed.profile import TrainingProfile
from coddl.core.speed.replay import Arrangement, replayed

SIZES_MAX: Final = 256  # beyond, a curve goes on as it ends


class PoolOutline(NamedTuple):
    """All of a pool that estimates depend on."""

    node_gpus: int  # of its largest node
    links: tuple[tuple[LinkClass, LinkSpeed], ...]


def outline_of(pool: Pool) -> PoolOutline:
    """Give the outline of a pool; of each class, the slowest link that a node tells of."""
    nodes = [node for node in pool.nodes.values() if node.is_up]
    slowest: dict[LinkClass, LinkSpeed] = {}
    for name in LINK_CLASSES:
        if told := [node.links[name] for node in nodes if name in node.links]:
            slowest[name] = min(told, key=lambda link: link.gb_s)
    return PoolOutline(max((len(node.slots) for node in nodes), default=1), tuple(slowest.items()))


@lru_cache(maxsize=1 << 12)
def predicted_steps(
    profile: TrainingProfile | None, outline: PoolOutline, most: int
) -> Mapping[int, PredictedStep]:
    """Replay a step at each size up to a most, on as few nodes as it takes.

    Empty if one of them can't be replayed: estimates for some sizes beside mere assumptions for
    others would make those look better than they are.
    """
    if profile is None or not outline.links:
        return {}
    links = dict(outline.links)
    try:
        return {
            each.workers: predicted_step(each, replayed(profile, each, links))
            for each in _arrangements(outline.node_gpus, min(most, SIZES_MAX))
        }
    except UserError:  # a link is not known
        return {}


def _arrangements(node_gpus: int, most: int) -> Iterable[Arrangement]:
    for size in range(1, most + 1):
        whole, rest = divmod(size, node_gpus)
        yield Arrangement((node_gpus,) * whole + ((rest,) if rest else ()))
