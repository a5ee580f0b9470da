"""How long the start of a run may take."""

from coddl.core.pool.job import JobState
from coddl.core.pool.state import Pool


def start_due_s(pool: Pool, job: JobState) -> float | None:
    """Return until when a job must have made its first step; None: it would not be reported."""
    if job.lead is None or pool.is_deaf(job):
        return None
    # An agent that was away reports what happened meanwhile only after it has come back.
    since_s = max(job.story[-1].at_s, pool.nodes[job.lead].back_s)
    return since_s + start_within_s(job)


def start_within_s(job: JobState) -> float:
    """Return how long a start may take: it makes no progress while it waits for its turn."""
    within_s = job.spec.launch.start_within_s
    return within_s if job.sharers == 1 else (within_s + job.turn_s) * job.sharers
