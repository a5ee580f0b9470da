"""Steps at sizes that a job was never seen at, replayed from its profile on the links of the pool.

Nodes tell what `coddl inspect` has measured of their links. A job's profile comes with its first
steps on one device, or from an earlier job that was alike. Both together tell how it scales before
it has been tried. Without either, nothing is estimated.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from coddl.core.errors import UserError
from coddl.core.pool.state import Pool
from coddl.core.speed.adjustment import PredictedStep, predicted_step
from coddl.core.speed.inspection import LINK_CLASSES, LinkClass, LinkSpeed
from coddl.core.speed.profile import TrainingProfile
from coddl.core.speed.replay import Arrangement, replayed

SIZES_MAX: Final = 256  # beyond, a curve goes on as it ends
ALL_TO: Final = 16  # up to here every size is replayed, beyond so many in each octave
IN_OCTAVE: Final = 8


class PoolOutline(NamedTuple):
    """All of a pool that estimates depend on."""

    node_gpus: int  # of its largest node
    gpus: int  # of all
    links: tuple[tuple[LinkClass, LinkSpeed], ...]


def outline_of(pool: Pool) -> PoolOutline:
    """Give the outline of a pool; of each class, the link in the middle of those nodes tell of.

    Links are rounded: what is worked out for an outline is not to be lost whenever a node with
    almost the same links comes or goes.
    """
    nodes = [node for node in pool.nodes.values() if node.is_up]
    links: dict[LinkClass, LinkSpeed] = {}
    for name in LINK_CLASSES:
        if told := [node.links[name] for node in nodes if name in node.links]:
            ((backend, _),) = Counter(link.backend for link in told).most_common(1)
            alike = sorted(link.gb_s for link in told if link.backend == backend)
            middle = alike[len(alike) // 2]
            links[name] = _rounded(next(link for link in told if link.gb_s == middle))
    sizes = [len(node.slots) for node in nodes]
    return PoolOutline(max(sizes, default=1), max(1, sum(sizes)), tuple(links.items()))


def predicted_steps(
    profile: TrainingProfile | None, outline: PoolOutline, most: int
) -> Mapping[int, PredictedStep]:
    """Replay a step at sizes up to a most or more, on as few nodes as each takes.

    Empty if one of them can't be replayed: estimates for some sizes beside mere assumptions for
    others would make those look better than they are.
    """
    if profile is None or not outline.links:
        return {}
    return _replays(profile, outline, min(outline.gpus, SIZES_MAX, 1 << (most - 1).bit_length()))


@lru_cache(maxsize=1 << 12)
def _replays(
    profile: TrainingProfile, outline: PoolOutline, most: int
) -> Mapping[int, PredictedStep]:
    links = dict(outline.links)
    try:
        return {
            each.workers: predicted_step(each, replayed(profile, each, links))
            for each in _arrangements(outline.node_gpus, _sizes(most))
        }
    except (UserError, ArithmeticError, ValueError):  # a link is not known, or numbers are absurd
        return {}


def _sizes(most: int) -> Iterator[int]:
    """Give sizes up to a most, the closer to each other the smaller they are."""
    size = 1
    while size < most:
        yield size
        size += max(1, (1 << (size.bit_length() - 1)) // IN_OCTAVE) if size >= ALL_TO else 1
    yield most


def _arrangements(node_gpus: int, sizes: Iterable[int]) -> Iterator[Arrangement]:
    for size in sizes:
        whole, rest = divmod(size, node_gpus)
        yield Arrangement((node_gpus,) * whole + ((rest,) if rest else ()))


def _rounded(link: LinkSpeed) -> LinkSpeed:
    """Leave two digits of what was measured."""
    gb_s, latency_us, call_us = (
        float(f"{each:.1e}") for each in (link.gb_s, link.latency_us, link.call_us)
    )
    return LinkSpeed(gb_s, latency_us, call_us, link.backend)
