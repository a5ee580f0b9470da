"""What happened in a pool, job by job: a fold of its journal, for a simulator to replay. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from coddl.core.pool import records as r
from coddl.core.pool.decision import COOLED
from coddl.core.pool.estimates import PoolOutline, outline_of
from coddl.core.pool.job import JobState
from coddl.core.pool.known_profiles import remembered_steps
from coddl.core.pool.state import Pool

STEPS_MIN: Final = 5  # at a size, for the time between records to show how long a step takes
COOL_DOWNS_MAX: Final = 4096  # that are counted; then the half that explain least are dropped


class TimedRecord(NamedTuple):
    """A record, and when it was written."""

    at_s: float
    record: r.Record


class ShareChange(NamedTuple):
    """A job holds this number of GPUs from a time on."""

    at_s: float
    gpus: int


class Stretch(NamedTuple):
    """A time in which a job trained at one size."""

    gpus: int
    from_s: float
    to_s: float
    from_step: int
    to_step: int


class TimedAction(NamedTuple):
    """What a user did to a job, and when."""

    at_s: float
    kind: Literal["suspend", "resume", "bounds", "priority"]
    values: tuple[int, ...] = ()  # the minimum and maximum, or the priority


@dataclass(slots=True)
class RecordedJob:
    """What happened to one job."""

    job: JobState  # as it is at the end
    shares: list[ShareChange] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    actions: list[TimedAction] = field(default_factory=list)
    began_s: float | None = None  # when it first trained after its first start
    opened_s: float | None = None  # when a decision could first give it more than its minimum
    prepares_s: list[float] = field(default_factory=list)  # of resizes, while it trained on
    pauses_s: list[float] = field(default_factory=list)  # of resizes
    remembered: Mapping[int, float] = field(default_factory=dict)  # step times of earlier jobs
    knew_profile: bool = False  # an earlier job had reported its profile
    lost_runs: int = 0
    took_turns: bool = False
    opened: tuple[float, int] | None = None  # when and at which step the present stretch began

    def begin(self, at_s: float, step: int) -> None:
        """Note that it trains at its size from now on."""
        self.began_s = at_s if self.began_s is None else self.began_s
        self.opened = (at_s, step)

    def end(self, at_s: float, step: int, gpus: int) -> None:
        """Note that it does not train at that size any more."""
        if self.opened is not None and gpus > 0 and at_s > self.opened[0]:
            from_s, from_step = self.opened
            self.stretches.append(Stretch(gpus, from_s, at_s, from_step, max(step, from_step)))
        self.opened = None

    def note_share(self, at_s: float) -> None:
        """Note how many GPUs it holds, if that is new."""
        gpus = len(self.job.granted)
        if gpus != (self.shares[-1].gpus if self.shares else 0):
            self.shares.append(ShareChange(at_s, gpus))
        self.took_turns |= self.job.sharers > 1

    @property
    def start_s(self) -> float | None:
        """How long its first start took; None: it never trained."""
        if self.began_s is None or not self.shares:
            return None
        return max(0.0, self.began_s - self.shares[0].at_s)

    @property
    def counts_steps(self) -> bool:
        """Return whether its work is counted in steps; else in seconds at its size."""
        return any(each.to_step > each.from_step for each in self.stretches)

    @property
    def work_done(self) -> float:
        """How much it has trained, redone steps included."""
        return sum(self._work(each) for each in self.stretches)

    def work_by(self, at_s: float) -> float:
        """How much it had trained by a time."""
        done = 0.0
        for each in self.stretches:
            part = (at_s - each.from_s) / (each.to_s - each.from_s)
            done += self._work(each) * min(1.0, max(0.0, part))
        return done

    @property
    def step_s(self) -> dict[int, float]:
        """Seconds per step at each size, from the times between records; else as the pool knows.

        The time between records is what counts for a completion: it includes evaluations,
        checkpoints, and what else a script does between its steps.
        """
        if not self.counts_steps:
            return {}
        found = {gpus: each.step_s for gpus, each in self.job.step_s.items()}
        seconds: dict[int, float] = {}
        steps: dict[int, int] = {}
        for each in self.stretches if not self.took_turns else ():
            seconds[each.gpus] = seconds.get(each.gpus, 0.0) + each.to_s - each.from_s
            steps[each.gpus] = steps.get(each.gpus, 0) + each.to_step - each.from_step
        return found | {n: seconds[n] / steps[n] for n in steps if steps[n] >= STEPS_MIN}

    @property
    def gpu_s(self) -> float:
        """GPU-seconds it held."""
        return self.job.attained_gpu_s

    @property
    def reallocations(self) -> int:
        """Count the changes of its share after its first start; its end is none."""
        ends = bool(self.shares) and self.shares[-1].gpus == 0 and self.job.is_over
        return max(0, len(self.shares) - 1 - ends)

    def _work(self, stretch: Stretch) -> float:
        if self.counts_steps:
            return float(stretch.to_step - stretch.from_step)
        return stretch.to_s - stretch.from_s


@dataclass(slots=True)
class Recording:
    """What happened in a pool."""

    pool: Pool = field(default_factory=Pool)  # as it is at the end
    jobs: dict[int, RecordedJob] = field(default_factory=dict)  # by number, as submitted
    capacity: list[ShareChange] = field(default_factory=list)  # GPUs of the pool
    policies: list[tuple[float, str]] = field(default_factory=list)  # from when on which
    outline: PoolOutline | None = None  # of the pool when it was largest
    kinds: set[str] = field(default_factory=set)  # of GPUs
    cool_downs_ms: dict[int, int] = field(default_factory=dict)  # waits that each would explain
    until_s: float = 0.0  # of the last record

    @property
    def unit(self) -> str:
        """What people call a slot of the pool."""
        return "CPU slot" if self.kinds == {"cpu"} else "GPU"

    @property
    def cool_down_s(self) -> float | None:
        """The pool's cool-down; None: no decision has waited for it."""
        found = self.cool_downs_ms
        return max(found, key=lambda each: found[each]) / 1000 if found else None

    def take(self, at_s: float, record: r.Record) -> None:
        """Take in the next record."""
        self.until_s = max(self.until_s, at_s)
        known = self._about(record)
        if known is not None:
            self._note_before(known, at_s, record)
        if isinstance(record, r.Decided):
            self._note_cool_down(record)
        self.pool.apply(record, at_s)
        match record:
            case r.JobSubmitted(job):
                known = self.jobs[job] = RecordedJob(self.pool.jobs[job])
            case r.NodeJoined(devices=devices):
                self.kinds.update(device.kind for device in devices)
                outline = outline_of(self.pool)
                if self.outline is None or outline.gpus >= self.outline.gpus:
                    self.outline = outline
            case r.Decided():
                self._note_decision(at_s, record)
            case r.NodeLost() | r.NodeLeft():
                for each in self._unfinished():
                    self._note_loss(each, at_s)
        if known is not None:
            self._note_after(known, at_s, record)

    def _about(self, record: r.Record) -> RecordedJob | None:
        job = getattr(record, "job", None)
        return None if job is None else self.jobs.get(job)

    def _unfinished(self) -> Iterator[RecordedJob]:
        return (self.jobs[job] for job in self.pool.active)

    def _note_before(self, known: RecordedJob, at_s: float, record: r.Record) -> None:
        """Note what ends with a record, while its job still is as it was."""
        match record:
            case r.RunChanged(gpus_before=before, step=step):
                known.end(at_s, step, before)
            case r.RunEnded(step=step):
                known.end(at_s, step, len(known.job.serves or known.job.granted))
                known.lost_runs += record.outcome == "lost"
            case r.StartOverdue():
                known.lost_runs += 1
            case r.JobSuspended():
                known.actions.append(TimedAction(at_s, "suspend"))
            case r.JobResumed():
                known.actions.append(TimedAction(at_s, "resume"))
            case r.JobBounded(gpus_min=least, gpus_max=most):
                known.actions.append(TimedAction(at_s, "bounds", (least, most)))
            case r.JobPrioritised(priority=priority):
                known.actions.append(TimedAction(at_s, "priority", (priority,)))

    def _note_after(self, known: RecordedJob, at_s: float, record: r.Record) -> None:
        """Note what begins with a record."""
        known.note_share(at_s)
        match record:
            case r.RunPrepared():
                known.remembered = dict(remembered_steps(self.pool, known.job))
                known.knew_profile |= known.job.profile is not None
            case r.RunChanged(step=step):
                known.begin(at_s, step)
                if record.kind == "resized":
                    known.pauses_s.append(record.pause_s)
                    known.prepares_s.append(max(0.0, record.serving_s - record.pause_s))
            case r.RunStepped(step=step) if not known.job.prepared:
                known.begin(at_s, step)

    def _note_loss(self, known: RecordedJob, at_s: float) -> None:
        """Note what the loss of a node has meant to a job."""
        before = known.shares[-1].gpus if known.shares else 0
        known.note_share(at_s)
        if known.shares and known.shares[-1].gpus == 0 < before:
            known.end(at_s, known.job.step, before)
            known.lost_runs += 1

    def _note_cool_down(self, decided: r.Decided) -> None:
        """Note which cool-downs explain until when a decision waits: since the change of a share.

        Which job it concerns is not recorded; the pool's own is the one that explains all of them.
        """
        if decided.wake_at_s is None or not decided.wake_why.endswith(COOLED):
            return
        waits_s = (decided.wake_at_s - job.decided_s for job in self.pool.live_jobs() if job.target)
        counts = self.cool_downs_ms
        for wait_ms in sorted({round(1000 * wait_s) for wait_s in waits_s}):
            counts[wait_ms] = counts.get(wait_ms, 0) + 1
        if len(counts) > COOL_DOWNS_MAX:
            most = sorted(counts.items(), key=lambda each: -each[1])[: COOL_DOWNS_MAX // 2]
            self.cool_downs_ms = dict(most)

    def _note_decision(self, at_s: float, decided: r.Decided) -> None:
        if not self.capacity or self.capacity[-1].gpus != decided.gpus:
            self.capacity.append(ShareChange(at_s, decided.gpus))
        if not self.policies or self.policies[-1][1] != decided.policy:
            self.policies.append((at_s, decided.policy))
        for row in decided.rows:
            known = self.jobs[row.job]
            if known.opened_s is None and row.gpus_max > row.gpus_min:
                known.opened_s = at_s

    def ended(self) -> "Recording":
        """End the stretches that are still open, with the last record."""
        for each in self.jobs.values():
            job = each.job
            each.end(self.until_s, job.step, len(job.serves or job.granted))
        return self


def recorded(records: Iterable[TimedRecord]) -> Recording:
    """Fold the records of a pool, from the first one on, into what happened there."""
    recording = Recording()
    for at_s, record in records:
        recording.take(at_s, record)
    return recording.ended()
