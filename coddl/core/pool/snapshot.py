"""The pool as a policy sees it: the fold turned into the columns of a snapshot."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from coddl.core.cluster import Cluster, Links, Node
from coddl.core.history import EndedJobs, level_at
from coddl.core.jobs import ELASTIC, OPAQUE, RESTARTABLE, JobTable
from coddl.core.pool.estimates import PoolOutline, outline_of, predicted_steps
from coddl.core.pool.forgetting import past_jobs
from coddl.core.pool.job import JobState
from coddl.core.pool.known_profiles import remembered_steps
from coddl.core.pool.parking import may_park, parked_on
from coddl.core.pool.placement_costs import placement_costs
from coddl.core.pool.state import Pool
from coddl.core.pool.trials import least_trial_gain
from coddl.core.slots import Slots
from coddl.core.snapshot import Snapshot, empty_memory
from coddl.core.speed.live import Speed, curve
from coddl.core.speed.profile import TrainingProfile
from coddl.core.speed.table import Speeds, speeds_of

TIERS = {"elastic": ELASTIC, "restartable": RESTARTABLE, "opaque": OPAQUE}


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """A snapshot, with the jobs its rows are of and the slots its GPUs are."""

    snapshot: Snapshot
    jobs: tuple[JobState, ...]  # by row
    islands: tuple[tuple[int, ...], ...]  # the usable slots of each island of the cluster
    island_of: Mapping[int, int]  # by usable slot
    held: tuple[tuple[int, ...], ...]  # by row: the slots that it stays on if it may


def snapshot_of_pool(
    pool: Pool,
    now_s: float,
    seed: int,
    without: Collection[int] = (),
    site: Cluster | None = None,
    *,
    among: Collection[str] | None = None,
    out_of_turns: Collection[int] = (),
) -> PoolSnapshot:
    """Take a snapshot of the jobs that compete, leaving some out, for some nodes or for all.

    `site` is what the operator says of the nodes: racks, islands, links. `out_of_turns` are guests
    that can't be guests any more: they are seen as jobs that wait from now on.
    """
    jobs = tuple(
        job
        for job in pool.live_jobs()
        if not job.suspended and not job.cancelled and job.fits and job.id not in without
        if not stays_guest(pool, job)
    )
    nodes = usable(pool)
    nodes = {slot: node for slot, node in nodes.items() if among is None or node in among}
    cluster, islands = _cluster(pool, nodes, site)
    island_of = {slot: at for at, slots in enumerate(islands) for slot in slots}
    deaf = {job.id for job in jobs if pool.is_deaf(job) and not job.stop}
    held = _held(jobs, nodes, deaf)
    snapshot = Snapshot(
        now_s=now_s,
        cluster=cluster,
        jobs=_table(pool, jobs, deaf, cluster, now_s, out_of_turns=out_of_turns),
        speeds=_speeds(pool, jobs, cluster),
        memory=_memory(jobs),
        seed=seed,
        slots=Slots.of([Counter(island_of[slot] for slot in slots) for slots in held]),
        past_gpu_s=np.array([job.attained_by(now_s) for job in past_jobs(pool)], np.float64),
        known_past=partial(ended_jobs, pool, jobs, cluster.gpus_total),
    )
    return PoolSnapshot(snapshot, jobs, islands, island_of, held)


def _cluster(
    pool: Pool, usable: Mapping[int, str], site: Cluster | None
) -> tuple[Cluster, tuple[tuple[int, ...], ...]]:
    """The usable slots as a cluster, and the slots of each of its islands."""
    by_node: dict[str, list[int]] = {}
    for slot, name in sorted(usable.items()):
        by_node.setdefault(name, []).append(slot)
    told = {node.name: node for node in site.nodes} if site is not None else {}
    counted = all(name in told for name in by_node)  # cores of some nodes only would mislead
    kinds: dict[str, int] = {}
    nodes, islands = [], []
    for name, slots in by_node.items():
        kind = kinds.setdefault(pool.slots[slots[0]].device.kind, len(kinds))
        known = told.get(name, Node(name, 0))
        size = known.island_gpus or len(slots)
        cpus = known.cpus if counted else 0
        nodes.append(Node(name, len(slots), kind, known.rack, island_gpus=size, cpus=cpus))
        islands += [tuple(slots[at : at + size]) for at in range(0, len(slots), size)]
    links = site.links if site is not None else Links()
    return Cluster(tuple(nodes), tuple(kinds) or ("gpu",), links), tuple(islands)


def _held(
    jobs: tuple[JobState, ...], usable: Mapping[int, str], deaf: Collection[int]
) -> tuple[tuple[int, ...], ...]:
    """Return where jobs would stay; of two that name the same device, the one that is there."""
    claims = {job.id: job.granted if job.id in deaf else _claimed(job, usable) for job in jobs}
    named = Counter(slot for slots in claims.values() for slot in slots)
    return tuple(
        tuple(slot for slot in claims[job.id] if named[slot] == 1 or slot in job.granted)
        for job in jobs
    )


def _claimed(job: JobState, usable: Mapping[int, str]) -> tuple[int, ...]:
    """Name the devices that a job stays on if it may.

    What it was promised before counts as held: no job is moved without need. If that is not
    available any more it stays where it is. One that must leave keeps none: others may wait.
    """
    if job.stop or job.is_guest:
        return ()
    if all(slot in usable for slot in job.target):
        return job.target
    return tuple(slot for slot in job.granted if slot in usable)


def usable(pool: Pool) -> dict[int, str]:
    """Name the slots that jobs may have, and their nodes.

    A node that can't be reached keeps what it has and gets nothing new, and so does a device
    that others use. On a node that is drained, jobs that can't be moved stay to their end, or until
    they can be moved.
    """
    found: dict[int, str] = {}
    for node in pool.nodes.values():
        if not node.is_up:
            continue
        for slot in node.slots:
            if pool.slots[slot].is_stuck:
                continue
            owners = (pool.jobs[owner] for owner in pool.slots[slot].owners)
            holds = [job for job in owners if slot in job.granted and not job.is_guest]
            stays = any(job.is_fixed or pool.is_deaf(job) for job in holds)
            if node.is_drained and not stays:
                continue
            if holds or not (node.is_silent or pool.slots[slot].others):
                found[slot] = node.name
    return found


def stays_guest(pool: Pool, job: JobState) -> bool:
    """Return whether a job takes turns whatever is decided: it can't be reached now."""
    return job.is_guest and pool.is_deaf(job) and not job.stop


