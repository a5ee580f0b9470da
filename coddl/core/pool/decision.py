"""One decision: shares by the policy, devices by placement, and a sentence for every change."""

from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final, NamedTuple

from coddl.core.cluster import Cluster
from coddl.core.plan import Plan
from coddl.core.pool.estimates import PoolOutline, outline_of
from coddl.core.pool.folder_groups import folder_groups, stranded
from coddl.core.pool.job import JobState
from coddl.core.pool.parking import parked_counts
from coddl.core.pool.records import Decided, DecisionRow, Target
from coddl.core.pool.snapshot import PoolSnapshot, size_cap, snapshot_of_pool, speeds_by_size
from coddl.core.pool.state import Pool
from coddl.core.pool.trials import trial_sentence
from coddl.core.pool.turns import TurnPlan, guest_counts, stand_ins, take_turns, turn_s_of
from coddl.core.registry import BUILT_IN, Registry
from coddl.core.scheduler import Scheduler, Stability
from coddl.core.seeds import next_seed
from coddl.core.waiting import Waiting, counted

POOL_STABILITY: Final = Stability(cool_down_s=10.0, reserve_s=10.0)  # a pool's default
UNPLACED: Final = Waiting("Resources", "no GPU is free")
OTHERS: Final = Waiting("Resources", "every GPU is used by processes outside the pool")
NO_NODES: Final = Waiting("NodeDown", "no node is available")
COOLED: Final = "cool-down over"
CAUSES_MAX: Final = 2  # that are named of those that a cool-down has held back


def decide(
    pool: Pool,
    stability: Stability,
    why: str,
    now_s: float,
    site: Cluster | None = None,
    *,
    registry: Registry = BUILT_IN,
) -> Decided:
    """Decide which job gets which devices; `why` is the cause of the decision."""
    seed = next_seed(pool.seed)
    policy, placement = registry.policy(pool.policy), registry.placement(pool.placement)
    scheduler, turn_s = Scheduler(policy, stability, placement), turn_s_of(policy)
    aside = stranded(pool) | _resting(pool, now_s)
    found = []
    for part in folder_groups(pool):
        without = {*aside, *(pool.active.keys() - part.jobs)}

        def look(
            lost: Set[int], without: Set[int] = without, nodes: Set[str] = part.nodes
        ) -> PoolSnapshot:
            seen = (pool, now_s, seed, without, site)
            return snapshot_of_pool(*seen, among=nodes, out_of_turns=lost)

        made = _planned(pool, scheduler, look, turn_s)
        placed = _Placements(
            seed, why, made.slots, made.turns, made.instead, aside, stability.cool_down_s
        )
        found.append(_decided(pool, made.seen, made.plan, placed))
    return reduce(_joined, found)


class _Planned(NamedTuple):
    seen: PoolSnapshot
    plan: Plan
    slots: dict[int, tuple[int, ...]]
    turns: TurnPlan
    instead: dict[int, int]  # by job: whose share it has


def _planned(
    pool: Pool, scheduler: Scheduler, look: Callable[[Set[int]], PoolSnapshot], turn_s: float
) -> _Planned:
    """Plan for the jobs and nodes that are looked at, and let jobs without a GPU take turns.

    A policy does not care for jobs that take turns. So it is asked again where some of them can't
    go on so: they wait as any other job, and it has to say until when.
    """
    guests = {job.id for job in pool.live_jobs() if job.is_guest}
    lost = set() if turn_s else guests
    while True:
        seen = look(lost)
        plan = scheduler.decide(seen.snapshot)
        slots = _slots(pool, seen, plan)
        instead = stand_ins(pool, slots, {job.id for job in seen.jobs} - lost)
        slots |= {job: slots.pop(other) for job, other in instead.items()}
        waits = {
            job.id: _waits(pool, seen, plan, row)
            for row, job in enumerate(seen.jobs)
            if job.id not in slots
        }
        turns = take_turns(pool, slots, waits, turn_s, seen.snapshot.now_s)
        lose = (guests & waits.keys()) - turns.slots.keys() - lost
        if not lose:
            return _Planned(seen, plan, slots, turns, instead)
        lost |= lose


