"""Slots that have several owners: jobs that take turns, and jobs that leave.

A slot is given to one job. Others may take turns on it with that job: they are its *guests*
(`JobState.is_guest`), and that job is their *host*. So of the jobs that stay on a slot, all but at
most one are guests; what leaves is still an owner until its processes were seen to be gone.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from coddl.core.pool import records as r
from coddl.core.pool.job import JobState
from coddl.core.pool.nodes import NodeState

if TYPE_CHECKING:
    from coddl.core.pool.state import Pool

TURN_S: Final = 10.0  # of jobs on one slot while all but one leave it


def stays(job: JobState, slot: int) -> bool:
    """Return whether a job may use a slot and will keep it."""
    return slot in job.granted and slot in job.target and not job.stop


def may_use(job: JobState, slot: int) -> bool:
    """Return whether a job may have processes on a slot that is its own.

    Those of a run that parks wait without it, though its state is not on disk yet.
    """
    return slot in job.granted and job.stop != "park"


def others_on(pool: "Pool", job: JobState, slot: int) -> list[JobState]:
    """Name the other jobs whose processes may be on a slot."""
    return [pool.jobs[owner] for owner in pool.slots[slot].owners if owner != job.id]


def partners(pool: "Pool", job: JobState) -> list[JobState]:
    """Name the jobs that a job takes turns with."""
    if len(job.granted) != 1 or job.stop or job.sharers == 1:
        return []
    (slot,) = job.granted
    return [each for each in others_on(pool, job, slot) if may_use(each, slot)]


def lacks_turn(pool: "Pool", job: JobState) -> bool:
    """Return whether a job shares its slot and is known not to have the turn there."""
    if len(job.granted) != 1:
        return False
    slot = pool.slots[job.granted[0]]
    return slot.turns is not None and job.id in slot.owners and slot.turns.job != job.id


def turn_s_of_jobs(jobs: Iterable[JobState]) -> float:
    """Return how long a turn of jobs on one slot lasts."""
    return max(job.turn_s for job in jobs) or TURN_S


def hold(pool: "Pool", job: JobState, slots: tuple[int, ...], now_s: float) -> None:
    """Let a job have other slots, and settle the accounts of all that share them."""
    concerned = {*job.granted, *slots}
    job.hold(slots, now_s)
    for slot in concerned:
        users = [pool.jobs[each] for each in pool.slots[slot].owners]
        users = [each for each in users if slot in each.granted]
        for each in users:
            each.share(len(users), now_s)


def check_owners(pool: "Pool", slots: Iterable[int]) -> None:
    """Assert that no two jobs that stay on a slot both have it as their own."""
    for slot in slots:
        owners = [pool.jobs[owner] for owner in pool.slots[slot].owners]
        hosts = [job.id for job in owners if stays(job, slot) and not job.is_guest]
        assert len(hosts) <= 1, f"slot {slot} is given to jobs {hosts}"


# When a job may have its target.


def are_free(pool: "Pool", job: JobState) -> bool:
    """Return whether a job may have its target now: no other job is there, except to take turns."""
    for slot in job.target:
        if slot in job.granted:
            continue
        state = pool.slots[slot]
        node = pool.nodes[state.node]
        if node.is_silent or node.is_drained or state.others or not may_join(pool, job, slot):
            return False
    return True


def may_join(pool: "Pool", job: JobState, slot: int) -> bool:
    """Return whether a job may have a slot in addition to its present owners.

    Processes of a run of its own that has ended have to be gone, as have those of jobs that leave.
    """
    owners = [pool.jobs[owner] for owner in pool.slots[slot].owners]
    jobs = [*owners, job]
    return not owners or (
        all(stays(each, slot) for each in owners)
        and all(each.spec.is_elastic and len(each.target) == 1 for each in jobs)
        and all(each.lead == pool.slots[slot].node for each in owners)  # whose agent has turns
        and sum(not each.is_guest for each in jobs) <= 1
    )


def must_stop_first(pool: "Pool", job: JobState) -> bool:
    """Return whether a run has to end before its job gets the target: it can't be resized there.

    A run is resized only while no other job is on its slots: neither on those that it has, nor on
    those that it gets.
    """
    if not job.granted:
        return False
    joins = any(stays(each, s) for s in job.target for each in others_on(pool, job, s))
    return joins or job.is_guest or _leaves_others(pool, job)


def _leaves_others(pool: "Pool", job: JobState) -> bool:
    return any(others_on(pool, job, slot) for slot in job.granted if slot not in job.target)


def must_wait(pool: "Pool", job: JobState) -> bool:
    """Return whether a run that is to grow waits until other jobs have left its slot."""
    return any(others_on(pool, job, slot) for slot in job.granted)


# What nodes tell.


def freed_slots(pool: "Pool", report: r.NodeReported) -> Iterator[r.SlotFreed]:
    """Name the slots that jobs have left, as reported by a node that has its newest orders.

    A slot is listed with one run. As those that leave come first, one that stays tells that all of
    them are gone.
    """
    for slot in pool.nodes[report.node].slots:
        at = report.holding.get(slot)
        owners = pool.slots[slot].owners
        is_left = at is None or (at.job in owners and may_use(pool.jobs[at.job], slot))
        for owner in list(owners) if is_left else ():
            if not may_use(pool.jobs[owner], slot):
                yield r.SlotFreed(slot, owner)


def note_turns(pool: "Pool", node: NodeState, turns: Mapping[int, r.SlotTurns]) -> None:
    """Take in how turns go on a node; what it says of other jobs than those there is no news."""
    for slot in (pool.slots[number] for number in node.slots):
        told = turns.get(slot.slot)
        if told is None or len(slot.owners) < 2:
            slot.turns = None
            continue
        job = told.job if told.job in slot.owners else None
        shares = {each: min(1.0, max(0.0, part)) for each, part in told.shares.items()}
        slot.turns = r.SlotTurns(job, {n: part for n, part in shares.items() if n in slot.owners})
        for number in slot.owners.keys() & told.switch_s.keys():
            pool.jobs[number].turn_switch_s = told.switch_s[number]
        for number in slot.owners.keys() & told.bytes_.keys():
            pool.jobs[number].turn_bytes = max(0, told.bytes_[number])
