"""Parked workers: what a node keeps of a run that has given up its GPUs.

The state of such a run is on disk, and its next one may start anywhere. Where the workers are
parked they have all of it in host memory, so that a start there takes a fraction of a second. They
own no slot: others use the GPUs meanwhile.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from coddl.core.pool import records as r
from coddl.core.pool.job import JobState
from coddl.core.pool.slot_sharing import hold

if TYPE_CHECKING:
    from coddl.core.pool.state import Pool


def may_park(pool: "Pool", job: JobState) -> bool:
    """Return whether a job's workers may be parked where they are when it gives up its GPUs.

    They are all on one node, which stays, and the run has trained, so that they have a state. One
    that is on its way back to its GPUs needs them for that, before it can leave them again.
    """
    trains = job.phase == "running" or (job.phase == "resizing" and bool(job.serves))
    if not job.is_elastic or job.proven_s is None or not trains or job.cancelled:
        return False
    nodes = pool.nodes_of(job.granted)
    return len(nodes) == 1 and pool.nodes[nodes[0]].may_park


def free_parked(pool: "Pool", job: JobState, slot: int, now_s: float) -> None:
    """Take a slot from a run that has parked its workers there and is still being saved."""
    if job.stop == "park" and slot in job.granted:
        hold(pool, job, tuple(each for each in job.granted if each != slot), now_s)
        pool.touch(pool.nodes_of([slot]))


def may_call_back(pool: "Pool", job: JobState) -> bool:
    """Return whether a run whose workers are parked, and that is still being saved, may go on.

    It has given up all of its slots, so all of its workers are parked.
    """
    is_parked = job.stop == "park" and not job.granted and not job.cancelled and not job.suspended
    goes_on = not {*job.target}.isdisjoint(job.serves)  # a parked worker has the state
    return is_parked and goes_on and pool.nodes_of(job.target) == (job.lead,)


def park(pool: "Pool", job: JobState, ended: r.RunEnded) -> None:
    """Note where a run that has retired has left its workers; none: it tells no cost either."""
    job.park_s = ended.park_s if ended.parked else None
    slots = tuple(slot for slot in ended.parked if slot in pool.slots)
    nodes = pool.nodes_of(slots)
    if job.is_over or not nodes or not all(pool.nodes[node].may_park for node in nodes):
        return
    job.parked, job.parked_bytes = slots, ended.parked_bytes
    job.state_bytes = ended.parked_bytes or job.state_bytes
    for node in nodes:
        pool.nodes[node].parked[job.id] = None
    pool.touch(nodes)


def end_parking(pool: "Pool", job: JobState) -> None:
    """Take note that a job has no parked workers any more."""
    nodes = pool.nodes_of(job.parked)
    job.parked, job.parked_bytes = (), 0
    for node in nodes:
        pool.nodes[node].parked.pop(job.id, None)
    pool.touch(nodes)


def leave_parked(pool: "Pool", job: JobState, aimed: r.Aimed) -> None:
    """Start a job out of its parked workers, if there are any on the node where it starts."""
    is_warm = aimed.adopt or pool.nodes_of(job.parked) == (aimed.lead,)
    if not is_warm:
        job.resume_s = None  # it takes longer this time
    job.is_resumed |= is_warm and bool(job.parked)
    end_parking(pool, job)


def stop_parking_on(pool: "Pool", node: str) -> None:
    """Have no workers parked on a node any more, and none about to be."""
    state = pool.nodes[node]
    for number in list(state.parked):
        end_parking(pool, pool.jobs[number])
    for owner in {owner for slot in state.slots for owner in pool.slots[slot].owners}:
        if (job := pool.jobs[owner]).stop == "park":
            job.stop = "retire"
            pool.touch([job.lead])


def parked_on(pool: "Pool", job: JobState) -> str | None:
    """Name the node where a job's workers are parked; None: they are not."""
    return next(iter(pool.nodes_of(job.parked)), None)


def parked_sentence(pool: "Pool", job: JobState) -> str:
    """Return where a job's workers are parked, and what that is worth; empty if they are not."""
    if (node := parked_on(pool, job)) is None:
        return ""
    memory = f": {in_host_memory(job.parked_bytes)}" if job.parked_bytes else ""
    soon = f"; resuming there takes {_about(job.resume_s)}" if job.resume_s is not None else ""
    return f"its workers are parked on node {node}{memory}{soon}"


def _about(seconds: float) -> str:
    return "less than 0.1 s" if seconds < 0.1 else f"about {seconds:.1f} s"


def in_host_memory(size_bytes: int) -> str:
    """Write how much memory parked workers use."""
    gib = size_bytes / (1 << 30)
    size = f"{gib:.1f} GiB" if gib >= 1.0 else f"{gib * 1024:.0f} MiB"
    return f"{size} in host memory"


def parked_counts(pool: "Pool") -> Counter[int]:
    """Count the jobs whose workers are parked on each slot."""
    jobs = {job for node in pool.nodes.values() for job in node.parked}
    return Counter(slot for job in jobs for slot in pool.jobs[job].parked)


def ended_parkings(pool: "Pool", report: r.NodeReported) -> Iterator[r.ParkingEnded]:
    """Name the jobs that a node, knowing its newest orders, no longer has parked workers of."""
    if report.parked is None:
        return
    for job in sorted(pool.nodes[report.node].parked.keys() - report.parked):
        yield r.ParkingEnded(job, f"node {report.node} no longer has them")