def _waits(pool: Pool, seen: PoolSnapshot, plan: Plan, row: int) -> Waiting:
    """Return why a row gets nothing."""
    return (plan.waiting(row) or UNPLACED) if seen.islands else _nothing(pool)


def _joined(one: Decided, other: Decided) -> Decided:
    """Make one decision of those for two parts of a pool."""
    looks = [(each.wake_at_s, each.wake_why) for each in (one, other) if each.wake_at_s is not None]
    wake_at_s, wake_why = min(looks, default=(None, ""))
    return replace(
        one,
        gpus=one.gpus + other.gpus,
        targets={**one.targets, **other.targets},
        waiting={**one.waiting, **other.waiting},
        rows=(*one.rows, *other.rows),
        memory={**one.memory, **other.memory},
        wake_at_s=wake_at_s,
        wake_why=wake_why,
        left_waiting=(one.left_waiting or 0) + (other.left_waiting or 0),
    )


def _resting(pool: Pool, now_s: float) -> dict[int, Waiting]:
    """Name the jobs that are not to be started yet, as run after run came no further."""
    return {
        job.id: Waiting("CoolDown", f"{job.story[-1].because}; backoff before the next attempt")
        for job in pool.live_jobs()
        if job.is_waiting and now_s < job.rest_until_s
    }


@dataclass(frozen=True, slots=True)
class _Placements:
    """The slots that a decision gives to jobs, and what it was based on."""

    seed: int
    why: str
    placed: dict[int, tuple[int, ...]]
    turns: TurnPlan
    instead: dict[int, int]  # by job: whose share it has, as both take turns
    aside: dict[int, Waiting]  # jobs that were left out, and why
    cool_down_s: float


def _slots(pool: Pool, seen: PoolSnapshot, plan: Plan) -> dict[int, tuple[int, ...]]:
    """Name the slots of every job that was placed: of an island, first those it has there.

    Then those where it takes turns, its workers are parked, or trained last. Slots where other jobs
    take turns or are parked are taken last, if there is a choice.
    """
    assert plan.placed is not None
    assert plan.allocation.packed_with is None or (plan.allocation.packed_with < 0).all(), (
        "one job a device"
    )
    placed = plan.placed.slots
    rows = {row: placed.row(row) for row in range(placed.rows) if plan.shares[row] > 0}
    kept: dict[int, list[int]] = {}
    for row, shares in rows.items():
        left = dict(shares)
        kept[row] = []
        for slot in seen.held[row]:
            if left.get(at := seen.island_of[slot], 0) > 0:
                left[at] -= 1
                kept[row].append(slot)
    taken = {slot for slots in kept.values() for slot in slots}
    parked, guests = parked_counts(pool), guest_counts(pool)
    free = [
        sorted((s for s in slots if s not in taken), key=lambda s: (guests[s], parked[s]))
        for slots in seen.islands
    ]

    def lacking(row: int, at: int) -> int:
        has = sum(seen.island_of[slot] == at for slot in kept[row])
        return rows[row].get(at, 0) - has

    for row in rows:
        job = seen.jobs[row]
        for slot in job.target if job.is_guest else job.parked or job.serves:
            island = seen.island_of.get(slot)  # None: it can't be used now
            if island is not None and slot in free[island] and lacking(row, island) > 0:
                free[island].remove(slot)
                kept[row].append(slot)
    for row, shares in rows.items():
        for at in shares:
            count = lacking(row, at)
            kept[row] += free[at][:count]
            free[at] = free[at][count:]
    return {seen.jobs[row].id: tuple(slots) for row, slots in kept.items()}


