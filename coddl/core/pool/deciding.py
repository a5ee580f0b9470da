"""One decision: shares by the policy, devices by placement, and a sentence for every change."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from coddl.core.allocation import Waiting
from coddl.core.placement.keep import Wish, place
from coddl.core.plan import Plan
from coddl.core.policies.registry import policy_from
from coddl.core.pool.job import PRERUN_S, JobState
from coddl.core.pool.records import Decided, Row, Target
from coddl.core.pool.sight import Sight, look
from coddl.core.pool.state import Pool
from coddl.core.scheduler import Rules, Scheduler

CALM: Final = Rules(cool_down_s=10.0, reserve_s=10.0)  # what a pool keeps to unless told otherwise
ROUNDS_MAX: Final = 4  # of deciding anew without jobs for which no node has room
UNPLACED: Final = Waiting("Resources", "no devices are left for it")
NO_NODES: Final = Waiting("NodeDown", "no node of the pool can be used now")


def decide(pool: Pool, rules: Rules, why: str, now_s: float) -> Decided:
    """Decide who shall have which devices; `why` says what made us decide."""
    seed = 1 + (pool.seed * 16807) % 2147483646
    scheduler = Scheduler(policy_from(pool.policy), rules)
    aside = _resting(pool, now_s)
    for _ in range(ROUNDS_MAX):
        sight = look(pool, now_s, seed, aside)
        plan = scheduler.decide(sight.snapshot)
        placed = place(_wishes(sight, plan), sight.nodes)
        no_room = {
            job.id: _cramped(int(gpus), pool)
            for job, gpus in zip(sight.jobs, plan.shares, strict=True)
            if gpus > 0 and job.id not in placed
        }
        if not no_room:
            break
        aside |= no_room
    else:
        placed = {job: slots for job, slots in placed.items() if job not in no_room}
    return _decided(pool, sight, plan, _Found(seed, why, placed, aside))


def _resting(pool: Pool, now_s: float) -> dict[int, Waiting]:
    """Name the jobs that are not to be started yet, as run after run came no further."""
    return {
        job.id: Waiting("CoolDown", f"{job.story[-1].because}; it rests before the next run")
        for job in pool.live_jobs()
        if job.is_waiting and now_s < job.rest_until_s
    }


@dataclass(frozen=True, slots=True)
class _Found:
    """What a decision has come to."""

    seed: int
    why: str
    placed: dict[int, tuple[int, ...]]
    aside: dict[int, Waiting]  # jobs that were left out, and why


def _wishes(sight: Sight, plan: Plan) -> list[Wish]:
    """Say where jobs would stay; of two that name the same device, the one that is there."""
    served = [
        (job, int(gpus)) for job, gpus in zip(sight.jobs, plan.shares, strict=True) if gpus > 0
    ]
    claims = Counter(slot for job, _ in served for slot in _claimed(job, sight))
    return [
        Wish(
            job.id,
            gpus,
            tuple(s for s in _claimed(job, sight) if claims[s] == 1 or s in job.granted),
            job.lead,
            spans=job.spec.is_elastic,
        )
        for job, gpus in served
    ]


def _claimed(job: JobState, sight: Sight) -> tuple[int, ...]:
    """Name the devices that a job stays on if it may.

    What it was promised before is as good as held: nobody is moved without need. If that can't be
    had any more it stays where it is. Who was told to leave has no claim: others may wait for it.
    """
    if job.stop:
        return ()
    is_usable = all(slot in sight.nodes for slot in job.target)
    return job.target if is_usable else job.granted


def _cramped(gpus: int, pool: Pool) -> Waiting:
    largest = max((len(node.slots) for node in pool.nodes.values() if node.is_up), default=0)
    return Waiting(
        "Topology",
        f"it needs {gpus} devices on one node, and no node has that many free "
        f"(the largest has {largest})",
    )


def _decided(pool: Pool, sight: Sight, plan: Plan, found: _Found) -> Decided:
    changes = {change.job for change in plan.changes}
    targets: dict[int, Target] = {}
    waiting: dict[int, Waiting] = {}
    for row, job in enumerate(sight.jobs):
        slots = found.placed.get(job.id, ())
        if set(slots) != set(job.target):
            # A share may also be cut from outside: by other bounds, or by the loss of a node.
            moves = job.id not in changes and len(slots) == len(job.target)
            reason = f"it keeps {len(slots)} and moves" if moves else plan.reason(row)
            targets[job.id] = Target(slots, f"{reason}, since {found.why}")
        if not slots:
            waits = plan.waiting(row) or UNPLACED
            waiting[job.id] = NO_NODES if not sight.nodes else waits
    for number, why in found.aside.items():
        if pool.jobs[number].target:
            targets[number] = Target((), f"{why.code}: {why.sentence}, since {found.why}")
        waiting[number] = why
    for job in pool.live_jobs():
        if (job.held or job.cancelled) and job.target:
            targets[job.id] = Target((), "a user wants it to stop")
    return Decided(
        policy=pool.policy,
        seed=found.seed,
        gpus=len(sight.nodes),
        why=found.why,
        targets=targets,
        waiting={n: why for n, why in waiting.items() if pool.jobs[n].waiting != why},
        rows=_rows(sight, plan),
        memory=_memories(sight, plan),
        wake_at_s=_wake_at_s(pool, sight, plan),
    )


def _wake_at_s(pool: Pool, sight: Sight, plan: Plan) -> float | None:
    """Say when to decide anew: as the policy asks, when a job may grow though unmeasured, or when
    one has rested.
    """
    now_s = sight.snapshot.now_s
    rested = [job.rest_until_s for job in pool.live_jobs() if job.rest_until_s > now_s]
    small = [
        job.proven_s + PRERUN_S
        for job in sight.jobs
        if job.proven_s is not None and job.prepared and not job.may_grow(now_s)
    ]
    wake_at_s = min(float(plan.allocation.wake_at_s), *small, *rested, float("inf"))
    return wake_at_s if wake_at_s < float("inf") else None


def _memories(sight: Sight, plan: Plan) -> dict[int, tuple[float, ...]]:
    """Give what the policy wants to remember, where that is new."""
    return {
        job.id: memory
        for job, values in zip(sight.jobs, plan.memory.tolist(), strict=True)
        if (memory := tuple(values)) != job.memory and (job.memory or any(values))
    }


def _rows(sight: Sight, plan: Plan) -> tuple[Row, ...]:
    jobs = sight.snapshot.jobs
    columns = (jobs.gpus, jobs.gpus_min, jobs.gpus_max, plan.shares)
    news = []
    for job, gpus, least, most, share in zip(
        sight.jobs, *(column.tolist() for column in columns), strict=True
    ):
        row = Row(
            job=job.id,
            gpus=gpus,
            gpus_min=least,
            gpus_max=most,
            remaining=job.remaining,
            step_s=dict(sorted(job.speeds.items())),
            share=share,
        )
        if row != job.row:
            news.append(row)
    return tuple(news)
