"""Steps at sizes that a job was never seen at, replayed from its profile on the links of the pool.

Nodes report what `coddl inspect` has measured of their links. A job's profile comes with its first
steps on one device, or from an earlier job that was alike. Both together show how it scales before
it has been tried. Without either, nothing is estimated.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from coddl.core.errors import UserError
from coddl.core.pool.job import JobState
from coddl.core.speed.adjustment import PredictedStep
from coddl.core.speed.curves import SIZES_MAX, replayed_sizes
from coddl.core.speed.inspection import LINK_CLASSES, LinkClass, LinkSpeed
from coddl.core.speed.profile import TrainingProfile

if TYPE_CHECKING:
    from coddl.core.pool.state import Pool


class PoolOutline(NamedTuple):
    """All of a pool that estimates depend on."""

    node_gpus: int  # of its largest node
    gpus: int  # of all
    links: tuple[tuple[LinkClass, LinkSpeed], ...]


def outline_of(pool: "Pool") -> PoolOutline:
    """Return the outline of a pool.

    Links are rounded: what is worked out for an outline is not to be lost whenever a node with
    almost the same links comes or goes.
    """
    links = {name: _rounded(link) for name, link in links_of(pool).items()}
    sizes = [len(node.slots) for node in pool.nodes.values() if node.is_up]
    return PoolOutline(max(sizes, default=1), max(1, sum(sizes)), tuple(links.items()))


def links_of(pool: "Pool") -> dict[LinkClass, LinkSpeed]:
    """Return the median of the links that nodes report, for each class."""
    links: dict[LinkClass, LinkSpeed] = {}
    nodes = [node for node in pool.nodes.values() if node.is_up]
    for name in LINK_CLASSES:
        if told := [node.links[name] for node in nodes if name in node.links]:
            ((backend, _),) = Counter(link.backend for link in told).most_common(1)
            alike = sorted(link.gb_s for link in told if link.backend == backend)
            middle = alike[len(alike) // 2]
            links[name] = next(link for link in told if link.gb_s == middle)
    return links


def note_estimable(pool: "Pool", numbers: Iterable[int]) -> None:
    """Note which jobs a profile would help: only those wait for theirs before they grow."""
    jobs = [job for number in numbers if (job := pool.jobs[number]).profile is None]
    if not jobs:
        return
    is_told = any(node.links for node in pool.nodes.values())
    outline = outline_of(pool) if is_told else None
    for job in jobs:
        job.is_estimable = outline is not None and _could_estimate(job, outline)


def _could_estimate(job: JobState, outline: PoolOutline) -> bool:
    """Return whether a job's speeds could be estimated if it had a profile."""
    most = min(job.gpus_most, outline.gpus)
    if most == 1 or job.spec.step_s or job.spec.launch.env.get("CODDL_INSPECT") == "0":
        return False
    return _needed(outline, most) <= dict(outline.links).keys()


def _needed(outline: PoolOutline, most: int) -> set[LinkClass]:
    """Name the links that workers use at sizes up to a most."""
    needed: set[LinkClass] = set()
    if min(most, outline.node_gpus) > 1:
        needed.add("node")
    if most > outline.node_gpus:
        needed.add("cluster")
    return needed


def predicted_steps(
    profile: TrainingProfile | None, outline: PoolOutline, most: int
) -> Mapping[int, PredictedStep]:
    """Replay a step at sizes up to a most or more, on as few nodes as each takes.

    Empty if one of them can't be replayed: estimates for some sizes and mere assumptions for
    others would make those look better than they are.
    """
    if profile is None or not outline.links:
        return {}
    rounded = min(outline.gpus, SIZES_MAX, 1 << (most - 1).bit_length())
    if most <= outline.node_gpus:  # links between nodes are not needed
        rounded = min(rounded, outline.node_gpus)
    return _replays(profile, outline, rounded)


@lru_cache(maxsize=1 << 12)
def _replays(
    profile: TrainingProfile, outline: PoolOutline, most: int
) -> Mapping[int, PredictedStep]:
    try:
        return replayed_sizes(profile, dict(outline.links), outline.node_gpus, most)
    except (UserError, ArithmeticError, ValueError):  # a link is not known, or numbers are absurd
        return {}


def _rounded(link: LinkSpeed) -> LinkSpeed:
    """Leave two digits of what was measured."""
    gb_s, latency_us, call_us = (
        float(f"{each:.1e}") for each in (link.gb_s, link.latency_us, link.call_us)
    )
    factors = tuple(each._replace(factor=float(f"{each.factor:.1e}")) for each in link.factors)
    return LinkSpeed(gb_s, latency_us, call_us, link.backend, factors=factors)
