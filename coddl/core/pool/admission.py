"""What users may ask of the pool now; each check raises, and changes nothing."""

from coddl.core.pool import records as r
from coddl.core.pool.errors import Conflict, Infeasible, NotFound
from coddl.core.pool.job import JobState
from coddl.core.pool.nodes import NodeState
from coddl.core.pool.state import Pool
from coddl.core.registry import BUILT_IN, Registry
from coddl.core.waiting import counted

UserEvent = (
    r.JobSubmitted
    | r.JobCancelled
    | r.JobSuspended
    | r.JobResumed
    | r.JobBounded
    | r.JobPrioritised
    | r.NodeDrained
    | r.NodeUndrained
    | r.NodeForgotten
    | r.PolicyChosen
)


def is_news(pool: Pool, event: UserEvent, registry: Registry = BUILT_IN) -> bool:
    """Return whether a request changes anything; raise if it can't be met."""
    match event:
        case r.JobSubmitted(job, spec):
            assert job not in pool.jobs, f"job {job} exists"
            what = f'job "{spec.name}" cannot be accepted'
            _check_fits(pool, what, "--gpus", spec.gpus_min, spans=spec.is_elastic)
            return True
        case r.JobCancelled(job):
            return not _alive(pool, job, "cancelled").cancelled
        case r.JobSuspended(job):
            return _may_suspend(_alive(pool, job, "suspended"))
        case r.JobResumed(job):
            return _may_resume(_alive(pool, job, "resumed"))
        case r.JobBounded():
            return _may_bound(pool, event)
        case r.JobPrioritised(job, priority):
            return _alive(pool, job, "given a new priority").priority != priority
        case r.NodeDrained(node):
            return not _node(pool, node).is_drained or event.within_s is not None
        case r.NodeUndrained(node):
            return _node(pool, node).is_drained
        case r.NodeForgotten(node):
            return _may_forget(_node(pool, node))
        case r.PolicyChosen(policy, _, placement):
            registry.policy(policy)
            if placement:
                registry.placement(placement)
            return policy != pool.policy or placement not in ("", pool.placement)


def _check_fits(pool: Pool, what: str, option: str, gpus: int, *, spans: bool) -> None:
    """Raise if the pool could not run a job on `gpus` devices even if it were empty."""
    up = [node for node in pool.nodes.values() if node.is_up]
    if (bounds := pool.engine.bounds) is not None:
        most = bounds.most * bounds.gpus if spans else bounds.gpus
        if gpus > most:
            where = f"{counted(bounds.most, 'node')} of {bounds.gpus}" if spans else "a node"
            raise Infeasible(
                what,
                f"it needs at least {counted(gpus, pool.unit)} and the pool has at most {most}, "
                f"on {where}",
                f"{option} {most}",
            )
        return  # nodes that it needs are brought for it
    if not up:
        return  # no node has joined yet: we can't know
    total, largest = sum(len(n.slots) for n in up), min(up, key=lambda n: (-len(n.slots), n.name))
    if gpus > total:
        nodes = counted(len(up), "node")
        raise Infeasible(
            what,
            f"it needs at least {counted(gpus, pool.unit)} and the pool has {total} on {nodes}",
            f"{option} {total if spans else len(largest.slots)}",
        )
    if not spans and gpus > len(largest.slots):
        raise Infeasible(
            what,
            f"it needs {counted(gpus, pool.unit)} on one node and the largest node, "
            f"{largest.name}, has {len(largest.slots)}",
            f"{option} {len(largest.slots)}, or an elastic script, which can span nodes",
        )


def find(pool: Pool, job: int) -> JobState:
    """Return a job, or raise."""
    if job not in pool.jobs:
        raise NotFound(f"job {job} cannot be found", "no job has that number", "coddl ls --all")
    return pool.jobs[job]


def _node(pool: Pool, node: str) -> NodeState:
    if node not in pool.nodes:
        known = ", ".join(sorted(pool.nodes)) or "none yet"
        raise NotFound(
            f'node "{node}" cannot be found', f"the pool's nodes are: {known}", "coddl nodes"
        )
    return pool.nodes[node]


def _may_forget(node: NodeState) -> bool:
    if node.is_up:
        raise Conflict(
            f'node "{node.name}" cannot be forgotten',
            "its lease has not expired, so its agent may still be running",
            f"coddl drain {node.name}, then stop its agent",
        )
    return True


def _alive(pool: Pool, job: int, wanted: str) -> JobState:
    return alive(find(pool, job), wanted)


def alive(state: JobState, wanted: str) -> JobState:
    """Return a job that is to be `wanted`, or raise: it has ended, or is about to."""
    if state.is_over:
        raise Conflict(
            f"job {state.id} cannot be {wanted}",
            f"it has ended: {state.phase.upper()}",
            f"coddl describe {state.id}",
        )
    if state.cancelled and wanted != "cancelled":
        raise Conflict(f"job {state.id} cannot be {wanted}", "it is being cancelled", "coddl ls")
    return state


def _may_suspend(job: JobState) -> bool:
    fixed = "is opaque" if job.spec.tier == "opaque" else "has not called coddl.prepare"
    if job.has_run and job.is_fixed:
        raise Conflict(
            f"job {job.id} cannot be suspended",
            f"it {fixed}, so its progress would be lost",
            f"coddl cancel {job.id}, or coddl wait {job.id}",
        )
    return not job.suspended


def _may_resume(job: JobState) -> bool:
    if not job.suspended:
        raise Conflict(
            f"job {job.id} cannot be resumed",
            f"it is not suspended: {job.phase.upper()}",
            f"coddl describe {job.id}",
        )
    return True


def _may_bound(pool: Pool, bounded: r.JobBounded) -> bool:
    job = _alive(pool, bounded.job, "resized")
    what = f"job {job.id} cannot be resized to {bounded.gpus_min}..{bounded.gpus_max}"
    if not 1 <= bounded.gpus_min <= bounded.gpus_max:
        raise Infeasible(
            what, "the bounds must satisfy 1 <= MIN <= MAX", f"coddl resize {job.id} 1..4"
        )
    if not job.spec.is_elastic:
        raise Conflict(
            what,
            f"it is {job.spec.tier}: its size is fixed while it runs",
            "call coddl.prepare in its script and submit it as elastic",
        )
    if job.gpus_useful is not None and bounded.gpus_min > job.gpus_useful:
        raise Infeasible(what, job.sharing_sentence, f"coddl resize {job.id} {job.gpus_useful}")
    if bounded.gpus_max < job.gpus_memory:
        raise Infeasible(
            what, f"it needs {job.fit_sentence}", f"coddl resize {job.id} {job.gpus_memory}"
        )
    _check_fits(pool, what, f"coddl resize {job.id}", bounded.gpus_min, spans=True)
    return (bounded.gpus_min, bounded.gpus_max) != (job.gpus_min, job.gpus_max)
