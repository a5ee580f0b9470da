"""What was recorded of a pool as what the simulator runs: a trace, speeds and conditions. Pure."""

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from coddl.core.columns import BoolColumn, FloatColumn
from coddl.core.errors import UserError
from coddl.core.pool.decision import POOL_STABILITY
from coddl.core.pool.estimates import PoolOutline, predicted_steps
from coddl.core.pool.recording import RecordedJob, Recording
from coddl.core.pool.timeline import Capacity
from coddl.core.pool.trials import least_trial_gain
from coddl.core.scheduler import Stability
from coddl.core.speed.live import Source, Speed, curve
from coddl.core.speed.slices import fitted_line
from coddl.core.speed.table import speeds_of
from coddl.core.waiting import counted
from coddl.sim.beliefs import Beliefs
from coddl.sim.failures import Faults, TraceWithFaults
from coddl.sim.learning import SpeedLearning
from coddl.sim.pool_conditions import PoolConditions, UserAction
from coddl.sim.world import Reconfigure
from coddl.traces.trace import Trace, trace_of

START_S: Final = 0.0  # of a job, where no job of the pool has ever trained
ALIKE: Final = 0.15  # within which the step times of two jobs that train the same agree
REMEMBERED: Final = 1 << 16  # curves
TRAINING_S: Final = 60.0  # of a job that tells no steps; a shorter one is taken for no training
# Work of a job that its user ended is left over by this part where it is not known how much was.
LEFT_OVER: Final = 1e-9


class RecordedShare(NamedTuple):
    """The job in a row holds this number of GPUs from a time on."""

    at_s: float
    row: int
    gpus: int


class LeftOut(NamedTuple):
    """Jobs that a replay does without."""

    jobs: int
    why: str


@dataclass(frozen=True, eq=False)
class RecordedWorkload:
    """What is replayed, and what has happened. Times count from `since_s`."""

    trace: Trace
    beliefs: Beliefs
    conditions: PoolConditions
    failures: "EndedByUsers"
    reconfigure: Reconfigure
    stability: Stability
    unit: str  # what people call a slot of the pool
    policy: str  # in force for most of the time
    policies: tuple[str, ...]  # all that were in force
    since_s: float
    until_s: float
    numbers: tuple[int, ...]  # of the jobs, by row
    finish_s: FloatColumn  # recorded; NaN: not finished
    succeeded: BoolColumn  # recorded
    first_start_s: FloatColumn  # inf: never
    executed_s: FloatColumn
    gpu_s: FloatColumn  # that jobs held
    shares: tuple["RecordedShare", ...]  # in order
    reallocations: int
    left_out: tuple[LeftOut, ...]
    sources: Counter[Source]  # how the speeds are known at the sizes jobs may have
    unmeasured: int  # jobs with several sizes that were measured at one at most
    took_turns: int  # jobs that have taken turns on a GPU
    lost_runs: int
    kinds: int  # of GPUs
    unrequested: int  # jobs with a range of GPUs of which none is known to be asked for

    @property
    def gpus(self) -> int:
        """GPUs of the pool when it had most."""
        return max(each.gpus for each in self.conditions.capacity)

    def with_gpus(self, gpus: int) -> "RecordedWorkload":
        """The same jobs on another number of GPUs, all the time."""
        conditions = replace(self.conditions, capacity=(Capacity(0.0, gpus),))
        return replace(self, conditions=conditions)


@dataclass(frozen=True, eq=False)
class EndedByUsers:
    """Ends jobs after as much work as was done when users cancelled them, or when they failed."""

    ends_at: FloatColumn  # work that is left then; 0: the job trains to its end

    def draw(self, trace: Trace, seed: int) -> TraceWithFaults:  # noqa: ARG002  # nothing is drawn
        """Return the same ends each time."""
        return TraceWithFaults(trace, Faults(np.zeros((1, trace.size)), self.ends_at, np.inf))


class ReplayedJob(NamedTuple):
    """A job as it enters the replay."""

    known: RecordedJob
    submitted_s: float  # from the beginning of the replay
    work: float  # in all
    left_over: float  # of it when the job ended; 0: it trained to its end
    gpus_min: int
    gpus_max: int


