"""How many GPUs jobs need together: what each makes good use of, unless it is soon over."""

from typing import NamedTuple

import numpy as np

from coddl.core.columns import FloatColumn, IntColumn
from coddl.core.waiting import counted


class JobNeeds(NamedTuple):
    """What decides how many GPUs each job needs, one entry per job."""

    id: IntColumn
    gpus_min: IntColumn
    worth: IntColumn  # the most GPUs that it makes good use of: `gpus_worth`
    held: IntColumn
    left_s: FloatColumn  # until its end on what it holds; NaN: unknown


class Demand(NamedTuple):
    """The GPUs that jobs need, and a sentence about it."""

    gpus: int
    because: str


def gpus_needed(jobs: JobNeeds, start_s: float) -> IntColumn:
    """Count the GPUs that each job needs.

    A job that runs, and ends before a node could start, needs no more than it holds.
    """
    runs = (jobs.held >= jobs.gpus_min) & (jobs.held < jobs.worth)
    return np.where(runs & (jobs.left_s < start_s), jobs.held, jobs.worth)


def demand_of(jobs: JobNeeds, start_s: float, unit: str = "GPU") -> Demand:
    """Add up the GPUs that jobs need."""
    if jobs.id.size == 0:
        return Demand(0, "no job needs a node")
    needed = gpus_needed(jobs, start_s)
    total, most = int(needed.sum()), int(np.lexsort((jobs.id, -needed))[0])
    name, gpus = f"job {jobs.id[most]}", counted(total, unit)
    if jobs.id.size == 1:
        return Demand(total, f"{name} can use {gpus}")
    return Demand(total, f"{jobs.id.size} jobs can use {gpus} (the most: {name}, {needed[most]})")
