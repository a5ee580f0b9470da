"""The orders of a node's agent, as they follow from the state of the pool."""

from typing import TYPE_CHECKING

from coddl.core.pool.job import JobState
from coddl.core.pool.memory_limits import limits_on
from coddl.core.pool.orders import AssignedSlot, JobOrder, Orders
from coddl.core.pool.records import RunId
from coddl.core.pool.slot_sharing import may_use, turn_s_of_jobs

if TYPE_CHECKING:
    from coddl.core.pool.state import Pool


def orders_for(pool: "Pool", node: str) -> Orders:
    """Return everything that the agent of a node must do."""
    state = pool.nodes[node]
    users: dict[int, list[JobState]] = {}
    for slot in state.slots:
        owners = [pool.jobs[job] for job in pool.slots[slot].owners]
        # What parks starts nothing any more, and gives its slots up one by one.
        if runs := [job for job in owners if may_use(job, slot)]:
            users[slot] = sorted(runs, key=lambda job: job.is_guest)
    leads = tuple(_job_order(pool, pool.jobs[job]) for job in state.leads)
    concerned = sorted({job.id for jobs in users.values() for job in jobs} | state.leads.keys())
    return Orders(
        version=state.version,
        seats={
            slot: tuple(RunId(job.id, job.attempt) for job in jobs) for slot, jobs in users.items()
        },
        leads=leads,
        jobs={job: pool.jobs[job].spec for job in concerned},
        leaves=state.leaves_at_s is not None,
        parked=tuple(sorted(state.parked)),
        turns={slot: turn_s_of_jobs(jobs) for slot, jobs in users.items() if len(jobs) > 1},
    )


def _job_order(pool: "Pool", job: JobState) -> JobOrder:
    return JobOrder(
        job=job.id,
        attempt=job.attempt,
        generation=job.generation,
        seats=tuple(_assigned_slot(pool, slot) for slot in job.granted),
        adopt=job.adopt,
        precheck=job.precheck,
        stop=job.stop,
        reason=job.reason,
        limits=() if job.prepared else limits_on(pool.limits, pool.kinds_of(job)),
        lost=tuple(n for n in pool.nodes_of(job.serves) if not pool.nodes[n].is_up),
    )


def _assigned_slot(pool: "Pool", slot: int) -> AssignedSlot:
    """Name a slot's place."""
    state = pool.slots[slot]
    return AssignedSlot(slot, state.node, state.device.gpu)
