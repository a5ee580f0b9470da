"""How long a turn lasts where switching from one job to another costs little."""

from dataclasses import replace
from typing import Final

import numpy as np

from coddl.core.jobs import OPAQUE, JobTable
from coddl.core.snapshot import Snapshot

OVERHEAD: Final = 0.02  # part of a turn that the switch at its end may cost
TURN_MIN_S: Final = 10.0


def turn_s(jobs: JobTable, most_s: float) -> float:
    """Seconds that a turn of these jobs lasts: `most_s`, or less if what a switch costs is known.

    It is known if that holds for every job that has run, opaque ones apart, which keep their GPUs
    to their end. Then a turn lasts as long as the mean switch costs, over OVERHEAD, but TURN_MIN_S
    at least. With restartable jobs it is never known: a turn that is too short for them to save
    their work would be wasted.
    """
    has_run = np.isfinite(jobs.first_start_s) & (jobs.tier != OPAQUE)
    costs_s = jobs.switch_s[has_run]
    if costs_s.size == 0 or np.isnan(costs_s).any():
        return most_s
    return min(most_s, max(TURN_MIN_S, float(costs_s.mean()) / OVERHEAD))


def with_short_turns(snapshot: Snapshot, lease_end_s: int, most_s: float) -> Snapshot:
    """The same snapshot, in whose memory no turn ends later than one that begins now.

    What a switch costs may have become known after a turn began. `lease_end_s` is the column.
    """
    lasts_s = turn_s(snapshot.jobs, most_s)
    if lasts_s >= most_s:
        return snapshot
    memory = snapshot.memory.copy()
    memory[:, lease_end_s] = np.minimum(memory[:, lease_end_s], snapshot.now_s + lasts_s)
    return replace(snapshot, memory=memory)
