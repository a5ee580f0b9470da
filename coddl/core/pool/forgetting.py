"""What a pool may forget: jobs that ended long ago, and nodes that have long been gone. Pure.

A pool remembers all that is active, and of what has ended the newest. What is older is in the
history (`recording`), and does not affect decisions.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from coddl.core.pool import records as r
from coddl.core.pool.job import JobState
from coddl.core.pool.nodes import AGENT

if TYPE_CHECKING:
    from coddl.core.pool.state import Pool

PAST_MAX: Final = 1000  # jobs that have ended that policies may learn from: pools keep as many


def past_jobs(pool: "Pool") -> list[JobState]:
    """Return the newest jobs that are over, by their end: policies may learn from them."""
    return [pool.jobs[number] for number in islice(reversed(pool.ended), PAST_MAX)][::-1]


def forgettable(pool: "Pool", keep: int) -> list[int]:
    """Name the jobs that are over and hold nothing, less the newest, the oldest end first."""
    oldest = islice(pool.ended, max(0, len(pool.ended) - keep))
    owners = {owner for slot in pool.slots.values() for owner in slot.owners}
    return [number for number in oldest if number not in owners]


def still_known(pool: "Pool", event: r.JobsForgotten) -> r.JobsForgotten:
    """Return the event, less the jobs that were forgotten before."""
    return r.JobsForgotten(tuple(job for job in event.jobs if job in pool.jobs))


def forget_jobs(pool: "Pool", jobs: Iterable[int]) -> None:
    """Remove jobs that are over; how many there were stays known."""
    for number in jobs:
        job = pool.jobs.pop(number)
        assert job.is_over, f"job {number} is {job.phase}"
        pool.ended.pop(number, None)
        pool.forgotten[job.phase] = pool.forgotten.get(job.phase, 0) + 1


def gone_nodes(pool: "Pool", now_s: float, keep_s: float) -> Iterator[r.NodeForgotten]:
    """Forget the nodes that were lost that long ago.

    One that a user has drained stays: it must not come back as one that may be used.
    """
    for node in pool.nodes.values():
        is_drained = node.is_drained and node.drained_by != AGENT
        if node.lost_s is not None and now_s - node.lost_s > keep_s and not is_drained:
            yield r.NodeForgotten(node.name, "the server")