def recorded_workload(
    recording: Recording,
    since_s: float | None = None,
    *,
    gpus: Sequence[int] = (),
    cool_down_s: float | None = None,
) -> RecordedWorkload:
    """Prepare a replay of the recording since a time.

    `gpus` are the cluster sizes of the alternatives: speeds are needed up to the largest one.
    """
    begin_s = _begin_s(recording, since_s)
    capacity = _capacity(recording, begin_s)
    most = max(each.gpus for each in capacity)
    why: Counter[str] = Counter()
    jobs = list(_replayed(recording, begin_s, most, why))
    if not jobs:
        raise UserError(
            "there is nothing to replay",
            "; ".join(f"{counted(n, 'job')}: {each}" for each, n in why.items())
            or ("all jobs had ended by then" if recording.jobs else "no job was submitted"),
            "an earlier --since, or later, when jobs have trained",
        )
    speeds = _JobSpeeds(jobs, recording, max(most, *gpus, 1))
    stability = replace(POOL_STABILITY)
    cool_s = cool_down_s if cool_down_s is not None else recording.cool_down_s
    if cool_s is not None:
        stability = replace(stability, cool_down_s=cool_s)
    policies = _policies(recording, begin_s)
    finish_s = [_or_nan(job.known.job.ended_s) - begin_s for job in jobs]
    return RecordedWorkload(
        trace=_trace(jobs, speeds),
        beliefs=speeds.beliefs(),
        conditions=_conditions(recording, jobs, capacity, begin_s),
        failures=EndedByUsers(np.array([job.left_over for job in jobs])),
        reconfigure=_reconfigure(recording),
        stability=stability,
        unit=recording.unit,
        policy=max(policies, key=lambda each: policies[each]),
        policies=tuple(policies),
        since_s=begin_s,
        until_s=recording.until_s,
        numbers=tuple(job.known.job.id for job in jobs),
        finish_s=np.array(finish_s),
        succeeded=np.array([job.known.job.phase == "succeeded" for job in jobs]),
        first_start_s=np.array([_or_inf(job.known.job.first_start_s) - begin_s for job in jobs]),
        executed_s=np.array([job.known.job.executed_by(recording.until_s) for job in jobs]),
        gpu_s=np.array([_gpu_s_since(job.known, begin_s, recording.until_s) for job in jobs]),
        shares=_shares(jobs, begin_s),
        reallocations=sum(job.known.reallocations for job in jobs),
        left_out=tuple(LeftOut(count, each) for each, count in why.items()),
        sources=speeds.sources,
        unmeasured=speeds.unmeasured,
        took_turns=sum(job.known.took_turns for job in jobs),
        lost_runs=sum(job.known.lost_runs for job in jobs),
        kinds=len(recording.kinds),
        unrequested=sum(
            job.gpus_max > job.gpus_min and not job.known.job.spec.gpus_requested for job in jobs
        ),
    )


def _begin_s(recording: Recording, since_s: float | None) -> float:
    """When the replay begins: with the first submission, or when it is asked to."""
    submitted_s = [known.job.submitted_s for known in recording.jobs.values()]
    first_s = min(submitted_s, default=recording.until_s)
    return first_s if since_s is None else max(first_s, min(since_s, recording.until_s))


def _capacity(recording: Recording, begin_s: float) -> tuple[Capacity, ...]:
    """The GPUs of the pool; at its end those that it had last, so that jobs can end.

    GPUs that left while there was no job are taken to have stayed for jobs that last longer.
    """
    lives = [(each.job.submitted_s, _or_inf(each.job.ended_s)) for each in recording.jobs.values()]
    untils_s = [*(at_s for at_s, _ in recording.capacity[1:]), np.inf]
    steps = [
        Capacity(max(0.0, at_s - begin_s), gpus)
        for (at_s, gpus), until_s in zip(recording.capacity, untils_s, strict=True)
        if any(began_s < until_s and at_s < ended_s for began_s, ended_s in lives)
    ]
    while len(steps) > 1 and steps[1].at_s == 0.0:
        steps = steps[1:]
    while steps and steps[-1].gpus == 0:
        steps = steps[:-1]
    if not steps:
        because = "the pool has had no GPU"
        raise UserError("there is nothing to replay", because, "coddl nodes, to see what it has")
    return (steps[0]._replace(at_s=0.0), *steps[1:])


