"""Finds the learning-rate schedulers of an optimizer that the script did not name."""

import gc
from typing import Any

from torch.optim import Optimizer, lr_scheduler

Scheduler = Any  # an LRScheduler, or a ReduceLROnPlateau of an older torch
KINDS = (lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau)


def schedulers_of(optimizer: Optimizer) -> list[Scheduler]:
    """Return the schedulers that refer to an optimizer, parts of composite ones left out.

    The order is the same in every worker: by their types and states.
    """
    found: dict[int, Scheduler] = {}
    for holder in gc.get_referrers(optimizer):
        # A scheduler refers to its optimizer itself, or through the dict of its attributes.
        around = [holder] if isinstance(holder, KINDS) else gc.get_referrers(holder)
        for each in around:
            if isinstance(each, KINDS) and getattr(each, "optimizer", None) is optimizer:
                found[id(each)] = each
    parts = {
        id(part) for scheduler in found.values() for part in getattr(scheduler, "_schedulers", ())
    }
    return sorted(
        (each for number, each in found.items() if number not in parts),
        key=lambda each: (type(each).__name__, repr(each.state_dict())),
    )