def size_cap(pool: Pool) -> int:
    """Return a size that no job can have here: what users name beyond it makes no difference."""
    return len(pool.slots) + 1


def speeds_by_size(pool: Pool, job: JobState, cap: int, outline: PoolOutline) -> dict[int, Speed]:
    """Return how fast a job is at every size it may ever have, up to a cap, and how we know."""
    most = min(cap, max(job.gpus_max, job.gpus_least, *job.step_s, *job.spec.step_s))
    if job.gpus_useful is not None:
        most = max(min(cap, job.gpus_least), min(most, job.gpus_useful))
    submitted = tuple(job.spec.step_s.items())
    speeds = job.speeds
    measured = tuple(speeds.items())
    remembered = tuple(remembered_steps(pool, job).items())
    known = JobSpeeds(
        most,
        measured,
        submitted,
        job.virtual_nodes,
        job.profile,
        remembered,
        least_trial_gain(job, speeds.get(1)),
    )
    return _curve(known, outline)


class JobSpeeds(NamedTuple):
    """What is known of the speed of a job."""

    most: int  # GPUs
    measured: tuple[tuple[int, float], ...]
    submitted: tuple[tuple[int, float], ...]
    virtual_nodes: int | None
    profile: TrainingProfile | None
    remembered: tuple[tuple[int, float], ...]  # measured by earlier jobs that train the same
    trial_gain: float


@lru_cache(maxsize=1 << 16)
def _curve(known: JobSpeeds, outline: PoolOutline) -> dict[int, Speed]:
    """The same, remembered: of thousands of jobs few have news from one decision to the next."""
    predicted = predicted_steps(known.profile, outline, known.most)
    return curve(
        known.most,
        dict(known.measured),
        dict(known.submitted),
        known.virtual_nodes,
        predicted,
        remembered=dict(known.remembered),
        trial_gain=known.trial_gain,
    )


def _speeds(pool: Pool, jobs: tuple[JobState, ...], cluster: Cluster) -> Speeds:
    cap, outline = size_cap(pool), outline_of(pool)
    curves = [speeds_by_size(pool, job, cap, outline) for job in jobs]
    width = 1 + max((len(each) for each in curves), default=1)
    step_s = np.full((max(1, len(curves)), width), np.inf)
    measured = np.zeros(step_s.shape, np.bool_)
    if not curves:
        step_s[0, 1:] = 1.0
    for row, (job, each) in enumerate(zip(jobs, curves, strict=True)):
        step_s[row, 1 : len(each) + 1] = [speed.step_s for speed in each.values()]
        step_s[row, len(each) + 1 :] = step_s[row, len(each)]
        measured[row, [gpus for gpus in job.step_s if gpus <= len(each)]] = True
    names = tuple(str(job.id) for job in jobs) or ("none",)
    sizes = [len(each) for each in curves]
    places = partial(placement_costs, jobs, sizes, step_s, cluster, outline.links)
    speeds = speeds_of(names, step_s, measured)
    return replace(speeds, known_places=places, kinds=cluster.kinds)