def _replayed(
    recording: Recording, begin_s: float, most: int, why: Counter[str]
) -> Iterator[ReplayedJob]:
    """The jobs that are replayed, in order of submission; the others are counted."""
    by_time = sorted(recording.jobs.values(), key=lambda known: known.job.submitted_s)
    for known in by_time:
        job = known.job
        if job.ended_s is not None and job.ended_s <= begin_s:
            continue  # it plays no part
        done, before = known.work_done, known.work_by(begin_s)
        told = float(job.steps) if job.steps is not None and known.counts_steps else 0.0
        if not job.is_over and job.remaining is not None and known.counts_steps:
            whole = done + job.remaining
        elif not job.is_over and job.steps is not None and job.prepared:
            whole = float(job.steps)
        elif not job.is_over:
            why["not over, and how much it has left to do is not known"] += 1
            continue
        elif done - before <= 0.0:
            why[f"{job.phase} before it had trained"] += 1
            continue
        elif not known.counts_steps and done < TRAINING_S:
            why[f"made no step, and ran for less than {TRAINING_S:g} s"] += 1
            continue
        elif job.phase == "succeeded":
            whole = done
        else:  # its policy knew how much it would have done
            whole = max(done * (1.0 + LEFT_OVER), told)
        least, gpus_max = _bounds(known)
        if least > most:
            why[f"needs more than the {most} GPUs of the pool"] += 1
            continue
        left_over = whole - done if job.is_over else 0.0
        submitted_s = max(0.0, job.submitted_s - begin_s)
        yield ReplayedJob(known, submitted_s, whole - before, left_over, least, gpus_max)


def _bounds(known: RecordedJob) -> tuple[int, int]:
    """The bounds that a job was submitted with, as far as memory and its batch allow them."""
    job = known.job
    changed = any(each.kind == "bounds" for each in known.actions)
    least, most = (
        (job.spec.gpus_min, job.spec.gpus_max) if changed else (job.gpus_min, job.gpus_max)
    )
    if not job.spec.is_elastic:
        return least, least
    if job.gpus_useful is not None:
        most = min(most, job.gpus_useful)
    least = min(max(least, job.gpus_memory), most)
    return least, most


class _JobSpeeds:
    """How fast each job is, and what a pool would know of that."""

    def __init__(self, jobs: Sequence[ReplayedJob], recording: Recording, gpus_most: int) -> None:
        self._jobs = jobs
        self._outline = recording.outline or PoolOutline(1, 1, ())
        self.most = [min(job.gpus_max, gpus_most) for job in jobs]
        self.most = [max(most, job.gpus_min) for most, job in zip(self.most, jobs, strict=True)]
        self._fixed_part = _usual_fixed_part(jobs)
        self._known = [self._truth(at) for at in range(len(jobs))]
        self.sources = Counter(
            speed.source
            for job, each in zip(jobs, self._known, strict=True)
            for size, speed in each.items()
            if size >= job.gpus_min and job.known.counts_steps
        )
        self.unmeasured = sum(
            job.known.counts_steps and most > job.gpus_min and len(job.known.step_s) < 2
            for job, most in zip(jobs, self.most, strict=True)
        )
        width = 1 + max(self.most)
        step_s = np.full((len(jobs), width), np.inf)
        for row, job in enumerate(jobs):
            step_s[row, job.gpus_min :] = self._column(self._known[row], width)[job.gpus_min :]
        measured = np.zeros(step_s.shape, np.bool_)
        for row, job in enumerate(jobs):
            measured[row, [n for n in job.known.step_s if n < width]] = True
        names = tuple(f"{job.known.job.id} {job.known.job.spec.name}" for job in jobs)
        self.table = speeds_of(names, step_s, measured)

    def beliefs(self) -> Beliefs:
        """What the pool's scheduler would believe, as it measures."""

        @lru_cache(maxsize=REMEMBERED)
        def believed(row: int, visited: frozenset[int]) -> FloatColumn:
            truth = self.table.step_s[row]
            seen = {n: float(truth[n]) for n in visited if np.isfinite(truth[n])}
            return self._column(self._curve(row, seen, believed=True), len(truth))

        learning = SpeedLearning(self.table, believed)
        return Beliefs(learning.at_first, learning=learning)

    def _truth(self, row: int) -> dict[int, Speed]:
        """The speeds of a job as far as they are known.

        A pool assumes that a job scales perfectly until it has tried. Here that would flatter
        policies with other sizes, so such a job is taken to scale as the others did.
        """
        speeds = self._curve(row, self._jobs[row].known.step_s)
        measured = {n: each for n, each in speeds.items() if each.source == "measured"}
        if len(measured) != 1 or self._fixed_part is None:
            return speeds
        ((size, step),) = measured.items()
        fixed, divided = self._fixed_part, 1.0 - self._fixed_part
        alone_s = step.step_s / (fixed + divided / size)
        return {
            n: Speed(alone_s * (fixed + divided / n), "assumed")
            if each.source == "assumed"
            else each
            for n, each in speeds.items()
        }

    def _curve(
        self, row: int, measured: Mapping[int, float], *, believed: bool = False
    ) -> dict[int, Speed]:
        """The speeds of a job, given those that were measured."""
        known, job = self._jobs[row].known, self._jobs[row].known.job
        if not known.counts_steps:
            return {n: Speed(1.0, "measured") for n in range(1, self.most[row] + 1)}
        has_profile = known.knew_profile or bool(measured)
        predicted = predicted_steps(job.profile, self._outline, self.most[row])
        return curve(
            self.most[row],
            measured,
            job.spec.step_s,
            job.virtual_nodes,
            predicted if has_profile else {},
            remembered=known.remembered if believed else _alike(known),
            trial_gain=least_trial_gain(job, measured.get(1)) if believed else 0.0,
        )

    def _column(self, speeds: Mapping[int, Speed], width: int) -> FloatColumn:
        """Seconds per step at every share; from the largest share on it stays what it is there."""
        times_s = [each.step_s for each in speeds.values()]
        return np.array([np.inf, *times_s, *[times_s[-1]] * (width - 1 - len(times_s))])


