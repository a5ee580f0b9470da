"""What must hold of the trainings of elastic jobs, whatever goes wrong: one function for each.

The truth is what workers hold, and what is saved. What a supervisor believes counts for nothing,
but for what it tells: that must be true.
"""

from collections.abc import Iterator

from coddl.agent.job_runner import JobRun
from coddl.runtime.wire import Message
from coddl.testing.full_system.groups import TrainerGroup
from coddl.testing.full_system.invariants import Invariants
from coddl.testing.full_system.states import SavedStates, State
from coddl.testing.full_system.trainer import BATCH, Trainer
from coddl.testing.full_system.workers import Worker


class TrainingInvariants:
    """Checks what groups of workers do, and what supervisors tell of them."""

    def __init__(self, invariants: Invariants, saved: SavedStates) -> None:
        self.trainers: dict[Trainer, None] = {}  # that are alive
        self._all, self._saved = invariants, saved
        self._groups: dict[int, list[TrainerGroup]] = {}  # that train, by job
        self._begun: dict[tuple[int, int], int] = {}  # generations, by job and attempt
        self._done: dict[int, int] = {}  # the furthest step of each job
        self._steps: dict[int, int] = {}  # of each job's training
        self._origins: dict[tuple[int, int], int] = {}  # that were told, by job and attempt

    def started(self, slot: int, job: int, attempt: int, found: Worker | None, node: str) -> None:
        """A worker has started."""
        self._all.started(slot, job, attempt, found, node)

    def ended(self, slot: int, worker: Worker, because: str) -> None:
        """A worker is gone."""
        self._all.ended(slot, worker, because)

    # What groups do.

    def told(self, trainer: Trainer, generation: int) -> None:
        """A worker hears of generations in their order, whichever lead tells."""
        before, trainer.newest_generation = trainer.newest_generation, generation
        if generation <= before:
            about = f"job {trainer.job} attempt {trainer.host.attempt}, worker {trainer.number}"
            self._all.fail("generations only grow", f"{about}: {before}, then {generation}")

    def committed_unbuilt(self, trainer: Trainer, generation: int) -> None:
        """A group that not all of its workers have built is never committed to."""
        about = f"job {trainer.job}, worker {trainer.number}"
        sentence = f"{about}: it has not built generation {generation}"
        self._all.fail("workers change to a group that all have built", sentence)

    def begins(self, group: TrainerGroup, *, anew: bool, planned: bool) -> None:
        """A group begins to train."""
        job, state = group.job, group.state
        self._steps[job] = group.members[0].workload.steps
        how = "anew" if anew else "as planned" if planned else "after a loss"
        numbers = [member.number for member in group.members]
        self._all.tell(
            f"job {job} attempt {group.attempt}: workers {numbers} train from step {state.step} "
            f"on, {how} (generation {group.generation})"
        )
        others = [each for each in self._groups.get(job, ()) if not each.is_over]
        self._groups[job] = [*others, group]
        self.generations_begin_in_their_order(group)
        self.slices_cover_the_batch(group)
        self.one_group_trains(group, others)
        self.no_state_is_left_behind(group, planned=planned and not anew)
        if anew:
            self.a_lead_tells_from_where_it_begins(group)
            self._all.goes_on_from(job, state.step)

    def generations_begin_in_their_order(self, group: TrainerGroup) -> None:
        """Within an attempt, groups begin in the order of their generations."""
        key = (group.job, group.attempt)
        if group.generation <= self._begun.get(key, 0):
            sentence = f"job {key[0]} attempt {key[1]}: {self._begun[key]}, {group.generation}"
            self._all.fail("generations only grow", sentence)
        self._begun[key] = group.generation

    def slices_cover_the_batch(self, group: TrainerGroup) -> None:
        """Each sample of the global batch is in the slice of one member."""
        if sum(group.counts) != BATCH or len(group.counts) != len(group.members):
            sentence = f"job {group.job}: {list(group.counts)} of {BATCH} samples"
            self._all.fail("every sample is trained on once", sentence)

    def one_group_trains(self, group: TrainerGroup, others: list[TrainerGroup]) -> None:
        """No two groups that a lead can hear train at the same time."""
        for other in others:
            if other.attempt == group.attempt and all(map(is_led, other.members)):
                both = f"generations {other.generation} and {group.generation}"
                self._all.fail("one group of a job trains", f"job {group.job}: {both}")

    def no_state_is_left_behind(self, group: TrainerGroup, *, planned: bool) -> None:
        """A group goes on from the furthest state that its lead can have."""
        for trainer in self._led(group):
            state = trainer.state
            if state is not None and state.step > group.state.step and not trainer.is_leaving:
                sentence = (
                    f"job {group.job}: step {group.state.step}, "
                    f"and worker {trainer.number} has step {state.step}"
                )
                name = "a planned change loses no step" if planned else "no state is left behind"
                self._all.fail(name, sentence)

    def a_lead_tells_from_where_it_begins(self, group: TrainerGroup) -> None:
        """A group without a state begins where its lead has said that it does."""
        origin = self._origins.pop((group.job, group.attempt), None)
        if origin != group.state.step:
            sentence = f"job {group.job} begins at step {group.state.step}, not {origin}"
            self._all.fail("a training begins anew only where its lead tells", sentence)

    def stepped(self, group: TrainerGroup, before: State) -> None:
        """A group has made a step."""
        state = group.state
        self._done[group.job] = max(state.step, self._done.get(group.job, 0))
        if state.before is not before or state.step != before.step + 1:
            self._all.fail("every step is made once", f"job {group.job}: step {state.step}")
        self.members_hold_one_state(group, before)
        self.a_step_is_made_by_one_group(group)

    def members_hold_one_state(self, group: TrainerGroup, before: State) -> None:
        """Workers that train together have the same weights, and know the same samples."""
        for member in group.members:
            if member.is_alive and member.state not in (group.state, before):
                step = None if member.state is None else member.state.step
                sentence = f"job {group.job}: worker {member.number} has step {step}"
                self._all.fail("members hold the same state", sentence)

    def a_step_is_made_by_one_group(self, group: TrainerGroup) -> None:
        """A step is made again only where no worker that is led has its result."""
        for trainer in self._led(group):
            state = trainer.state
            if state is None or trainer.is_leaving or trainer in group.members:
                continue
            if state.step >= group.state.step and not state.comes_from(group.state):
                sentence = f"job {group.job}: step {group.state.step}, worker {trainer.number}"
                self._all.fail("every step is made once", sentence)

    def _led(self, group: TrainerGroup) -> Iterator[Trainer]:
        """Give the workers of a job that the lead of a group can hear."""
        for trainer in self.trainers:
            is_same = trainer.job == group.job and trainer.host.attempt == group.attempt
            if is_same and is_led(trainer):
                yield trainer

    # What supervisors tell.

    def supervisor_raised(self, run: JobRun, error: Exception) -> None:
        """No supervisor has a defect."""
        sentence = f"job {run.job} attempt {run.attempt}: {error!r}"
        self._all.fail("supervisors have no defects", sentence)

    def supervisor_told(self, run: JobRun, event: Message) -> None:
        """Hear what a supervisor tells its host."""
        if event["is"] == "origin":
            self._origins[run.job, run.attempt] = event["step"]
        match event["is"]:
            case "checkpoint":
                self.what_is_said_to_be_saved_can_be_restored(run, event["step"])
            case "suspended" if event["durable"]:
                self.what_is_said_to_be_saved_can_be_restored(run, event["step"])
            case "progress":
                self.progress_is_true(run, event["step"])
            case "ended" if event["code"] == 0:
                self.a_job_succeeds_after_its_last_step(run)
            case "origin" | "problem" | "error" | "exited" | "unready" | "broken" as kind:
                about = {name: event[name] for name in event if name != "is"}
                self._all.tell(f"job {run.job} attempt {run.attempt}: {kind} {about}")

    def what_is_said_to_be_saved_can_be_restored(self, run: JobRun, step: int) -> None:
        """A checkpoint that was told of is there, or a newer one."""
        path = self._saved.of(run.job).newest
        found = -1 if path is None else self._saved.of(run.job).kept[path].step
        if found < step:
            sentence = f"job {run.job}: step {step} is said to be saved, and step {found} is"
            self._all.fail("what is said to be saved can be restored", sentence)
        self._all.said_saved(run.job, step)

    def progress_is_true(self, run: JobRun, step: int) -> None:
        """No step is told of that no group has made."""
        if step > self._done.get(run.job, 0):
            sentence = f"job {run.job}: {step} of {self._done.get(run.job, 0)} steps"
            self._all.fail("what is told of was done", sentence)

    def a_job_succeeds_after_its_last_step(self, run: JobRun) -> None:
        """A job that has succeeded has made all its steps."""
        done, steps = self._done.get(run.job, 0), self._steps.get(run.job)
        if steps is None or done < steps:
            sentence = f"job {run.job}: {done} of {steps} steps"
            self._all.fail("a job succeeds after its last step", sentence)


def is_led(trainer: Trainer) -> bool:
    """Tell whether a worker has a lead that can hear it."""
    return trainer.is_alive and trainer.host.is_led
