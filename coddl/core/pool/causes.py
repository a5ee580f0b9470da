"""The causes of decisions, as sentences."""

from coddl.core.pool import records as r
from coddl.core.pool.admission import UserEvent
from coddl.core.pool.state import Pool


def request_cause(pool: Pool, event: UserEvent) -> str:
    """Return what a user has asked for, as the cause of a decision."""
    match event:
        case r.JobSubmitted(job):
            return f"{cause_name(pool, job)} submitted"
        case r.JobCancelled(job):
            return f"{cause_name(pool, job)} cancelled"
        case r.JobSuspended(job):
            return f"{cause_name(pool, job)} suspended"
        case r.JobResumed(job):
            return f"{cause_name(pool, job)} resumed"
        case r.JobBounded(job, least, most):
            return f"{cause_name(pool, job)} bounds set to {least}..{most}"
        case r.JobPrioritised(job, priority):
            return f"{cause_name(pool, job)} priority set to {priority}"
        case r.NodeDrained(node):
            return f"node {node} drained"
        case r.NodeUndrained(node):
            return f"node {node} no longer drained"
        case r.NodeForgotten(node):
            return f"node {node} forgotten"
        case r.PolicyChosen(policy):
            return f"policy set to {policy}, placement {pool.placement}"


def cause_name(pool: Pool, job: int) -> str:
    """Name a job; with its number where another live job has the same name."""
    jobs, name = pool.jobs, pool.jobs[job].spec.name
    is_shared = any(jobs[each].spec.name == name for each in pool.active if each != job)
    return f'job {job} "{name}"' if is_shared else name