def _usual_fixed_part(jobs: Sequence[ReplayedJob]) -> float | None:
    """The part of a step on one GPU that more GPUs do not shorten; the median of the jobs that were
    measured at several sizes, None if there are none.
    """
    parts = []
    for job in jobs:
        if len(steps := job.known.step_s) > 1:
            fixed_s, divided_s = fitted_line((1.0 / n, step_s) for n, step_s in steps.items())
            parts.append(fixed_s / (fixed_s + divided_s))
    return statistics.median(parts) if parts else None


def _alike(known: RecordedJob) -> Mapping[int, float]:
    """The step times of earlier jobs, unless its own show that it scales otherwise.

    With two sizes of its own, that is known only if earlier jobs have had them, too.
    """
    own, others = known.step_s, known.remembered
    if len(own) < 2:
        return others
    both = sorted(own.keys() & others.keys())
    if len(both) < 2:
        return {}
    level = own[both[0]] / others[both[0]]
    agree = all(abs(own[n] / (others[n] * level) - 1.0) <= ALIKE for n in both)
    return others if agree else {}


def _trace(jobs: Sequence[ReplayedJob], speeds: _JobSpeeds) -> Trace:
    specs = [job.known.job.spec for job in jobs]
    gpus_max = np.array(speeds.most, np.int64)
    groups = [f"{spec.user} {spec.group}" if spec.group else "" for spec in specs]
    trace = trace_of(
        "the pool's journal",
        speeds.table,
        submitted_s=np.array([job.submitted_s for job in jobs]),
        curve=np.arange(len(jobs)),
        iterations=np.array([job.work for job in jobs]),
        gpus_requested=np.array(
            [
                job.known.job.spec.request_within(job.gpus_min, most)
                for job, most in zip(jobs, speeds.most, strict=True)
            ],
            np.int64,
        ),
        gpus_min=np.array([job.gpus_min for job in jobs], np.int64),
        gpus_max=gpus_max,
        # Users and programs: what similar jobs have in common is expected to be alike.
        user=[f"{spec.user} {spec.launch.argv[0]}" for spec in specs],
        group=groups,
        weight=np.array([spec.weight for spec in specs]),
    )
    return replace(
        trace,
        priority=np.array([_first_priority(job.known) for job in jobs], np.int64),
        preemptible=np.array([int(spec.tier != "opaque") for spec in specs], np.int64),
    )