def _decided(pool: Pool, seen: PoolSnapshot, plan: Plan, found: _Placements) -> Decided:
    changes, drained = {change.job for change in plan.changes}, _drained(pool)
    targets: dict[int, Target] = {}
    waiting: dict[int, Waiting] = {}
    rows, outline = {job.id: row for row, job in enumerate(seen.jobs)}, outline_of(pool)
    for row, job in enumerate(seen.jobs):
        slots = found.placed.get(job.id, ())
        if (slot := found.turns.slots.get(job.id)) is not None:
            if ((slot,), found.turns.turn_s) != (job.target, job.turn_s):
                targets[job.id] = found.turns.target(pool, job.id, found.why)
            continue
        if set(slots) != set(job.target) or job.is_guest:
            # A share may also be cut from outside: by other bounds, or by the loss of a node.
            moves = job.id not in changes and len(slots) == len(job.target) and not job.is_guest
            same = f"moves to other GPUs, still {len(slots)} ({found.why})"
            shown = rows.get(found.instead.get(job.id, job.id), row)
            reason = same if moves else plan.reason(shown, found.why)
            trial = _trial(pool, job, len(slots), outline)
            reason = "; ".join(filter(None, [reason, trial]))
            targets[job.id] = Target(slots, pool.in_units(reason), is_trial=bool(trial))
        if not slots:
            waits = found.turns.waiting(job.id) or _with_need(
                _waits(pool, seen, plan, row), job, seen
            )
            waits = _with_drained(waits, drained)
            waits = Waiting(waits.code, pool.in_units(waits.sentence))
            waits = _with_more(waits, found.turns.refused.get(job.id, ""))
            waiting[job.id] = _with_memory(waits, job)
    for number, why in found.aside.items():
        if pool.jobs[number].target:
            targets[number] = Target((), f"{why.code}: {why.sentence} ({found.why})")
        waiting[number] = why
    targets |= leaving(pool)
    wake_at_s, wake_why = _next_look(pool, seen, plan, found)
    return Decided(
        policy=pool.policy,
        seed=found.seed,
        gpus=seen.snapshot.cluster.gpus_total,
        why=found.why,
        targets=targets,
        waiting={n: why for n, why in waiting.items() if pool.jobs[n].waiting != why},
        rows=_rows(seen, plan),
        memory=_memories(seen, plan),
        wake_at_s=wake_at_s,
        wake_why=wake_why,
        left_waiting=len(waiting),
    )


def _trial(pool: Pool, job: JobState, gpus: int, outline: PoolOutline) -> str:
    """Say that a job is given this size to measure it; empty if it is not, or has it already."""
    if gpus in (0, len(job.target)) or job.is_guest:
        return ""
    return trial_sentence(speeds_by_size(pool, job, size_cap(pool), outline), gpus)


def leaving(pool: Pool) -> dict[int, Target]:
    """Return the jobs that must leave their devices whatever a policy says."""
    targets: dict[int, Target] = {}
    for job in pool.live_jobs():
        if job.target and not job.fits:
            targets[job.id] = Target((), job.misfit.because)
        elif job.target and job.cancelled:
            targets[job.id] = Target((), job.reason)
        elif job.target and job.suspended:
            targets[job.id] = Target((), f"suspended by {job.held_by}")
    return targets


def _nothing(pool: Pool) -> Waiting:
    """Return why no device can be used."""
    if coming := pool.engine.acquired.keys() - pool.nodes.keys():
        nodes = counted(len(coming), "node")
        return Waiting("Resources", f"{nodes} asked for from {pool.engine.name}, not there yet")
    up = [slot for node in pool.nodes.values() if node.is_up for slot in node.slots]
    return OTHERS if up and all(pool.slots[slot].others for slot in up) else NO_NODES


def _drained(pool: Pool) -> str:
    """Return which devices an operator keeps jobs from; empty if there are none."""
    up = [node for node in pool.nodes.values() if node.is_up]
    free = {
        node.name: count
        for node in up
        if node.is_drained and (count := sum(not pool.slots[s].owners for s in node.slots))
    }
    if up and all(node.is_drained for node in up):
        return f"all nodes are drained: {', '.join(sorted(node.name for node in up))}"
    if not free:
        return ""
    gpus, nodes = counted(sum(free.values()), "GPU"), ", ".join(sorted(free))
    return f"{gpus} on drained nodes cannot be used ({nodes})"


