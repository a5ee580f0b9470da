"""The orders of a node's agent, as they follow from the state of the pool."""

from typing import TYPE_CHECKING

from coddl.core.pool.job import JobState
from coddl.core.pool.memory_limits import limits_on
from coddl.core.pool.orders import AssignedSlot, JobOrder, Orders
from coddl.core.pool.parking import may_use
from coddl.core.pool.records import RunId

if TYPE_CHECKING:
    from coddl.core.pool.state import Pool


def orders_for(pool: "Pool", node: str) -> Orders:
    """Return everything that the agent of a node must do."""
    state = pool.nodes[node]
    seats: dict[int, RunId] = {}
    for slot in state.slots:
        owner = pool.slots[slot].owner
        # What parks starts nothing any more, and gives its slots up one by one.
        if owner is not None and may_use(pool.jobs[owner], slot):
            seats[slot] = RunId(owner, pool.jobs[owner].attempt)
    leads = tuple(_job_order(pool, pool.jobs[job]) for job in state.leads)
    concerned = sorted({run.job for run in seats.values()} | state.leads.keys())
    return Orders(
        version=state.version,
        seats=seats,
        leads=leads,
        jobs={job: pool.jobs[job].spec for job in concerned},
        leaves=state.leaves_at_s is not None,
        parked=tuple(sorted(state.parked)),
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
