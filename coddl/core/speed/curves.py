"""Speeds from profiles: the steps of a training at many sizes and places, replayed from one GPU.

Sizes lie on as few nodes as they take. Up to 16 every one is replayed, beyond that 8 in each
octave; between two of them step time is linear. What other places cost is replayed on fewer of
them, as what counts there is how places compare.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from coddl.core.columns import FloatColumn, FloatMatrix
from coddl.core.speed.adjustment import PredictedStep, predicted_step
from coddl.core.speed.places import Places, plain
from coddl.core.speed.profile import TrainingProfile
from coddl.core.speed.replay import Arrangement, LinkSpeeds, StepSetting, replayed

SIZES_MAX: Final = 256  # beyond, a curve goes on as it ends
ALL_TO: Final = 16  # up to here every size is replayed
IN_OCTAVE: Final = 8  # sizes that are replayed beyond, each time the size doubles


def replayed_sizes(
    profile: TrainingProfile, links: LinkSpeeds, node_gpus: int, most: int
) -> dict[int, PredictedStep]:
    """Replay a step at sizes from 1 to a most; raises UserError if a link is not known."""
    arrangements = (fewest_nodes(size, node_gpus) for size in sizes_to(min(most, SIZES_MAX)))
    return {
        each.workers: predicted_step(each, replayed(profile, each, links)) for each in arrangements
    }


def curve_of(steps: Mapping[int, PredictedStep], most: int) -> FloatColumn:
    """Seconds per step at every share up to a most, as a row of `Speeds.step_s`: share 0 first."""
    sizes = sorted(steps)
    step_s = np.interp(np.arange(most + 1), sizes, [steps[size].step_s for size in sizes])
    step_s[0] = np.inf
    return step_s


def sizes_to(most: int) -> Iterator[int]:
    """Yield sizes up to a most, the closer to each other the smaller they are."""
    size = 1
    while size < most:
        yield size
        size += max(1, (1 << (size.bit_length() - 1)) // IN_OCTAVE) if size >= ALL_TO else 1
    yield most


def fewest_nodes(size: int, node_gpus: int) -> Arrangement:
    """Workers on as few nodes as hold them."""
    whole, rest = divmod(size, node_gpus)
    return Arrangement((node_gpus,) * whole + ((rest,) if rest else ()))


def most_workers(profile: TrainingProfile) -> int:
    """The workers that an update has something for."""
    return profile.batch if profile.virtual_nodes is None else profile.virtual_nodes


def profile_places(
    profile: TrainingProfile, links: LinkSpeeds, node_gpus: int, *, nodes: int, most: int
) -> Places:
    """What places cost a training, as a table of one curve; raises UserError as replays do.

    Nodes are distinguished, and what each further job on a network card costs. Nothing is known of
    islands and racks.
    """
    most = min(most, SIZES_MAX, most_workers(profile))
    sizes, counts = _doubling(most), _doubling(min(nodes, most))
    best_s = np.array([_step_s(profile, fewest_nodes(n, node_gpus), links) for n in sizes])
    spread_s = np.array(
        [[_step_s(profile, _spread(n, node_gpus, count), links) for count in counts] for n in sizes]
    )
    factors = np.maximum(spread_s / best_s[:, None], 1.0)
    halved = StepSetting(bandwidth={"cluster": 0.5})
    crowded = np.zeros(len(sizes))
    for at, n in enumerate(sizes if nodes > 1 else []):
        if n > 1:
            across = _spread(n, node_gpus, 2)
            alone_s = _step_s(profile, across, links)
            crowded[at] = _step_s(profile, across, links, halved) / alone_s - 1.0
    total = sum(each.bytes_ for each in profile.buckets)
    skew = profile.largest_tensor_bytes / total if total else 0.0
    gpus = np.arange(most + 1)
    return plain(1)._replace(
        nodes=_between(factors, sizes, counts, most)[None],
        islands=np.ones((1, most + 1)),
        racks=np.ones((1, most + 1)),
        network=np.interp(gpus, sizes, crowded)[None],
        skew=np.array([min(skew, 1.0)]),
    )


def _doubling(most: int) -> list[int]:
    """Numbers from 1 to a most: each power of two, and what lies in the middle of two."""
    powers = [1 << power for power in range(most.bit_length())]
    middles = [power + power // 2 for power in powers if power > 1]
    return sorted({n for n in (*powers, *middles, most) if n <= most})


def _spread(size: int, node_gpus: int, nodes: int) -> Arrangement:
    """Spread workers evenly over a number of nodes, or over the nearest that can hold them."""
    count = min(max(nodes, -(-size // node_gpus)), size)
    whole, rest = divmod(size, count)
    return Arrangement((whole + 1,) * rest + (whole,) * (count - rest))


def _step_s(
    profile: TrainingProfile,
    where: Arrangement,
    links: LinkSpeeds,
    setting: StepSetting | None = None,
) -> float:
    return replayed(profile, where, links, setting).step_s


def _between(factors: FloatMatrix, sizes: list[int], counts: list[int], most: int) -> FloatMatrix:
    """Factors for [GPUs, nodes] from those at some: linear in both."""
    by_nodes = [np.interp(np.arange(counts[-1] + 1), counts, row) for row in factors]
    columns = np.array(by_nodes).T
    return np.array([np.interp(np.arange(most + 1), sizes, column) for column in columns]).T