def _with_need(waits: Waiting, job: JobState, seen: PoolSnapshot) -> Waiting:
    """Add to why a job waits how many GPUs it needs, if there are too few."""
    if waits.code != "Resources":
        return waits
    least, _ = job.bounds(seen.snapshot.now_s)
    return Waiting(waits.code, f"needs {counted(least, 'GPU')}, {waits.sentence}")


def _with_drained(waits: Waiting, drained: str) -> Waiting:
    """Add to why a job waits that nodes are drained, if that may be why."""
    if not drained or waits.code not in ("NodeDown", "Resources"):
        return waits
    return Waiting(waits.code, drained if waits is NO_NODES else f"{waits.sentence}; {drained}")


def _with_more(waits: Waiting, more: str) -> Waiting:
    return Waiting(waits.code, f"{waits.sentence}; {more}") if more else waits


def _with_memory(waits: Waiting, job: JobState) -> Waiting:
    """Add to why a job waits that its memory requires more GPUs than its user does."""
    if job.gpus_memory <= job.gpus_min:
        return waits
    return Waiting(waits.code, f"{waits.sentence}; it needs {job.fit_sentence}")


def _next_look(
    pool: Pool, seen: PoolSnapshot, plan: Plan, found: _Placements
) -> tuple[float | None, str]:
    """Return when to decide anew, and why: as the policy asks, when shares that changed a moment
    ago may change again, when a job may grow though unmeasured, or when one has rested.
    """
    now_s, asked_s = seen.snapshot.now_s, float(plan.allocation.wake_at_s)
    jobs = seen.snapshot.jobs
    ends_s = (jobs.changed_s + found.cool_down_s)[jobs.gpus > 0]
    is_cooling = asked_s in ends_s[ends_s > now_s]
    looks = [(asked_s, _held_back(pool, found.why, now_s) if is_cooling else "")]
    looks += [
        (job.rest_until_s, f"the backoff of {job.spec.name} is over")
        for job in pool.live_jobs()
        if job.rest_until_s > now_s
    ]
    looks += [
        (job.proven_s + job.prerun_s, f"{job.spec.name} may grow")
        for job in seen.jobs
        if job.proven_s is not None and job.prepared and not job.may_grow(now_s)
    ]
    at_s, why = min(looks)
    return (at_s, why) if at_s < float("inf") else (None, "")


def _held_back(pool: Pool, why: str, now_s: float) -> str:
    """Name the newest causes that shares could not follow yet, as they had just been changed."""
    is_held = pool.wake_at_s is not None and now_s < pool.wake_at_s
    before = pool.wake_why.split("; ")[:-1] if is_held and pool.wake_why.endswith(COOLED) else []
    causes = [each for each in before if each != why]
    return "; ".join([*[*causes, why.removesuffix(f"; {COOLED}")][-CAUSES_MAX:], COOLED])


def _memories(seen: PoolSnapshot, plan: Plan) -> dict[int, tuple[float, ...]]:
    """Return what is to be remembered, where that is new."""
    return {
        job.id: memory
        for job, values in zip(seen.jobs, plan.memory.tolist(), strict=True)
        if (memory := tuple(values)) != job.memory and (job.memory or any(values))
    }


def _rows(seen: PoolSnapshot, plan: Plan) -> tuple[DecisionRow, ...]:
    jobs = seen.snapshot.jobs
    columns = (jobs.gpus, jobs.gpus_min, jobs.gpus_max, plan.shares, jobs.attained_gpu_s)
    news = []
    for job, gpus, least, most, share, attained_gpu_s in zip(
        seen.jobs, *(column.tolist() for column in columns), strict=True
    ):
        row = DecisionRow(
            job=job.id,
            gpus=gpus,
            gpus_min=least,
            gpus_max=most,
            remaining=job.remaining,
            step_s=dict(sorted(job.speeds.items())),
            share=share,
            attained_gpu_s=round(attained_gpu_s, 1),
        )
        if row != job.row:
            news.append(row)
    return tuple(news)
