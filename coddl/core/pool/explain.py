"""Why a job has what it has, or waits: one sentence for now, and its history. (C11)"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from coddl.core.lifecycle import WAITING
from coddl.core.pool import records as r
from coddl.core.pool.estimates import outline_of
from coddl.core.pool.job import JobState
from coddl.core.pool.nodes import STOPPED
from coddl.core.pool.parking import in_host_memory, parked_sentence
from coddl.core.pool.slot_sharing import stays
from coddl.core.pool.snapshot import size_cap, speeds_by_size, usable
from coddl.core.pool.state import Pool
from coddl.core.pool.turns import leaving_sentence, turns_sentence
from coddl.core.speed.live import Source
from coddl.core.speed.profile import TrainingProfile
from coddl.core.waiting import counted


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """How fast a job is at one size, and how we know."""

    gpus: int
    step_s: float  # as measured, or else what is most likely
    speedup: float  # over the smallest size
    source: Source
    iterations: int  # that were measured
    predicted_s: float | None  # from the profile, before it is adjusted; None: it can't be
    error: float | None  # of the prediction, as a part of what was measured; None: it was not
    relative_sd: float | None  # of what was not measured; None: unknown
    is_trial: bool  # it is expected to be slower, and is still worth a trial


@dataclass(frozen=True, slots=True)
class StoryLine:
    number: int  # of the record
    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """All there is to say about a job now."""

    job: int
    name: str
    phase: str
    code: str | None  # why it waits
    sentence: str
    position: int | None  # among those that wait, by number
    ahead: int  # jobs that hold devices
    speeds: tuple[SpeedRow, ...]
    story: tuple[StoryLine, ...]
    parked_sentence: str  # where its workers are parked; empty: nowhere


def explain(
    pool: Pool,
    state: JobState,
    story: Iterable[tuple[int, float, r.Record]],
    now_s: float,
    awaited: Collection[str] = (),
) -> Explanation:
    """Return a job's story, given its records.

    `awaited` are nodes that have not reported since the server was restarted.
    """
    job = state.id
    line = [each.id for each in pool.live_jobs() if each.phase in WAITING]
    return Explanation(
        job=job,
        name=state.spec.name,
        phase=state.phase,
        code=code_of(state),
        sentence=sentence(pool, state, now_s, awaited),
        position=line.index(job) + 1 if job in line else None,
        ahead=_holding(pool, job),
        speeds=speed_rows(pool, state),
        story=tuple(
            StoryLine(number, at_s, sentence_of(record, job, pool.unit))
            for number, at_s, record in story
        ),
        parked_sentence=parked_sentence(pool, state),
    )


def code_of(job: JobState) -> str | None:
    """Return the code of why a job waits; None if it does not."""
    if job.phase == "suspended":
        return "Held"
    if not job.is_waiting:
        return None
    return job.waiting.code if job.waiting is not None else "Resources"


def sentence(
    pool: Pool,
    job: JobState,
    now_s: float,
    awaited: Collection[str] = (),
    *,
    is_brief: bool = False,
) -> str:
    """Say, in one sentence, why a job stands where it stands; brief: as in a list of jobs."""
    if job.phase == "suspended":
        return f"suspended by {job.held_by or 'a user'}; coddl resume {job.id} continues it"
    if job.is_over or not job.is_waiting:
        more = f"; {job.unsaved_sentence}" if job.unsaved is not None else ""
        if in_turns := turns_sentence(pool, job, is_brief=is_brief):
            return in_turns + more
        if leaves := leaving_sentence(pool, job):
            return f"{job.reason}; {leaves}{more}"
        others = "" if is_brief or not job.granted else _others(pool, job)
        return job.reason + others + more + _why_not_more(pool, job, now_s)
    if job.target:
        return _reserved(pool, job)
    if job.waiting is None:
        return "waiting for the first scheduling decision"
    since = f"waiting for {_span(now_s - (job.waiting_since_s or now_s))}"
    if pool.wake_at_s is not None and pool.wake_at_s > now_s:
        since += f"; next decision within {_span(pool.wake_at_s - now_s)}"
    if awaited:
        since += f"; nodes not back since the server restarted: {', '.join(sorted(awaited))}"
    return f"{job.waiting.sentence} ({since})"


def _others(pool: Pool, job: JobState) -> str:
    """Return how many other jobs hold devices now, which a decision's reason can't know later."""
    count = _holding(pool, job.id)
    return f"; {count} other {'job runs' if count == 1 else 'jobs run'}" if count else ""


def _holding(pool: Pool, but: int) -> int:
    return sum(1 for each in pool.live_jobs() if each.granted and each.id != but)


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _why_not_more(pool: Pool, job: JobState, now_s: float) -> str:
    """Return why a job that could have more has not, while devices are free."""
    gpus, (_, most) = len(job.granted), job.bounds(now_s)
    free = sum(not pool.slots[slot].owners for slot in usable(pool))
    if job.phase != "running" or not free or not gpus or gpus >= job.gpus_max:
        return ""
    if job.spec.is_elastic and not job.prepared:
        return "; can be resized after it calls coddl.prepare"
    if gpus >= job.gpus_most:
        return f"; {job.sharing_sentence}"
    if not job.may_grow(now_s):
        return "; can grow after its speed at this size is measured"
    speeds = speeds_by_size(pool, job, size_cap(pool), outline_of(pool))
    larger = [speeds[n] for n in range(gpus + 1, min(most, gpus + free) + 1) if n in speeds]
    if gpus not in speeds or any(each.step_s < speeds[gpus].step_s for each in larger):
        return ""
    best_s = min(each.likely_s for each in larger) if larger else speeds[gpus].step_s
    return (
        f"; more {pool.unit}s would not make it faster: {speeds[gpus].step_s:.3g} s per step now, "
        f"{best_s:.3g} s with more"
    )


def _reserved(pool: Pool, job: JobState) -> str:
    """Say what has to happen before a job gets what was decided for it."""
    owners = {
        owner
        for slot in job.target
        for owner in pool.slots[slot].owners
        if not stays(pool.jobs[owner], slot)  # those take turns with it
    }
    holders = ", ".join(
        f'job {each} "{pool.jobs[each].spec.name}"' if each != job.id else "its previous run"
        for each in sorted(owners)
    )
    nodes = ", ".join(n for n in pool.nodes_of(job.target) if pool.nodes[n].is_silent)
    it = "it" if len(job.target) == 1 else "them"
    until = (
        f"{holders} to release {it}"
        if holders
        else f"node {nodes} to reconnect"
        if nodes
        else f"{it} to become free"
    )
    return f"{counted(len(job.target), pool.unit)} reserved; waiting for {until}"


def speed_rows(pool: Pool, job: JobState) -> tuple[SpeedRow, ...]:
    """Return how fast a job is at every size, and how we know."""
    speeds = speeds_by_size(pool, job, size_cap(pool), outline_of(pool))
    first_s = speeds[min(speeds)].likely_s
    rows = []
    for gpus, speed in sorted(speeds.items()):
        is_compared = speed.source == "measured" and speed.predicted_s is not None
        rows.append(
            SpeedRow(
                gpus,
                speed.likely_s,
                first_s / speed.likely_s,
                speed.source,
                job.step_s[gpus].iterations if gpus in job.step_s else 0,
                speed.predicted_s,
                (speed.predicted_s or 0.0) / speed.step_s - 1.0 if is_compared else None,
                speed.relative_sd,
                speed.is_trial,
            )
        )
    return tuple(rows)


def sentence_of(record: r.Record, job: int | None = None, unit: str = "GPU") -> str:
    """Tell a record in one line; of a decision, the part that concerns `job`."""
    match record:
        case r.JobSubmitted(number, spec):
            by, sizes = spec.user or "a user", _sizes(spec.gpus_min, spec.gpus_max, unit)
            return f'job {number} "{spec.name}" submitted by {by}: {spec.tier}, {sizes}'
        case r.JobCancelled(number, by):
            return f"job {number} cancelled by {by or 'a user'}"
        case r.JobSuspended(number, by):
            return f"job {number} suspended by {by or 'a user'}"
        case r.JobResumed(number, by):
            return f"job {number} resumed by {by or 'a user'}"
        case r.JobBounded(number, least, most, by):
            sizes = _sizes(least, most, unit)
            return f"job {number} bounds set to {sizes} by {by or 'a user'}"
        case r.JobPrioritised(number, priority, by):
            return f"job {number} priority set to {priority} by {by or 'a user'}"
        case r.NodeDrained(node, by, within_s, because):
            when = "" if within_s is None else f", to be empty within {_span(within_s)}"
            why = f": {because}" if because else ""
            return f"node {node} drained by {by or 'a user'}{when}{why}"
        case r.NodeUndrained(node, by):
            return f"node {node} no longer drained: undone by {by or 'a user'}"
        case r.NodeForgotten(node, by):
            return f"node {node} forgotten by {by or 'a user'}"
        case r.PolicyChosen(policy, by, placement):
            where = f", placement {placement}," if placement else ""
            return f"policy set to {policy}{where} by {by or 'a user'}"
        case r.NodeJoined(node, _, host, devices):
            return f"node {node} joined from {host} with {counted(len(devices), unit)}"
        case r.NodeLost(node, _, because):
            how = "left" if because == STOPPED else "lost"
            return f"node {node} {how}: {because}"
        case r.EngineBounded(engine, bounds):
            if bounds is None:
                return "nodes are no longer brought by an engine"
            return (
                f"{engine} brings {bounds.least}..{bounds.most} nodes of "
                f"{counted(bounds.gpus, unit)} each"
            )
        case r.NodeAcquired(node):
            return f"node {node} asked for"
        case r.NodeLeft(node, because):
            return f"node {node} left for good: {because}"
        case r.NodesWanted(nodes, because):
            return f"{counted(nodes, 'node')} wanted: {because}"
        case r.JobsForgotten(jobs):
            return f"{counted(len(jobs), 'ended job')} moved from memory to the history"
        case r.SlotFreed(slot, number):
            return f"slot {slot} released by job {number}"
        case r.ParkingEnded(number, because):
            return f"job {number} has no parked workers any more: {because}"
        case r.StartOverdue(number, _, after_s):
            return f"job {number} stopped: no step within {after_s:g} s of its start"
        case r.Decided() | r.DecisionFailed():
            return _decision(record, job, unit)
        case r.Aimed():
            return _aim(record)
        case _:
            return _run(record, unit)


def _sizes(least: int, most: int, unit: str) -> str:
    return counted(most, unit) if least == most else f"{least}..{most} {unit}s"


def _decision(record: r.Decided | r.DecisionFailed, job: int | None, unit: str) -> str:
    if job is not None and job in record.targets:
        target = record.targets[job]
        none = "" if target.slots else f"no {unit}s: "
        return f"decision for job {job}: {none}{target.reason}"
    if job is not None and job in record.waiting:
        why = record.waiting[job]
        return f"decision for job {job}: wait, {why.code}: {why.sentence} ({record.why})"
    if isinstance(record, r.DecisionFailed):
        return f"decision failed ({record.why}): {record.trouble.sentence}; jobs keep their {unit}s"
    shares = ", ".join(
        f"job {number} gets {counted(len(target.slots), unit)}"
        for number, target in record.targets.items()
    )
    return f"decision by {record.policy} ({record.why}): {shares or 'no change'}"


def _prepared(record: r.RunPrepared, unit: str) -> str:
    nodes = record.virtual_nodes
    most = record.workers_max if record.workers_max is not None else nodes
    sizes = [f"up to {counted(most, unit)}"] if most is not None else []
    strict = [counted(nodes, "virtual node")] if nodes is not None else []
    length = "an unknown number of steps" if record.steps is None else counted(record.steps, "step")
    size_mb = f"{record.gradient_bytes / 1e6:,.2f}"
    model = [f"{size_mb} MB of gradients"] if record.gradient_bytes else []
    return f"job {record.job} is resizable: {', '.join([*sizes, *strict, length, *model])}"


def _aim(record: r.Aimed) -> str:
    if not record.slots:
        return f"job {record.job} asked to save its state and stop: {record.reason}"
    which = f"slot{'s' * (len(record.slots) > 1)} {', '.join(map(str, record.slots))}"
    what = "precheck assigned to" if record.precheck else "assigned to"
    how = ", keeping its running workers" if record.adopt else ""
    attempt = f"(attempt {record.attempt}, lead node {record.lead}{how})"
    return f"job {record.job} {what} {which} {attempt}: {record.reason}"


def _pass_times(profile: TrainingProfile) -> str:
    """Return the times of the largest slice, and which others were measured."""
    *others, largest = profile.slices
    times = f"forward {largest.forward_s * 1e3:.3g} ms, backward {largest.backward_s * 1e3:.3g} ms"
    more = f"; slices of {', '.join(str(each.samples) for each in others)}, too" if others else ""
    return f"{times}, {largest.samples} samples on {profile.device}{more}"


def _run(record: r.RunFact, unit: str) -> str:
    match record:
        case r.RunPrepared():
            return _prepared(record, unit)
        case r.SliceDidNotFit(number, _, gpus_min, because):
            return f"job {number} needs at least {counted(gpus_min, unit)}: {because}"
        case r.RunProfiled(number, _, profile):
            return f"job {number} measured its passes: {_pass_times(profile)}"
        case r.LossMeasured(number, _, step, loss):
            return f"job {number} had a loss of {loss:.4g} around step {step}"
        case r.RunStepped(number, attempt, 0):
            return f"job {number} started (attempt {attempt})"
        case r.RunStepped(number, attempt, step):
            return f"job {number} made step {step}, the first of attempt {attempt}"
        case r.RunChanged():
            now, before = counted(len(record.slots), unit), record.gpus_before
            sizes = (
                f"from {before} to {now}" if before not in (0, len(record.slots)) else f"on {now}"
            )
            pause = f" (pause {record.pause_s * 1000:.0f} ms)" if before else ""
            return f"job {record.job} {record.kind} {sizes} after step {record.step}{pause}"
        case r.RunStalled(number, _, step, seconds):
            return f"job {number} has made no step for {seconds:.0f} s (last step: {step})"
        case r.RunUnsaved(number, _, step, trouble):
            if trouble is None:
                return f"job {number} can save its state again, at step {step}"
            return f"job {number} cannot save its state: {trouble.sentence}"
        case r.RunEnded():
            early = ": its script left its loop early" if record.left_early else ""
            code = f" (exit code {record.exit_code})" if record.exit_code else ""
            words = f": {record.trouble.sentence}" if record.trouble else ""
            end = r.ENDS[record.outcome]
            memory = f" ({in_host_memory(record.parked_bytes)})" if record.parked_bytes else ""
            parked = f"; its workers are parked{memory}" if record.parked else ""
            return f"job {record.job} {end} at step {record.step}{code}{early}{words}{parked}"
