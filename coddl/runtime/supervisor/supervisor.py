"""Runs one elastic job on this machine: leads its workers from group to group, and saves.

One thread, one loop. Words come from the workers (`crew`), from the control socket and from the
clock; the `Coordinator` decides what they mean for the group, and its commands are carried out
here. Nothing is printed: whoever hosts the supervisor is told what happens, and shows it.
"""

import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, assert_never

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor import generations as group
from coddl.runtime.supervisor import jobdir, troubles
from coddl.runtime.supervisor.changes import Changes
from coddl.runtime.supervisor.checkpoints import Checkpoints
from coddl.runtime.supervisor.control import Control
from coddl.runtime.supervisor.coordinator import Coordinator
from coddl.runtime.supervisor.crew import Crew
from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.ledger import (
    Figures,
    WorkerNotes,
    samples_per_s,
    signal_name,
)
from coddl.runtime.supervisor.loop import Loop
from coddl.runtime.supervisor.requests import Requests
from coddl.runtime.supervisor.saving import Captures, Origin, Saving
from coddl.runtime.supervisor.traceevents import TraceEvents
from coddl.runtime.wire import Message

JOINERS_MAX: Final = 10  # that may fail by themselves in a job's life
PROGRESS_EVERY_S: Final = 0.2
SAVE_WITHIN_S: Final = 3.0  # after the first Ctrl-C


