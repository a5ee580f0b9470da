"""A batch on unlike GPUs: how many parts of it each device takes, so that a step ends soonest.

A batch is cut by sample; that of a strict job consists of V virtual nodes, which are not cut.
Shared in proportion to speed, it keeps all devices busy to the end of a step: that is the smooth
form, which `places.mix` has and the simulator uses. With few parts, as in a strict job, whole parts
make a difference, and the staircase is exact.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from coddl.core.columns import IntColumn


def balanced(virtual_nodes: int, node_s: Sequence[float]) -> IntColumn:
    """How many virtual nodes each device takes, given the seconds that it needs for one.

    Minimises max(count x node_s). Each goes to the device that would end it first, ties to the
    first device: of all times at which a device could end one of its virtual nodes, this takes the
    V earliest, and any other deal takes a later one. A device may be too slow to help and get none.
    """
    counts = np.zeros(len(node_s), np.int64)
    ends_s = [(one_s, device) for device, one_s in enumerate(node_s)]
    heapq.heapify(ends_s)
    for _ in range(virtual_nodes):
        _, device = ends_s[0]
        counts[device] += 1
        heapq.heapreplace(ends_s, ((counts[device] + 1) * node_s[device], device))
    return counts


def equal(virtual_nodes: int, devices: int) -> IntColumn:
    """How many virtual nodes each device takes where all count as alike."""
    most, more = divmod(virtual_nodes, devices)
    counts = np.full(devices, most)
    counts[:more] += 1
    return counts


def compute_s(counts: IntColumn, node_s: Sequence[float]) -> float:
    """Seconds until the last device has ended its virtual nodes."""
    return float((counts * np.array(node_s)).max())
