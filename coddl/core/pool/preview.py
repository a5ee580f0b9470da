"""What would happen if a job were submitted: `coddl submit --dry-run`."""

from copy import deepcopy
from typing import NamedTuple

from coddl.core.pool import records as r
from coddl.core.pool.control import ControlPlane
from coddl.core.pool.spec import JobSpec


class Effect(NamedTuple):
    """What a job's share would become."""

    job: int
    name: str
    gpus_before: int
    gpus: int
    reason: str


class Preview(NamedTuple):
    """What would happen if a job were submitted."""

    job: Effect
    others: tuple[Effect, ...]


def preview(control: ControlPlane, spec: JobSpec, now_s: float) -> Preview:
    """Return what submitting a job would do to everyone; changes nothing."""
    pool = control.pool
    twin = ControlPlane(deepcopy(pool), control.stability, control.site, control.registry)
    number = twin.pool.next_job
    twin.handle(r.JobSubmitted(number, spec), now_s)
    effects = []
    for job in twin.pool.live_jobs():
        before = pool.jobs.get(job.id)
        held = len(before.target) if before is not None else 0
        words = f"{job.waiting.code}: {job.waiting.sentence}" if job.waiting else job.reason
        if len(job.target) != held or job.id == number:
            effects.append(Effect(job.id, job.spec.name, held, len(job.target), words))
    mine = next(effect for effect in effects if effect.job == number)
    return Preview(mine, tuple(effect for effect in effects if effect.job != number))
