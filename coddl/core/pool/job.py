"""One job of the pool: what was asked for, where it stands, and what is known of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from coddl.core.lifecycle import OVER, RUNNING, WAITING, Phase, PhaseTransition, check
from coddl.core.pool.memory_limits import MemoryLimit
from coddl.core.pool.orders import Stop
from coddl.core.pool.records import DecisionRow, RunChanged, RunPrepared, SliceDidNotFit, Trouble
from coddl.core.pool.spec import JobSpec
from coddl.core.pool.timeline import Spans, with_gpus, with_pause
from coddl.core.speed.profile import TrainingProfile
from coddl.core.speed.training_length import (
    LossPoint,
    PredictedLength,
    predicted_length,
    thinned,
    with_loss,
)
from coddl.core.waiting import Waiting, counted

STORY_MAX: Final = 20  # moves that are remembered; the journal has them all
NEWS: Final = 0.1  # by how much a number must differ from what was decided on last, to be news
REST_MAX_S: Final = 300.0  # between two runs that came no further
LOSSES_SHOWN: Final = 24  # to people
PRERUN_S: Final = 10.0  # how long a job stays small after its first step, to be measured there
PROFILE_STEPS: Final = 10  # after which slow steps have a profile; the first are not timed
PROFILE_MAX_S: Final = 60.0  # a profile is not waited for any longer


def is_news(now: float, told: float) -> bool:
    """Return whether a number that moves with every step has moved enough to be reported again."""
    return abs(now - told) > NEWS * told


# Of thousands of jobs few have other losses from one decision to the next.
_predicted_length = lru_cache(maxsize=1 << 12)(predicted_length)


@dataclass(slots=True)
class MeasuredSpeed:
    """How long an iteration takes at one size."""

    step_s: float
    iterations: int


@dataclass(slots=True)
class JobState:
    """A job. Changed by `Pool.apply` alone, except for what runs report of their progress."""

    id: int
    spec: JobSpec
    submitted_s: float
    gpus_min: int
    gpus_max: int
    priority: int
    phase: Phase = "pending"
    story: list[PhaseTransition] = field(default_factory=list)
    # What it is to have, and what its agents' orders say.
    target: tuple[int, ...] = ()  # slots, as decided last
    reason: str = ""  # for the target
    turn_s: float = 0.0  # above 0: it takes turns on its target, which is another job's
    on_trial: bool = False  # the target is a size to be measured, expected to be slower
    decided_s: float = 0.0  # when its share was last decided to be another
    waiting: Waiting | None = None
    waiting_since_s: float | None = None
    granted: tuple[int, ...] = ()  # slots it may use now
    attempt: int = 0
    generation: int = 0
    lead: str | None = None  # node
    led_by: str | None = None  # node that leads, or led, the newest attempt
    jobs_folder: str = ""  # the id of the jobs folder with its files; empty: none yet, or unknown
    adopt: bool = False
    precheck: bool = False  # what runs is its precheck
    stop: Stop = ""
    # What users want.
    suspended: bool = False
    held_by: str = ""
    cancelled: bool = False
    # What its runs have told.
    prechecked: bool = False
    prepared: bool = False
    proven_s: float | None = None  # when it made its first step ever
    workers_max: int | None = None  # that can share its batch; None: unknown, or as below
    virtual_nodes: int | None = None  # of a strict job
    global_batch: int | None = None  # samples; None: unknown
    model: int | None = None  # those that are alike need the same memory for a sample
    micro_batch: int | None = None  # samples that a pass has at most
    training: str = ""  # those that are alike take the same time on the same GPUs
    profile: TrainingProfile | None = None  # of it, or of an earlier job that is alike
    is_estimable: bool = False  # with a profile, its speeds at other sizes could be estimated
    gpus_fit: int = 1  # the fewest on which its slices fit in memory, as far as was tried
    fit_because: str = ""  # why that is more than 1
    gpus_expected: int = 1  # the same, as measured sizes and other jobs make expect
    expected_because: str = ""
    fit_attempt: int = 0  # that ended because of such a limit
    gradient_bytes: int = 0  # of a step; 0: unknown
    largest_tensor_bytes: int = 0  # of them
    steps: int | None = None
    step: int = 0
    epoch_steps: int | None = None
    loss_points: tuple[LossPoint, ...] = ()  # that its script has logged, by step
    step_s: dict[int, MeasuredSpeed] = field(default_factory=dict)  # by GPUs
    change: int = -1  # the newest change of its group, in this attempt
    serves: tuple[int, ...] = ()  # slots it trains on, by its own account
    last_pause_s: float | None = None
    resizes: int = 0
    trials: int = 0  # of them, those to measure a size
    reruns: int = 0  # in a row that came no further
    rest_until_s: float = 0.0  # not to be started before
    failures: int = 0  # of its own
    losses: int = 0  # not of its own, in a row without a step
    parked: tuple[int, ...] = ()  # slots of its last run, where its workers are parked
    parked_bytes: int = 0  # host memory that they use
    state_bytes: int = 0  # that workers of it used when they were parked last; 0: unknown
    park_s: float | None = None  # until its GPUs were free when it was parked last; None: unknown
    resume_s: float | None = None  # until it trained again, out of parked workers; None: unknown
    turn_switch_s: float | None = None  # soft: to end a turn on a shared slot, and begin the next
    turn_bytes: int = 0  # soft: of host memory that it used when it waited for its turn last
    unsaved: Trouble | None = None  # why the newest state of its run is not on disk
    left_early: bool = False  # it ended well before its last step
    exit_code: int | None = None
    trouble: Trouble | None = None
    # When, and how much.
    starts: int = 0
    is_resumed: bool = False  # its next start is a user's resume after a suspension, or from parked
    resumptions: int = 0  # of its starts, those for which it was
    first_start_s: float | None = None
    last_start_s: float | None = None
    ended_s: float | None = None
    sharers: int = 1  # jobs that take turns on its slot, itself included
    has_shared: bool = False  # others took turns on its slots since it was given some
    settled_s: float | None = None  # up to when these two are counted
    executed_s: float = 0.0
    attained_gpu_s: float = 0.0
    spans: Spans = ()  # how many GPUs it held, and when
    memory: tuple[float, ...] = ()  # the policy's
    row: DecisionRow | None = None  # what the last decision knew of it

    @property
    def is_over(self) -> bool:
        return self.phase in OVER

    @property
    def is_waiting(self) -> bool:
        """Return whether it would start if it got devices."""
        return self.phase in WAITING

    @property
    def has_run(self) -> bool:
        """Return whether an agent leads it, or is about to."""
        return self.phase in RUNNING

    @property
    def restarts(self) -> int:
        """Count its starts after failures, losses and preemptions that had ended its workers."""
        return max(0, self.starts - 1 - self.resumptions - self.prechecked)

    @property
    def is_elastic(self) -> bool:
        """Return whether it may be resized now."""
        return self.spec.is_elastic and self.prepared

    @property
    def is_guest(self) -> bool:
        """Return whether its target is a slot of another job, on which it takes turns."""
        return self.turn_s > 0.0

    @property
    def is_fixed(self) -> bool:
        """Return whether taking its devices away would lose its work."""
        return not self.is_elastic and self.spec.tier != "restartable"

    @property
    def speeds(self) -> dict[int, float]:
        """Return the step times that are decided on: as measured, where that is news."""
        told = self.row.step_s if self.row is not None else {}
        return {
            gpus: told[gpus]
            if gpus in told and not is_news(each.step_s, told[gpus])
            else each.step_s
            for gpus, each in self.step_s.items()
        }

    def decided_step_s(self, gpus: int) -> float | None:
        """Return the step time at a size that was decided on: as measured, or as submitted.

        None: it was not known, or what was submitted has turned out wrong.
        """
        told, submitted = self.row.step_s if self.row is not None else {}, self.spec.step_s
        if gpus in told:
            return told[gpus]
        is_right = not any(is_news(told[n], submitted.get(n, told[n])) for n in told)
        return submitted.get(gpus) if is_right else None

    @property
    def remaining(self) -> int | None:
        """Return the iterations that are decided on, told or predicted; None: unknown."""
        if self.steps is not None:
            left = max(0, self.steps - self.step)
        elif (predicted := self.predicted) is not None:
            left = predicted.left(self.step)
        else:
            return None
        told = self.row.remaining if self.row is not None else None
        return left if told is None or is_news(left, told) else told

    @property
    def predicted(self) -> PredictedLength | None:
        """Predict when it ends, from its losses; None: they do not tell, or were wrong."""
        found = self.predicted_by_loss
        return None if found is None or found.is_refuted(self.step) else found

    @property
    def predicted_by_loss(self) -> PredictedLength | None:
        """Predict when it should have ended, even if it has not."""
        return _predicted_length(self.loss_points, self.epoch_steps) if self.loss_points else None

    @property
    def has_new_length(self) -> bool:
        """Return whether its length is known for the first time, by a prediction."""
        is_unknown = self.row is not None and self.row.remaining is None
        return is_unknown and self.remaining is not None

    @property
    def gpus_least(self) -> int:
        """The fewest GPUs that it can run on: as its user says, or as its memory requires."""
        return max(self.gpus_min, self.gpus_memory)

    @property
    def gpus_memory(self) -> int:
        """The fewest GPUs that its memory requires; at a size it was measured at, it fits."""
        expected = min([self.gpus_expected, *self.step_s])
        return max(self.gpus_fit, expected)

    @property
    def pass_samples(self) -> int:
        """How many samples a worker has in a pass now, at least; 0: unknown."""
        gpus = len(self.serves or self.granted)
        if not self.global_batch or not gpus or self.virtual_nodes is not None:
            return 0
        samples = self.global_batch // gpus
        return samples if self.micro_batch is None else min(samples, self.micro_batch)

    @property
    def gpus_useful(self) -> int | None:
        """The most GPUs that can share its batch; None: unknown."""
        return self.virtual_nodes if self.workers_max is None else self.workers_max

    @property
    def gpus_most(self) -> int:
        """The most GPUs that it may have and can use."""
        useful = self.gpus_useful
        return self.gpus_max if useful is None else min(self.gpus_max, useful)

    @property
    def fits(self) -> bool:
        """Return whether its slices may fit in memory on as many GPUs as it may have."""
        return self.gpus_fit <= self.gpus_most

    @property
    def fit_sentence(self) -> str:
        """Return which minimum its memory requires; empty if it is not known to require any."""
        if (least := self.gpus_memory) == 1:
            return ""
        because = self.fit_because if least == self.gpus_fit else self.expected_because
        return f"at least {least} GPUs: {because}"

    @property
    def left_early_sentence(self) -> str:
        """Say that it ended before its last step; empty if it did not."""
        of = f" of {self.steps}" if self.steps is not None else ""
        return f"the script left its loop at step {self.step}{of}" if self.left_early else ""

    @property
    def unsaved_sentence(self) -> str:
        """Return why its state is not on disk, and what follows; empty if it is."""
        if self.unsaved is None:
            return ""
        if self.spec.tier == "restartable":
            return f"it has ended, but its files can't be stored yet: {self.unsaved.sentence}"
        is_to_leave = self.stop in ("park", "retire")
        does = "keeps training" if self.granted else "stays in memory"
        stays = f" and {does} until it can" if is_to_leave else ""
        return f"it cannot save its state{stays}: {self.unsaved.sentence}"

    @property
    def misfit(self) -> Trouble:
        """Say that it needs more GPUs than it may have, if it does not fit."""
        return Trouble(
            "it does not fit in memory",
            f"it needs at least {self.gpus_fit} GPUs: {self.fit_because}; "
            f"its maximum is {self.gpus_most}",
            f"--gpus {self.gpus_fit}, or micro_batch in coddl.prepare",
        )

    @property
    def sharing_sentence(self) -> str:
        """Return how many GPUs can share its batch; empty if that is not known."""
        if (useful := self.gpus_useful) is None:
            return ""
        samples = self.global_batch
        batch = f"its batch of {counted(samples, 'sample')}" if samples else "its batch"
        if self.virtual_nodes is not None:
            return f"{batch} is cut into {counted(self.virtual_nodes, 'virtual node')}, one per GPU"
        each = f" (at least {counted(samples // useful, 'sample')} each)" if samples else ""
        return f"{batch} can be shared by at most {counted(useful, 'GPU')}{each}"

    def log_loss(self, step: int, loss: float) -> None:
        """Take in a loss of its script."""
        self.loss_points = with_loss(self.loss_points, LossPoint(step, loss))
        self.step = max(self.step, step)

    def forget_decisions(self) -> None:
        """Drop what decisions need, as it is over; people still see how its loss fell."""
        self.row, self.memory = None, ()
        self.loss_points = thinned(self.loss_points, LOSSES_SHOWN)

    def regroup(self, fact: RunChanged) -> None:
        """Train with other workers, as its lead tells."""
        self.change, self.step = fact.change, max(self.step, fact.step)
        self.serves, self.last_pause_s = fact.slots, fact.pause_s
        if fact.gpus_before not in (0, len(fact.slots)):  # else it is a start, or a rebalance
            self.spans = with_pause(self.spans, len(fact.slots), fact.pause_s)
        if fact.kind in ("started", "restarted"):
            self.resume_s = None
        elif fact.kind == "resumed" and not self.has_shared:
            # It was not training: all of the time until it is counts, not only what its members
            # call their pause. On a shared slot it includes the turns of others.
            self.resume_s = fact.serving_s

    def prepare(self, fact: RunPrepared) -> None:
        """Be as its script says."""
        self.prepared, self.steps = True, fact.steps
        self.workers_max, self.virtual_nodes = fact.workers_max, fact.virtual_nodes
        self.global_batch = fact.global_batch
        self.gradient_bytes = fact.gradient_bytes
        self.largest_tensor_bytes = fact.largest_tensor_bytes
        self.model, self.micro_batch = fact.model, fact.micro_batch
        self.training, self.epoch_steps = fact.training, fact.epoch_steps

    def knows(self, fact: RunPrepared) -> bool:
        """Return whether a script says what the last run has said."""
        said = (fact.workers_max, fact.virtual_nodes, fact.global_batch)
        known = (self.workers_max, self.virtual_nodes, self.global_batch)
        is_as_long = (fact.steps, fact.epoch_steps) == (self.steps, self.epoch_steps)
        model = (fact.gradient_bytes, fact.largest_tensor_bytes, fact.model, fact.micro_batch)
        known_model = (self.gradient_bytes, self.largest_tensor_bytes, self.model, self.micro_batch)
        is_same = said == known and model == known_model and fact.training == self.training
        return self.prepared and is_same and is_as_long

    def knows_limit(self, fact: SliceDidNotFit) -> bool:
        """Return whether a limit is no news; one that was not tried keeps no job from running."""
        if fact.evidence == "tried":
            return fact.gpus_min <= self.gpus_fit
        return fact.gpus_min <= self.gpus_expected or fact.gpus_min > self.gpus_most

    def memory_limit(self, kinds: Sequence[str], samples: int) -> MemoryLimit | None:
        """Put what it has found out into words that other jobs understand, if there are any."""
        if self.model is None or not samples or len(kinds) != 1:
            return None
        return MemoryLimit(self.model, kinds[0], samples, self.id)

    def bounds(self, now_s: float) -> tuple[int, int]:
        """Return the fewest and the most GPUs that it may have now."""
        if self.spec.launch.precheck and not self.prechecked:
            return 1, 1
        if not self.spec.is_elastic:
            return self.gpus_min, self.gpus_min
        if self.has_run and not self.prepared and not self.stop:
            # Another size would cost it all it has done; it may have one when it can be resized.
            return len(self.granted), len(self.granted)
        least = min(self.gpus_least, self.gpus_most)
        return least, self.gpus_most if self.may_grow(now_s) else least

    def may_grow(self, now_s: float) -> bool:
        """Return whether it has shown that it runs, and how fast.

        A job that fails at once must not have taken many devices. And with its speed at the
        smallest size known, its profile tells how it scales, or else the first larger size does.
        Slow steps are not waited for, nor are measurements of what was submitted.
        """
        if self.proven_s is None or not self.prepared:
            return False
        if self.spec.step_s:
            return True
        is_known = bool(self.step_s) and (self.profile is not None or not self.is_estimable)
        return is_known or now_s >= self.proven_s + self.prerun_s

    @property
    def prerun_s(self) -> float:
        """How long it stays small after its first step, at most: its profile is worth more."""
        if not self.is_estimable or self.profile is not None or not self.step_s:
            return PRERUN_S
        slowest_s = max(each.step_s for each in self.step_s.values())
        return max(PRERUN_S, min(PROFILE_MAX_S, PROFILE_STEPS * slowest_s))

    @property
    def switch_s(self) -> float | None:
        """Seconds that its GPUs are idle when it is parked and resumed; None: unknown."""
        is_cold = not self.has_run and not self.parked  # its next start takes longer
        if is_cold or self.park_s is None or self.resume_s is None:
            return None
        return self.park_s + self.resume_s

    @property
    def last_switch_s(self) -> float | None:
        """Seconds that a switch took last: between turns on a slot, else to park and resume."""
        if self.turn_switch_s is not None:
            return self.turn_switch_s
        both = self.park_s is not None and self.resume_s is not None
        return (self.park_s or 0.0) + (self.resume_s or 0.0) if both else None

    def executed_by(self, now_s: float) -> float:
        """Seconds in which it has held devices; of a slot that jobs share by turns, its part."""
        return self.executed_s + self._held_s(now_s)

    def attained_by(self, now_s: float) -> float:
        """GPU-seconds it has had."""
        return self.attained_gpu_s + self._held_s(now_s) * len(self.granted)

    def move(self, phase: Phase, at_s: float, because: str) -> None:
        """Go to another phase, along the table."""
        if phase == self.phase:
            return
        step = PhaseTransition(at_s, self.phase, phase, because)
        check(self.spec.name, step, self.story)
        self.story = [*self.story, step][-STORY_MAX:]
        self.phase = phase

    def resume(self, by: str, now_s: float) -> None:
        """Be no longer suspended."""
        self.suspended = False
        if self.phase == "suspended":
            self.is_resumed = self.starts > 0
            self.move("pending", now_s, f"resumed by {by}")

    def rest(self, step: int, now_s: float) -> None:
        """Wait before the next run, the longer the more often runs came no further."""
        self.reruns = 0 if step > self.step else self.reruns + 1
        self.rest_until_s = now_s + min(REST_MAX_S, 2.0 ** min(self.reruns, 10) / 2.0)

    def hold(self, slots: tuple[int, ...], now_s: float) -> None:
        """Be given other devices, and settle the account of those held so far."""
        self._settle(now_s)
        if slots and not self.granted:
            self.starts += 1
            self.has_shared = False
            self.resumptions += self.is_resumed
            self.is_resumed = False
            self.last_start_s = now_s
            self.first_start_s = now_s if self.first_start_s is None else self.first_start_s
        self.granted, self.sharers = slots, 1
        self.spans = with_gpus(self.spans, len(slots), now_s)

    def share(self, sharers: int, now_s: float) -> None:
        """Take turns on its slot with another number of jobs, itself included."""
        if sharers != self.sharers:
            self._settle(now_s)
            self.sharers = sharers
            self.has_shared |= sharers > 1

    def _settle(self, now_s: float) -> None:
        self.executed_s, self.attained_gpu_s = self.executed_by(now_s), self.attained_by(now_s)
        self.settled_s = now_s

    def _held_s(self, now_s: float) -> float:
        if not self.granted or self.settled_s is None:
            return 0.0
        return max(0.0, now_s - self.settled_s) / self.sharers