def _table(
    pool: Pool,
    jobs: tuple[JobState, ...],
    deaf: Collection[int],
    cluster: Cluster,
    now_s: float,
    *,
    out_of_turns: Collection[int],
) -> JobTable:
    bounds = [_bounds(job, job.id in deaf, size_cap(pool), now_s) for job in jobs]
    nodes, total = {n.name: at for at, n in enumerate(cluster.nodes)}, cluster.gpus_total
    gpus = [
        len(job.granted) if job.id in deaf else _share(job, *each)
        for job, each in zip(jobs, bounds, strict=True)
    ]
    lost = {job.id for job in jobs if job.is_guest and job.id in out_of_turns}
    apps: dict[tuple[str, str], int] = {}
    groups = [(job.spec.user, job.spec.group) for job in jobs]
    return JobTable.of(
        len(jobs),
        id=[job.id for job in jobs],
        curve=np.arange(len(jobs)),
        submitted_s=[job.submitted_s for job in jobs],
        priority=[job.priority for job in jobs],
        group=[apps.setdefault(each, len(apps)) if each[1] else -1 for each in groups],
        weight=[job.spec.weight for job in jobs],
        tier=[TIERS[job.spec.tier] for job in jobs],
        preemptible=[not (job.has_run and (job.is_fixed or job.id in deaf)) for job in jobs],
        gpus_min=[least for least, _ in bounds],
        gpus_max=[most for _, most in bounds],
        gpus_requested=[
            job.spec.request_within(least, max(least, min(most, total)))
            for job, (least, most) in zip(jobs, bounds, strict=True)
        ],
        gpus=gpus,
        settled=[job.target == job.granted and job.phase == "running" for job in jobs],
        starts=[job.starts for job in jobs],
        remaining_iterations=[_or_nan(job.remaining) for job in jobs],
        pause_s=[job.last_pause_s or 0.0 for job in jobs],
        attained_gpu_s=[job.attained_by(now_s) for job in jobs],
        executed_s=[job.executed_by(now_s) for job in jobs],
        first_start_s=[_or_inf(job.first_start_s) for job in jobs],
        last_start_s=[_or_inf(job.last_start_s) for job in jobs],
        changed_s=[now_s if job.id in lost else job.decided_s for job in jobs],
        spans=[job.spec.is_elastic for job in jobs],
        switch_s=_switch_s(pool, jobs),
        preferred_node=[nodes.get(job.lead or parked_on(pool, job) or "", -1) for job in jobs],
        in_turns=[job.is_guest and job.id not in lost for job in jobs],
        done_iterations=[job.step or float("nan") for job in jobs],
        cohort=list(_cohorts(jobs).values()),
        is_range=[not job.spec.gpus_requested and job.gpus_least < job.gpus_most for job in jobs],
    )


def _cohorts(jobs: Iterable[JobState]) -> dict[int, int]:
    """Number jobs, by id, by what similar ones have in common: user, program and request."""
    known: dict[tuple[str, str, int], int] = {}
    asked = {job.id: (job.spec.user, job.spec.launch.argv[0], job.spec.gpus_max) for job in jobs}
    return {job: known.setdefault(each, len(known)) for job, each in asked.items()}


def ended_jobs(pool: Pool, jobs: tuple[JobState, ...], gpus_total: int) -> EndedJobs:
    """The newest jobs that are over, in the cohorts of the jobs of a snapshot."""
    over = [job for job in past_jobs(pool) if job.attained_gpu_s > 0.0]
    cohorts, cap, outline = _cohorts((*jobs, *over)), size_cap(pool), outline_of(pool)
    levels = []
    for job in over:
        speeds = speeds_by_size(pool, job, cap, outline)
        least = min(job.gpus_least, len(speeds))
        most = max(least, min(job.gpus_most, gpus_total, len(speeds)))
        request_s = speeds[job.spec.request_within(least, most)].step_s
        done = job.step or job.attained_gpu_s / least / speeds[least].step_s
        levels.append(level_at(done * request_s))
    ids = [job.id for job in over]
    columns = np.array((ids, [cohorts[job] for job in ids], levels), np.int64).reshape(3, -1)
    return EndedJobs(*columns)


def _switch_s(pool: Pool, jobs: tuple[JobState, ...]) -> list[float]:
    """Return what it costs to take turns with each job, as measured; NaN: that is not known.

    A job that can be parked, or is, and was never resumed is taken to cost what the others do.
    """
    known = [cost_s for job in jobs if (cost_s := job.switch_s) is not None]
    mean_s = sum(known) / len(known) if known else float("nan")
    found = []
    for job in jobs:
        is_warm = bool(job.parked) or may_park(pool, job)
        own_s = job.switch_s
        found.append(own_s if own_s is not None else mean_s if is_warm else float("nan"))
    return found


def _bounds(job: JobState, is_deaf: bool, cap: int, now_s: float) -> tuple[int, int]:
    """Return the fewest and the most GPUs that a job may have; as it has if it can't be reached."""
    gpus = len(job.granted)
    least, most = (gpus, gpus) if is_deaf else job.bounds(now_s)
    return min(cap, least), min(cap, most)


def _share(job: JobState, least: int, most: int) -> int:
    """Return a job's share as decided last, as far as it may still have that.

    A job that stops has given up its share; it may be decided to start again. A guest has none.
    """
    share = 0 if job.stop or job.is_guest else min(len(job.target), most)
    return share if share >= least else 0


def _or_nan(value: int | None) -> float:
    return float("nan") if value is None else float(value)


def _or_inf(value: float | None) -> float:
    return float("inf") if value is None else value


def _memory(jobs: tuple[JobState, ...]) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    memory = empty_memory(len(jobs))
    for row, job in enumerate(jobs):
        memory[row, : len(job.memory)] = job.memory
    return memory