class Supervisor:
    """Runs one job from its start to its end; `tell` hears of everything, as it happens."""

    def __init__(self, job: Job, tell: Callable[[Message], None]) -> None:
        self._job = job
        self._host = tell
        self._loop = Loop()
        self._coordinator = Coordinator()
        self._target: int | None = None  # workers; None before we know how many GPUs there are
        self._awake_target = 1  # what `resume` goes back to
        self._resizes = list(job.resizes)  # not done yet
        self._requests = Requests(self)
        self._held: list[group.Command] = []  # until there is a store to meet in
        self._changes = Changes()
        self._command_s = self._started_s = time.monotonic()
        self._about: Message = {}  # what the first worker to arrive said of the script
        self._metrics: Message = {}
        self._best_step = self._failed_joiners = 0
        self._starts_in_vain = 0  # that came no further than the one before
        self._last_trouble = "nobody said why"
        self._given_up: set[int] = set()  # slots
        self._is_asleep = False
        self._has_finished = False  # somebody ran the script to its end
        self._progress_s = 0.0
        self._is_interrupted = False  # and waits for a last image
        self._stopping: int | None = None  # the code we are going to end with
        self._exit_code: int | None = None

    # Life.

    def run(self) -> int:
        """Run the job to its end; give its exit code. Nothing of it is left running."""
        job = self._job
        with contextlib.ExitStack() as stack:
            stack.callback(self._loop.close)
            self._control = Control(job.name, self._requests.take)
            stack.callback(self._control.close)
            stack.callback(self._tell_end)
            checkpoints = Checkpoints(job.folder)
            stack.enter_context(jobdir.claimed(job.folder, job.script, fresh=job.fresh))
            self._trace = TraceEvents(job.trace, self._tell_problem) if job.trace else None
            if self._trace is not None:
                stack.callback(self._trace.close)
                self._changes.trace = self._trace
            stash = jobdir.stash_folder(job.name, job.folder, job.script, fresh=job.fresh)
            self._saving = Saving(self._loop, stash, checkpoints, self.tell)
            stack.callback(self._close_saving)
            self._crew = Crew(self._loop, job, str(stash), self)
            ask = lambda: self._crew.send(self._coordinator.members[:1], {"do": "capture"})  # noqa: E731
            self._captures = Captures(self._loop, self._saving, job.checkpoint_every_s, ask)
            stack.callback(self._crew.close)
            self._crew.open()
            self._origin: Origin | None = self._saving.origin()  # while torch is being imported
            self._control.serve(self._loop)
            while self._exit_code is None:
                self._loop.turn()
        return self._exit_code

    def interrupt(self) -> None:
        """Stop the job with exit code 130; asked again, at once. For any thread or handler."""
        self._loop.post(self._on_interrupt)

    def fail(self, error: TrainingError, code: int) -> None:
        """End the job because of an error, which is told once."""
        if self._stopping is None:
            self.tell({"is": "error", **error.parts()})
            self._stop(code)

    def _tell_problem(self, problem: TrainingError) -> None:
        self.tell({"is": "problem", **problem.parts()})

    def tell(self, event: Message) -> None:
        """Tell the host, and everybody who watches."""
        self._host(event)
        self._control.broadcast(event)

    def _on_interrupt(self) -> None:
        """The first time, save and stop; then stop; then kill."""
        if self._stopping is not None:
            self._crew.kill_all()
        elif self._is_at_target() and self._coordinator.step and not self._is_interrupted:
            self._is_interrupted = True
            self._captures.take()
            at_s = time.monotonic() + SAVE_WITHIN_S
            self._loop.alarm("interrupt", at_s, lambda: self._stop(128 + signal.SIGINT))
        else:
            self._stop(128 + signal.SIGINT)

    def _stop(self, code: int) -> None:
        self._stopping = code
        self._crew.stop_all()
        self._end_if_alone()

    def _end_if_alone(self) -> None:
        """End once nobody is left, if that is what the job was about to do."""
        if self._crew.notes:
            return
        if self._stopping is not None:
            self._exit_code = self._stopping
        elif self._coordinator.ending:
            self._exit_code = 0 if self._has_finished else 1
        else:
            return
        self._requests.settle()

    def _tell_end(self) -> None:
        if self._exit_code is not None:
            self.tell({"is": "ended", "code": self._exit_code, **self.status()})

    def _close_saving(self) -> None:
        succeeded = self._exit_code == 0
        self._saving.close(lose=succeeded)
        if succeeded:
            jobdir.finish(self._job.folder, self._job.script, keep=self._job.keep_checkpoints)

    # What the host, or somebody at the control socket, may ask.

    def resize(self, workers: int) -> None:
        """Set how many workers there shall be; raise if that can't be."""
        self._check_awake("resized")
        self._job.check_size(workers, self._coordinator.virtual_nodes)
        self._set_target(workers)

    def suspend(self) -> None:
        """Have the workers save and leave; raise if that can't be."""
        if self._target != 0:
            self._check_awake("suspended")
            self._set_target(0)

    def resume(self, workers: int | None = None) -> None:
        """Go on after `suspend`, by default with as many workers as before."""
        if self._target != 0 or self._coordinator.ending:
            raise troubles.not_suspended(self._job, self.state)
        workers = self._awake_target if workers is None else workers
        self._job.check_size(workers, self._coordinator.virtual_nodes)
        self._set_target(workers)

    @property
    def state(self) -> str:
        """Name the state as people see it."""
        if self._exit_code is not None:
            return {0: "SUCCEEDED", 130: "CANCELLED"}.get(self._exit_code, "FAILED")
        if self._stopping is not None:
            return "STOPPING"
        if self._is_asleep and self._target == 0:
            return "SUSPENDED"
        if not self._changes.members:
            return "STARTING"
        return "RUNNING" if self._coordinator.phase == "steady" else "RESIZING"

    def status(self) -> Message:
        """Give all there is to know about the job now."""
        return {
            **self._brief_status(),
            "script": str(self._job.script),
            "global_batch": self._about.get("global_batch"),
            "virtual_nodes": self._coordinator.virtual_nodes,
            "saved_step": self._saving.saved_step,
            "changes": self._changes.made,
            "workers": [notes.as_data() for notes in self._crew.notes],
        }

    def _brief_status(self) -> Message:
        made = self._changes.made
        return {
            "name": self._job.name,
            "state": self.state,
            "step": self._coordinator.step,
            "steps": self._about.get("steps"),
            "size": len(self._changes.members),
            "target": self._target,
            "generation": self._changes.generation,
            "samples_per_s": samples_per_s(self._crew.notes),
            "seconds": time.monotonic() - self._started_s,
            "last_pause_s": made[-1]["pause_s"] if made else None,
            "metrics": self._metrics,
        }

    def _check_awake(self, asked: str) -> None:
        ending = self._coordinator.ending or self._stopping is not None
        error = troubles.not_now(self._job, asked, self._target, ending=ending)
        if error is not None:
            raise error

    def _is_at_target(self) -> bool:
        """Tell whether the job trains at the size it was last told to."""
        return bool(self._target) and self._coordinator.is_settled

    def _set_target(self, workers: int) -> None:
        self._target = workers
        self._awake_target = workers or self._awake_target
        self._command_s = time.monotonic()
        self._feed(group.TargetSet(tuple(range(workers))))

    @property
    def target(self) -> int | None:
        return self._target

    def has_reached(self, target: int) -> bool:
        """Tell whether the job runs at that size now; raise if it never will."""
        if target != self._target:
            because = f"a newer command asked for {self._target}"
            raise troubles.never_reached(self._job, target, because)
        if self._coordinator.ending or self._stopping is not None:
            raise troubles.never_reached(self._job, target, "it ended before")
        if target == 0:
            return self._is_asleep and not self._crew.notes
        if self._coordinator.phase != "steady":
            return False
        if self._given_up or self._coordinator.hopeless:
            raise troubles.never_reached(self._job, target, self._last_trouble)
        return len(self._coordinator.members) == target

    # Words from the crew.

    def on_warm(self) -> None:
        if self._target is None and self._stopping is None:
            self._set_target(self._job.first_size(self._crew.gpus or 0))

    def on_store(self) -> None:
        held, self._held = self._held, []
        for command in held:
            self._execute(command)

    def on_store_lost(self) -> None:
        running = self._changes.generation
        for member in self._coordinator.members:
            self._feed(group.GroupBroken(member, running))

    def on_word(self, notes: WorkerNotes, message: Message) -> None:
        if self._stopping is not None:
            return
        worker = notes.number
        match message["is"]:
            case "arrived":
                self._on_arrived(notes, message)
            case "ready":
                self._feed(group.WorkerReady(worker, message["generation"]))
            case "unready":
                self._last_trouble = f"worker {worker} could not join: {message['because']}"
                self.tell({**message, "worker": worker})
                self._feed(group.WorkerUnready(worker, message["generation"]))
            case "swapped":
                self._on_swapped(notes, message)
            case "stepped":
                self._on_stepped(notes, message)
            case "broken":
                self._feed(group.GroupBroken(worker, message["generation"]))
            case "prepared":
                notes.has_prepared = True
            case "image":
                self._on_image(message)
            case "metrics":
                self._metrics |= message["values"]
            case "ended":
                notes.has_ended = True
                self._feed(group.WorkerStepped(worker, message["step"], None))
                self._feed(group.LoopEnded(worker))
            case "problem":
                self._captures.is_awaited = False
                self.tell({**message, "worker": worker})
            case "rejected":
                error = TrainingError(message["what"], message["because"], message["try"])
                self._blame(notes, error, 2)
            case "spans" if self._trace is not None:
                self._trace.spans(worker, message["spans"])
            case _:
                pass  # `alive`, and what a newer worker may have to say

    def on_gone(self, notes: WorkerNotes, code: int) -> None:
        """Draw the conclusions from a worker's end."""
        is_expected = notes.is_unwanted or notes.has_left
        name = signal_name(-code) if code < 0 else None
        self.tell(
            {"is": "exited", "worker": notes.number, "code": code, "signal": name}
            | {"expected": is_expected or (code == 0 and notes.has_ended)}
        )
        if not is_expected:
            if name is not None:
                self._last_trouble = f"worker {notes.number} was killed by {name}"
                if notes.has_ended:  # what it was to do after the loop is not done
                    self.fail(troubles.died_after_loop(self._job, self._last_trouble), 128 - code)
            elif (error := troubles.verdict(notes, code, self._job.argv[0])) is not None:
                self._blame(notes, error, code or 1)
            else:
                self._has_finished = True
                self._feed(group.LoopEnded(notes.number))  # news only if it broke out of the loop
        if notes.number in self._coordinator.members:
            self._command_s = time.monotonic()
        self._feed(group.WorkerLost(notes.number))
        self._end_if_alone()

    def _blame(self, notes: WorkerNotes, error: TrainingError, code: int) -> None:
        """Fail because the script did; not while others train on, to whom a joiner is no loss."""
        others = any(each.step for each in self._crew.notes if each is not notes)
        if others and not notes.step and self._failed_joiners < JOINERS_MAX:
            self._failed_joiners += 1
            self._last_trouble = f"worker {notes.number}: {error.what}"
            self._tell_problem(error)
            self._crew.stop(notes.number)
        else:
            self.fail(error, code)

    def _on_arrived(self, notes: WorkerNotes, message: Message) -> None:
        virtual_nodes = message["virtual_nodes"]
        if (differs := troubles.mismatch(self._about, message, self._job.argv[0])) is not None:
            self._blame(notes, differs, 1)
            return
        notes.has_arrived = True
        if not self._about:
            self._about = message
            try:
                self._job.check_sizes(virtual_nodes)
            except TrainingError as error:
                self.fail(error, 2)
            if self._target is not None and self._target > virtual_nodes:
                self._set_target(virtual_nodes)
        if self._trace is not None:
            self._trace.begin_worker(notes.number, notes.slot, notes.started_s)
        self._feed(group.WorkerArrived(notes.number, virtual_nodes))

    def _on_stepped(self, notes: WorkerNotes, message: Message) -> None:
        notes.step = message["step"]
        notes.figures.add(message)
        if notes.step > self._best_step:
            self._best_step, self._starts_in_vain = notes.step, 0
        self._captures.plan()
        self._feed(group.WorkerStepped(notes.number, notes.step, message.get("pass_s")))
        if self._resizes and self._resizes[0][0] <= notes.step and self._is_at_target():
            self._set_target(self._resizes.pop(0)[1])
        now_s = time.monotonic()
        if now_s >= self._progress_s:
            self._progress_s = now_s + PROGRESS_EVERY_S
            self.tell({"is": "progress", **self._brief_status()})

    # The group.

    def _feed(self, event: group.Event) -> None:
        """Let the coordinator decide, and do what it says."""
        if self._stopping is not None:
            return
        commands = self._coordinator.handle(event, time.monotonic())
        if not any(isinstance(command, group.Cancel) for command in commands):
            self._complete_change()  # before the next one begins
        for command in commands:
            self._execute(command)
        if (wake_at_s := self._coordinator.wake_at_s) is not None:
            self._loop.alarm("wake", wake_at_s, lambda: self._feed(group.Woke()))
        self._fall_asleep()
        self._look_for_trouble()
        self._requests.settle()

    def _execute(self, command: group.Command) -> None:
        match command:
            case group.Start(worker, slot):
                self._crew.start(worker, slot, joins=bool(self._coordinator.members))
                self.tell({"is": "starting", "worker": worker, "slot": slot})
            case group.Prepare(plan) | group.Regroup(plan):
                if self._crew.store is None:
                    self._held = [command]
                else:
                    self._build(plan, regroup=isinstance(command, group.Regroup))
            case group.Commit(generation, step, to):
                self._on_commit(generation)
                self._crew.send(to, {"do": "commit", "generation": generation, "step": step})
                self._crew.guard(to)
            case group.Cancel(generation, to):
                self._held.clear()
                self._changes.cancel()
                told = {*to, *self._coordinator.members}
                self._crew.send(told, {"do": "cancel", "generation": generation})
            case group.Stop(worker):
                self._crew.stop(worker)
            case _:
                assert_never(command)

    def _build(self, plan: group.Plan, *, regroup: bool) -> None:
        """Have a group built, and note from when on."""
        image: Path | None = None
        if plan.fresh:
            try:
                origin = self._origin or self._saving.origin()
            except TrainingError as error:
                self.fail(error, 1)
                return
            self._origin, image = None, origin.path
            self.tell(
                {"is": "origin", "where": origin.where, "step": origin.step}
                | {"path": image and str(image), "skipped": list(origin.skipped)}
            )
        self._changes.begin(plan, self._command_s, regroup=regroup, slept=self._is_asleep)
        # Leavers build nothing, but must know what it is they will be told to commit to.
        to = {*plan.to, *self._coordinator.members}
        self._crew.build(plan, to, image, regroup=regroup)

    def _on_commit(self, generation: int) -> None:
        if self._changes.commit(generation).fresh:
            self._starts_in_vain += 1
        if self._starts_in_vain > 1 + troubles.RESTARTS_MAX:
            self.fail(troubles.restarted_in_vain(self._job, self._best_step, self._last_trouble), 1)

    def _on_swapped(self, notes: WorkerNotes, message: Message) -> None:
        if message.get("left"):
            notes.has_left, notes.owns = True, 0
            self._crew.expect_exit(notes.number)
        if (owns := self._changes.swapped(notes.number, message)) is not None:
            notes.owns = owns
            notes.figures = Figures()
        self._feed(group.WorkerSwapped(notes.number, message["generation"], message["step"]))

    def _complete_change(self) -> None:
        """Tell of a change once everybody who still lives has made it."""
        if self._coordinator.phase in ("swapping", "broken", "regrouping"):
            return
        event = self._changes.complete({notes.number for notes in self._crew.notes})
        if event is not None and event["to"]:  # a suspension is told once it is durable
            self._is_asleep = False
            self.tell(event)

    def _fall_asleep(self) -> None:
        """Tell that the job is suspended once its state is durable and nobody runs."""
        coordinator = self._coordinator
        is_quiet = coordinator.phase == "steady" and not coordinator.members
        if self._target != 0 or self._is_asleep or coordinator.ending or not is_quiet:
            return
        if self._crew.notes or self._saving.is_busy:
            return
        self._is_asleep = True
        seconds = time.monotonic() - self._command_s
        about = {"step": coordinator.step, "durable": self._saving.saved_step == coordinator.step}
        self.tell({"is": "suspended", **about, "serving_s": seconds})
        self.tell({"is": "progress", **self._brief_status()})

    def _look_for_trouble(self) -> None:
        """Act where the coordinator has given up."""
        coordinator = self._coordinator
        for slot in coordinator.failed_slots - self._given_up:
            self._tell_problem(troubles.slot_given_up(slot, self._last_trouble))
        self._given_up = set(coordinator.failed_slots)
        if self._given_up and not self._crew.notes and not coordinator.ending:
            self.fail(troubles.nobody_left(self._job, self._last_trouble), 1)
        elif coordinator.hopeless and coordinator.phase in ("broken", "regrouping"):
            for member in coordinator.members:  # from the newest image they may do better
                self._crew.kill(member)

    # State.

    def _on_image(self, message: Message) -> None:
        """Save an image that was asked for; others only hand state from worker to worker."""
        self.tell(message)
        if self._captures.is_awaited or self._target == 0:
            self._captures.is_awaited = False
            self._saving.save(Path(message["path"]), self._on_saved)

    def _on_saved(self) -> None:
        if self._is_interrupted and self._stopping is None:
            self._stop(128 + signal.SIGINT)
        self._fall_asleep()
        self._requests.settle()
