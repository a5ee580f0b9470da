"""Leads one elastic job: its workers from group to group, and its state to disk.

One thread, one loop. Words come from the workers (`crew`), from whoever asks or hosts us, and from
the clock; the `Coordinator` decides what they mean for the group, and its commands are carried out
here. Nothing is printed: the host is told what happens, and shows it.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import assert_never

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor import generations as group
from coddl.runtime.supervisor import jobdir, troubles, workshop
from coddl.runtime.supervisor.adoption import Adoption
from coddl.runtime.supervisor.changes import Due, Since
from coddl.runtime.supervisor.checkpoints import Checkpoints
from coddl.runtime.supervisor.control import Control
from coddl.runtime.supervisor.crew import Crew
from coddl.runtime.supervisor.endings import Endings
from coddl.runtime.supervisor.hosting import Hosting
from coddl.runtime.supervisor.interrupt import INTERRUPTED, Interrupt
from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.ledger import Figures, WorkerNotes
from coddl.runtime.supervisor.limits import Limits
from coddl.runtime.supervisor.loop import Loop
from coddl.runtime.supervisor.patience import Patience
from coddl.runtime.supervisor.progress import Progress
from coddl.runtime.supervisor.requests import Requests
from coddl.runtime.supervisor.saving import Captures, Saving
from coddl.runtime.supervisor.schedule import Schedule
from coddl.runtime.supervisor.seats import Post, Seat
from coddl.runtime.supervisor.standing import UNSAVED, Standing
from coddl.runtime.supervisor.suspension import Suspension
from coddl.runtime.supervisor.traceevents import TraceEvents
from coddl.runtime.wire import Message


class Supervisor:
    """Leads one job from its start to its end; `tell` hears of everything, as it happens."""

    crew: Crew
    saving: Saving

    def __init__(
        self,
        job: Job,
        tell: Callable[[Message], None],
        *,
        node: str | None = None,
        adopt: bool = False,
    ) -> None:
        """Without `node` the workers sit here, and a control socket takes requests.

        With it an agent of that node hosts us: workers sit where `aim` says, at stations of any
        node. `adopt`: first look there for workers of an earlier attempt that are still alive.
        """
        self._job = job
        self._host = tell
        self._loop = Loop()
        self._hosting = None if node is None else Hosting(self, self._loop, job, node, adopt=adopt)
        self._control: Control | None = None
        self.standing = Standing(job)
        self._coordinator, self._changes = self.standing.coordinator, self.standing.changes
        self._seats: dict[int, Seat] = {}  # of the target, by slot
        self._schedule = Schedule(self)
        self._requests = Requests(self)
        self._held: list[group.Command] = []  # until there is a store to meet in
        self.patience = Patience()
        self._endings = Endings(self, self._loop)
        self.limits = Limits(self)
        self._interrupt = Interrupt(self, self._loop)
        self._suspension = Suspension(self, self._loop)
        self._progress = Progress(self, self._loop)
        self._given_up: set[int] = set()  # slots
        self._is_open = False

    # Life.

    def run(self) -> int:
        """Run the job to its end; give its exit code. Nothing of it is left running."""
        job, standing = self._job, self.standing
        with contextlib.ExitStack() as stack:
            stack.callback(self._loop.close)
            if self._hosting is None:
                self._control = Control(job.name, self._requests.take)
                stack.callback(self._control.close)
            stack.callback(self._tell_end)
            self._trace = TraceEvents(job.trace, self._tell_problem) if job.trace else None
            if self._trace is not None:
                stack.callback(self._trace.close)
                self._changes.trace = self._trace
            self._open(stack)
            ask = lambda: self.crew.send(self._coordinator.members[:1], {"do": "capture"})  # noqa: E731
            self.captures = Captures(
                self._loop, job.checkpoint_every_s, ask, lambda: self.crew.is_saving
            )
            if self._control is not None:
                self.crew.open()
                self.saving.look_ahead()  # while torch is being imported
                self._control.serve(self._loop)
            while standing.exit_code is None:
                self._loop.turn()
        return standing.exit_code

    def _open(self, stack: contextlib.ExitStack) -> None:
        """Open what the job is kept in, here or wherever stations are."""
        job, loop, hosting = self._job, self._loop, self._hosting
        if hosting is None:
            self.saving, reach = workshop.opened(job, loop, self.tell, stack)
            self.crew = Crew(loop, job, self, home=workshop.HERE, reach=reach)
        else:
            self.saving = Saving(Checkpoints(job.folder), None, self.tell)
            jobdir.lead(job.folder, job.script, job.attempt)
            node, reach = hosting.node, hosting.reach
            self.crew = Crew(loop, job, self, home=node, reach=reach, greeter=hosting)
        stack.callback(self._close_saving)
        stack.callback(self.crew.close)
        self._is_open = True

    def interrupt(self) -> None:
        """Stop the job with exit code 130; asked again, at once. For any thread or handler."""
        self._loop.post(self._interrupt.take)

    def aim(self, seats: Sequence[Seat], posts: Mapping[str, Post]) -> None:
        """Have the job run on these seats; `posts` are of their nodes and ours. For any thread."""
        assert self._hosting is not None
        self._loop.post(partial(self._hosting.aim, seats, posts))

    def lose(self, nodes: Sequence[str]) -> None:
        """Count workers on nodes as gone, whatever is heard of them. For any thread."""
        assert self._hosting is not None
        self._loop.post(partial(self._hosting.lose, nodes))

    def abandon(self) -> None:
        """Stop leading, and leave the workers to another lead. For any thread."""
        assert self._hosting is not None
        self._loop.post(self._hosting.on_superseded)

    def retire(self) -> None:
        """Make the state durable, let the workers leave, end with RETIRED. For any thread."""
        assert self._hosting is not None
        self._loop.post(self._hosting.retire)

    def fail(self, error: TrainingError, code: int) -> None:
        """End the job because of an error, which is told once."""
        if self.standing.stopping is None:
            self.tell({"is": "error", **error.parts()})
            self.stop(code)

    def _tell_problem(self, problem: TrainingError) -> None:
        self.tell({"is": "problem", **problem.parts()})

    def tell(self, event: Message) -> None:
        """Tell the host, and everybody who watches."""
        self._host(event)
        if self._control is not None:
            self._control.broadcast(event)

    def stop(self, code: int) -> None:
        """End every worker, then the job, with this code."""
        self.standing.stopping = code
        self.crew.stop_all()
        self._end_if_alone()

    def _end_if_alone(self) -> None:
        """End once nobody is left, if that is what the job was about to do."""
        standing = self.standing
        if self.crew.notes or standing.exit_code is not None:
            return
        if standing.stopping is not None:
            standing.exit_code = standing.stopping
        elif self._coordinator.ending or standing.is_finishing:
            standing.exit_code = 0 if standing.has_finished else 1
        else:
            return
        self._requests.settle()

    def _tell_end(self) -> None:
        self._schedule.tell_missed()
        if self.standing.exit_code is not None:
            about = {"code": self.standing.exit_code, "kept_step": self.saving.kept_step}
            self.tell({"is": "ended", **about, **self.status()})

    def _close_saving(self) -> None:
        standing, succeeded = self.standing, self.standing.exit_code == 0
        self.saving.close(lose=succeeded)
        standing.unsaved = self.saving.unsaved
        if standing.unsaved is not None and standing.exit_code == INTERRUPTED:
            standing.exit_code = UNSAVED
        if succeeded and self._hosting is None:  # a host removes them once the end is safe
            jobdir.finish(self._job.folder, self._job.script, keep=self._job.keep_checkpoints)

    # What may be asked.

    @property
    def trouble(self) -> str | None:
        """Tell why the job can't come to its target, if it can't."""
        return self.patience.last_trouble if self._given_up or self._coordinator.hopeless else None

    @property
    def is_hosted(self) -> bool:
        """Tell whether an agent decides where the workers are."""
        return self._hosting is not None

    @property
    def is_saving(self) -> bool:
        """Tell whether state is on its way to the disk. For any thread."""
        return self._is_open and self.crew.is_saving

    @property
    def is_unsaved(self) -> bool:
        """Tell whether it was to leave and could not be saved, so it trains on. For any thread."""
        return self._suspension.is_refused

    def status(self) -> Message:
        """Give all there is to know about the job now."""
        return self.standing.full(self.crew, self.saving.saved_step)

    def set_workers(self, workers: int, since: Since = "decision") -> None:
        """Set how many workers there shall be on this machine; none: they save and leave."""
        gpus, taken = self.crew.gpus or 0, self.crew.slots_of(self._coordinator.members)
        self.set_target(workshop.seats_here(self._job, workers, gpus, taken), since)

    def set_target(self, seats: Sequence[Seat], since: Since = "command") -> None:
        """Set where workers sit; nowhere: they save and leave. A rigid job stays where it is."""
        if self.standing.rigid is not None and self._seats:
            return
        standing, before = self.standing, set(self._seats)
        self._seats = {seat.slot: seat for seat in seats}
        self.crew.seat(seats)
        self._suspension.sits(seats)
        standing.target = len(seats)
        standing.awake_target = len(seats) or standing.awake_target
        if seats:
            standing.has_slept = standing.has_slept or standing.is_asleep
            standing.is_asleep = False
        is_news = before != set(self._seats) or self._given_up  # a host may well repeat itself
        if is_news and (since == "command" or self._changes.count):  # else it is the start
            standing.due = Due.now(since)
        self.feed(group.TargetSet(tuple(self._seats)))

    def take_over(self, adoption: Adoption) -> None:
        """Go on with whoever an earlier lead has left."""
        for notes in adoption.notes:
            self.crew.adopt(notes)
            self.patience.stepped(notes.step)
        for number in adoption.useless():
            self.crew.stop(number)
        self.standing.has_finished = adoption.has_finished
        if adoption.has_finished and not adoption.notes:
            self.stop(0)
            return
        if adoption.about is not None:
            self._tell_about(adoption.about)
        self.feed(adoption.found())
        for notes in adoption.notes:
            if notes.has_ended:
                self.feed(group.LoopEnded(notes.number))

    # Words from the crew.

    def on_warm(self) -> None:
        standing = self.standing
        if self._hosting is None and standing.target is None and standing.stopping is None:
            self.set_workers(self._job.first_size(self.crew.gpus or 0))

    def on_store(self) -> None:
        held, self._held = self._held, []
        for command in held:
            self._execute(command)

    def on_store_lost(self) -> None:
        for member in self._coordinator.members:
            self._break(member, self._changes.generation)

    def on_word(self, notes: WorkerNotes, message: Message) -> None:
        if self.standing.stopping is not None:
            return
        worker = notes.number
        match message["is"]:
            case "arrived":
                self._on_arrived(notes, message)
            case "ready":
                self.feed(group.WorkerReady(worker, message["generation"]))
            case "unready":
                self.patience.last_trouble = f"worker {worker} could not join: {message['because']}"
                self.tell({**message, "worker": worker})
                self.feed(group.WorkerUnready(worker, message["generation"]))
            case "swapped":
                self._on_swapped(notes, message)
            case "stepped":
                self._on_stepped(notes, message)
            case "broken":
                self.tell({**message, "worker": worker})
                self._break(worker, message["generation"])
            case "prepared":
                notes.has_prepared = True
            case "image":
                self._on_image(notes, message)
            case "metrics":
                self.standing.metrics |= message["values"]
            case "ended":
                notes.has_ended = True
                self.limits.on_ended(message)
                self.feed(group.WorkerStepped(worker, message["step"], None))
                self.feed(group.LoopEnded(worker))
            case "lost" | "problem":
                self.tell({**message, "worker": worker})
            case "rigid":
                self.limits.on_rigid(message)
            case "out-of-memory":
                self.limits.on_out_of_memory(notes, message["samples"])
            case "unsaved":
                self.captures.is_awaited = False
                self._suspension.expect(worker, message)
                self.on_saved(message)
            case "rejected":
                error = TrainingError(message["what"], message["because"], message["try"])
                self._endings.blame(notes, error, 2)
            case "spans" if self._trace is not None:
                self._trace.spans(worker, message["spans"])
            case _:
                pass  # `alive`, and what a newer worker may have to say

    def on_gone(self, notes: WorkerNotes, code: int, because: str | None) -> None:
        self._endings.take(notes, code, because)
        self._end_if_alone()

    def _on_arrived(self, notes: WorkerNotes, message: Message) -> None:
        workers_max, standing = message["workers_max"], self.standing
        error = troubles.mismatch(standing.about, message, self._job.argv[0])
        if error := troubles.half_prepared(self._job) if standing.is_finishing else error:
            self._endings.blame(notes, error, 1)
            return
        notes.has_arrived = True
        if not standing.about:
            self._tell_about(message)
            self.limits.on_prepared()
            try:
                self._job.check_sizes(workers_max)
            except TrainingError as error:
                self.fail(error, 2)
            if self._hosting is None and standing.target and standing.target > workers_max:
                self.set_workers(workers_max)
        if self._trace is not None:
            self._trace.begin_worker(notes.number, notes.slot, notes.started_s)
        self.feed(group.WorkerArrived(notes.number, message["parts"], workers_max))

    def _tell_about(self, arrived: Message) -> None:
        self.standing.about = arrived
        self.tell({**arrived, "is": "prepared"})

    def _on_stepped(self, notes: WorkerNotes, message: Message) -> None:
        notes.step = message["step"]
        notes.figures.add(message)
        self.standing.pace.stepped(notes.step, time.monotonic())
        self.patience.stepped(notes.step)
        self.limits.on_stepped(message)
        self.captures.plan()
        self.feed(group.WorkerStepped(notes.number, notes.step, message.get("pass_s")))
        self._schedule.stepped(notes.step)
        self._progress.stepped()

    # The group.

    def feed(self, event: group.Event) -> None:
        """Let the coordinator decide, and do what it says."""
        if self.standing.stopping is not None:
            return
        commands = self._coordinator.handle(event, time.monotonic())
        if not any(isinstance(command, group.Cancel) for command in commands):
            self._complete_change()  # before the next one begins
        for command in commands:
            self._execute(command)
        if (wake_at_s := self._coordinator.wake_at_s) is not None:
            self._loop.alarm("wake", wake_at_s, lambda: self.feed(group.Woke()))
        self._suspension.fall_asleep()
        self._look_for_trouble()
        self._requests.settle()

    def _execute(self, command: group.Command) -> None:
        match command:
            case group.Start(worker, slot):
                joins = bool(self._coordinator.members)
                self.crew.start(worker, self._seats[slot], joins=joins)
                self.tell({"is": "starting", "worker": worker, "slot": slot})
            case group.Prepare(plan) | group.Regroup(plan):
                if self.crew.store is None:
                    self._held = [command]
                else:
                    self._build(plan, regroup=isinstance(command, group.Regroup))
            case group.Commit(generation, step, to):
                self._on_commit(generation)
                self.crew.send(to, {"do": "commit", "generation": generation, "step": step})
                self.crew.guard(to)
            case group.Cancel(generation, to):
                self._held.clear()
                self._changes.cancel()
                told = {*to, *self._coordinator.members}
                self.crew.send(told, {"do": "cancel", "generation": generation})
            case group.Stop(worker):
                self.crew.stop(worker)
            case _:
                assert_never(command)

    def _build(self, plan: group.Plan, *, regroup: bool) -> None:
        """Have a group built, and note from when on."""
        image: Path | None = None
        if plan.fresh:
            try:
                image = self.saving.first_image()
            except TrainingError as error:
                self.fail(error, 1)
                return
        due, slept = self.standing.due, self.standing.has_slept
        self._changes.begin(plan, due, regroup=regroup, slept=slept)
        # Leavers build nothing, but must know what it is they will be told to commit to.
        to = {*plan.to, *self._coordinator.members}
        self.crew.build(plan, to, image, regroup=regroup)

    def _on_commit(self, generation: int) -> None:
        patience = self.patience
        if self._changes.commit(generation).fresh and not patience.allows_start():
            last = patience.last_trouble
            self.fail(troubles.restarted_in_vain(self._job, patience.best_step, last), 1)

    def _on_swapped(self, notes: WorkerNotes, message: Message) -> None:
        if message.get("left"):
            notes.has_left, notes.owns = True, 0
            self.crew.expect_exit(notes.number)
        if (owns := self._changes.swapped(notes.number, message)) is not None:
            notes.owns = owns
            notes.figures = Figures()
        self.feed(group.WorkerSwapped(notes.number, message["generation"], message["step"]))

    def _complete_change(self) -> None:
        """Tell of a change once everybody who still lives has made it."""
        if self._coordinator.phase in ("swapping", "broken", "regrouping"):
            return
        event = self._changes.complete({notes.number: notes for notes in self.crew.notes})
        if event is not None and event["to"]:  # a suspension is told once it is durable
            self.standing.has_slept = False
            self.standing.pace.restart()
            self.tell(event)
            self._progress.began()

    def _look_for_trouble(self) -> None:
        """Act where the coordinator has given up."""
        coordinator = self._coordinator
        for slot in coordinator.failed_slots - self._given_up:
            self._tell_problem(troubles.slot_given_up(slot, self.patience.last_trouble))
            if self._hosting is not None:
                self._hosting.aim_later()
        self._given_up = set(coordinator.failed_slots)
        is_alone = not self.crew.notes and not coordinator.ending
        if self._given_up and (is_alone or not self.standing.needs_loop):
            self.fail(troubles.nobody_left(self._job, self.patience.last_trouble), 1)
        elif coordinator.hopeless and coordinator.phase in ("broken", "regrouping"):
            for member in coordinator.members:  # from the newest image they may do better
                self.crew.kill(member)

    def _break(self, worker: int, generation: int) -> None:
        """Take in that a group can't go on; all of its workers may be alive."""
        was_broken = self._coordinator.phase == "broken"
        self.feed(group.GroupBroken(worker, generation))
        if self._coordinator.phase == "broken" and not was_broken:
            self.standing.due = Due.now("failure")

    # State.

    def _on_image(self, notes: WorkerNotes, message: Message) -> None:
        """Save an image that was asked for; others only hand state from worker to worker."""
        self.tell(message)
        if self.captures.is_awaited or self.standing.target == 0 or message.get("keep"):
            self.captures.is_awaited = False
            self._suspension.expect(notes.number, message)
            self.crew.save(notes.seat.node, message["path"])

    def on_saved(self, word: Message) -> None:
        self._suspension.on_saved(word)
        self._interrupt.on_saved()
        self._suspension.fall_asleep()
        self._requests.settle()

    def capture(self) -> None:
        """Have an image taken and saved, if the job trains where it shall."""
        if self.standing.is_at_target and not self.crew.is_saving:
            self.captures.take()