def _first_priority(known: RecordedJob) -> int:
    """The priority that a job was submitted with."""
    return known.job.spec.priority


def _conditions(
    recording: Recording, jobs: Sequence[ReplayedJob], capacity: Sequence[Capacity], begin_s: float
) -> PoolConditions:
    starts_s = [each for known in recording.jobs.values() if (each := known.start_s) is not None]
    usual_s = statistics.median(starts_s) if starts_s else START_S
    start_s = [usual_s if (own := job.known.start_s) is None else own for job in jobs]
    opens_s = [
        known.opened_s - known.shares[0].at_s
        for known in recording.jobs.values()
        if known.opened_s is not None and known.shares
    ]
    usual_small_s = statistics.median(opens_s) if opens_s else usual_s
    return PoolConditions(
        start_s=np.array(start_s),
        small_s=np.array([_small_s(job.known, usual_small_s) for job in jobs]),
        tells_length=np.array([job.known.job.steps is not None for job in jobs]),
        capacity=tuple(capacity),
        actions=tuple(_actions(jobs, begin_s)),
    )


def _small_s(known: RecordedJob, usual_s: float) -> float:
    """How long a job had its minimum at most; what is usual where it did not come to an end."""
    if known.opened_s is None or not known.shares:
        return usual_s
    return max(0.0, known.opened_s - known.shares[0].at_s)


def _actions(jobs: Sequence[ReplayedJob], begin_s: float) -> Iterable[UserAction]:
    """What users did to jobs, in order; what they did before the replay begins is done at once."""
    found: list[UserAction] = []
    for row, job in enumerate(jobs):
        for at_s, kind, values in job.known.actions:
            if kind == "bounds":
                least, most = values
                most = min(most, job.known.job.gpus_useful or most)
                least = min(max(least, job.known.job.gpus_memory), most)
                values = (least, most, job.known.job.spec.request_within(least, most))
            found.append(UserAction(max(0.0, at_s - begin_s), row, kind, values))
    return sorted(found, key=lambda each: each.at_s)


def _reconfigure(recording: Recording) -> Reconfigure:
    """What resizes have cost: the median of how long they were prepared, and of their pauses."""
    jobs = recording.jobs.values()
    prepares_s = [each for known in jobs for each in known.prepares_s]
    pauses_s = [each for known in jobs for each in known.pauses_s]
    if not pauses_s:
        return Reconfigure("concurrent")
    return Reconfigure("concurrent", statistics.median(prepares_s), statistics.median(pauses_s))


def _policies(recording: Recording, begin_s: float) -> dict[str, float]:
    """For how long each policy was in force."""
    times_s = [max(begin_s, at_s) for at_s, _ in recording.policies] + [recording.until_s]
    lasted: dict[str, float] = {}
    for (_, policy), from_s, to_s in zip(recording.policies, times_s, times_s[1:], strict=False):
        if to_s > from_s:
            lasted[policy] = lasted.get(policy, 0.0) + to_s - from_s
    return lasted or {recording.pool.policy: 0.0}


def _shares(jobs: Sequence[ReplayedJob], begin_s: float) -> tuple[RecordedShare, ...]:
    """What jobs held, in order of time; what they held before the replay begins, from then on."""
    found: list[RecordedShare] = []
    for row, job in enumerate(jobs):
        held = [(max(0.0, at_s - begin_s), gpus) for at_s, gpus in job.known.shares]
        later = [at_s for at_s, _ in held[1:]] + [np.inf]
        lasting = (each for each, to_s in zip(held, later, strict=True) if each[0] < to_s)
        found += [RecordedShare(at_s, row, gpus) for at_s, gpus in lasting]
    return tuple(sorted(found))


def _gpu_s_since(known: RecordedJob, begin_s: float, until_s: float) -> float:
    """GPU-seconds that a job held since a time."""
    times_s = [max(begin_s, at_s) for at_s, _ in known.shares] + [max(begin_s, until_s)]
    gaps = zip(known.shares, times_s, times_s[1:], strict=False)
    return sum(gpus * (to_s - from_s) for (_, gpus), from_s, to_s in gaps)


def _or_inf(value: float | None) -> float:
    return float("inf") if value is None else value


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
