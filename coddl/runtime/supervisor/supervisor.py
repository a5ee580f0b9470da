"""Leads one elastic job: its workers from group to group, and its state to disk.

One thread, one loop. Events come from the workers, from the control socket or the agent, and from
the clock; the `Coordinator` decides what they mean for the group, and its commands are carried out
here. Nothing is printed: the host is told what happens, and shows it.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import assert_never

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor import generations as group
from coddl.runtime.supervisor import job_errors, jobdir, local_job
from coddl.runtime.supervisor.changes import Since
from coddl.runtime.supervisor.checkpointing import CaptureTimer, Checkpointing
from coddl.runtime.supervisor.control_socket import ControlSocket
from coddl.runtime.supervisor.due_group import DueGroup
from coddl.runtime.supervisor.exit_policy import ExitPolicy
from coddl.runtime.supervisor.interrupt import Interrupt
from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.job_status import JobStatus
from coddl.runtime.supervisor.lead_parts import LeadParts, machine_parts
from coddl.runtime.supervisor.loop import Loop, SupervisorLoop
from coddl.runtime.supervisor.pool_job import PoolJob
from coddl.runtime.supervisor.progress import ProgressReporter
from coddl.runtime.supervisor.requests import ControlRequests
from coddl.runtime.supervisor.resize_schedule import ResizeSchedule
from coddl.runtime.supervisor.retry_budget import RetryBudget
from coddl.runtime.supervisor.size_limits import SizeLimiter
from coddl.runtime.supervisor.slots import HostAddress, Slot
from coddl.runtime.supervisor.suspension import Suspension
from coddl.runtime.supervisor.trace_events import TraceEvents
from coddl.runtime.supervisor.turns import JobTurns
from coddl.runtime.supervisor.worker_record import WorkerRecord, WorkerSpeed
from coddl.runtime.supervisor.workers import Workers
from coddl.runtime.wire import Message


class Supervisor:
    """Leads one job from its start to its end; `tell` hears of everything, as it happens."""

    workers: Workers
    checkpointing: Checkpointing

    def __init__(
        self,
        job: Job,
        tell: Callable[[Message], None],
        *,
        node: str | None = None,
        adopt: bool = False,
        parts: LeadParts | None = None,
    ) -> None:
        """Without `node` the workers run here, and a control socket takes requests.

        With it an agent of that node leads the job: workers run where `assign` says, on any
        node. `adopt`: first look there for workers of an earlier attempt that are still alive.
        """
        self._job = job
        self._host = tell
        self._parts = parts = parts or machine_parts(Loop())
        self._loop: SupervisorLoop = parts.loop
        self._pool_job = None if node is None else PoolJob(self, parts, job, node, adopt=adopt)
        self._stack = contextlib.ExitStack()  # of what is to be closed
        self._control: ControlSocket | None = None
        self.job_status = JobStatus(job, self._loop.now_s)
        self._coordinator, self._changes = self.job_status.coordinator, self.job_status.changes
        self._slots: dict[int, Slot] = {}  # of the target, by slot
        self._schedule = ResizeSchedule(self)
        self._requests = ControlRequests(self)
        self._due_group = DueGroup(
            self._loop,
            self._build,
            has_store=lambda: self.workers.store is not None,
            # Without a pool, an image that is being saved is also found in memory.
            is_state_coming=lambda: self._pool_job is not None and self.workers.is_saving,
        )
        self.retries = RetryBudget()
        self._exit_policy = ExitPolicy(self, self._loop)
        self.limits = SizeLimiter(self)
        self._interrupt = Interrupt(self, self._loop)
        self.suspension = Suspension(self, self._loop)
        self._progress = ProgressReporter(self, self._loop)
        self._turns = JobTurns(self, self._progress)
        self._given_up: set[int] = set()  # slots
        self.capture_timer = CaptureTimer(
            self._loop, job.checkpoint_every_s, self._ask_image, lambda: self.workers.is_saving
        )
        self.is_open = False

    # Life.

    def run(self) -> int:
        """Run the job to its end; give its exit code. Nothing of it is left running."""
        with contextlib.closing(self):
            self.open()
            while self.job_status.exit_code is None:
                self._loop.turn()
        return self.job_status.exit_code

    def open(self) -> None:
        """Begin to lead; the loop calls from now on, until there is an exit code."""
        job, loop, pool_job, stack = self._job, self._loop, self._pool_job, self._stack
        stack.callback(loop.close)
        if pool_job is None:
            self._control = ControlSocket(job.name, self._requests.take)
            stack.callback(self._control.close)
        stack.callback(self._tell_end)
        self._changes.trace = TraceEvents(job.trace, self._tell_problem) if job.trace else None
        if self._changes.trace is not None:
            stack.callback(self._changes.trace.close)
        if pool_job is None:
            self.checkpointing, host_of = local_job.opened(job, loop, self.tell, stack)
        else:
            self.checkpointing = Checkpointing(self._parts.open_checkpoints(job), None, self.tell)
            host_of = pool_job.host_of
        node = local_job.HERE if pool_job is None else pool_job.node
        self.workers = Workers(
            loop, job, self, lead_node=node, host_of=host_of, hosts_listener=pool_job
        )
        stack.callback(self._close_checkpointing)
        stack.callback(self.workers.close)
        self.is_open = True
        if self._control is not None:
            self.workers.open()
            self.checkpointing.look_ahead()  # while torch is being imported
            self._control.serve(loop)

    def close(self) -> None:
        """End all that still runs, and let go of everything."""
        self._stack.close()

    def interrupt(self) -> None:
        """Stop the job with exit code 130; asked again, at once. For any thread or handler."""
        self._loop.post(self._interrupt.take)

    def assign(self, slots: Sequence[Slot], addresses: Mapping[str, HostAddress]) -> None:
        """Have the job run on these slots; `addresses`: of their nodes and ours. For any thread."""
        assert self._pool_job is not None
        self._loop.post(partial(self._pool_job.assign, slots, addresses))

    def lose(self, nodes: Sequence[str]) -> None:
        """Count workers on nodes as gone, whatever is heard of them. For any thread."""
        assert self._pool_job is not None
        self._loop.post(partial(self._pool_job.lose, nodes))

    def abandon(self) -> None:
        """Stop leading, and leave the workers to another lead. For any thread."""
        assert self._pool_job is not None
        self._loop.post(self._pool_job.on_superseded)

    def retire(self, *, park: bool = False) -> None:
        """Make the state durable, let workers leave or park, end with RETIRED. For any thread."""
        assert self._pool_job is not None
        self._loop.post(partial(self._pool_job.retire, park=park))

    def end_turn(self, *, resident: bool) -> None:
        """Have the only worker wait after its next update; `resident`: on its device.

        For any thread. `turn ended` is told, once there is such a worker and it waits.
        """
        self._loop.post(partial(self._turns.end, resident=resident))

    def begin_turn(self, *, crowded: bool = False) -> None:
        """Have it go on, or not wait at all; `turn begun` is told. For any thread."""
        self._loop.post(partial(self._turns.begin, crowded=crowded))

    def fail(self, error: TrainingError, code: int) -> None:
        """End the job because of an error, which is told once."""
        if self.job_status.stopping is None:
            self.tell({"is": "error", **error.parts()})
            self.stop(code)

    def _tell_problem(self, problem: TrainingError) -> None:
        self.tell({"is": "problem", **problem.parts()})

    def tell(self, event: Message) -> None:
        """Tell the host, and all that watch."""
        self._host(event)
        if self._control is not None:
            self._control.broadcast(event)

    def stop(self, code: int) -> None:
        """End every worker, then the job, with this code."""
        self.job_status.stopping = code
        self.workers.stop_all()
        self._end_if_alone()

    def _end_if_alone(self) -> None:
        """End once no worker is left, if that is what the job was about to do."""
        job_status = self.job_status
        if self.workers.records or job_status.exit_code is not None:
            return
        if job_status.stopping is not None:
            job_status.exit_code = job_status.stopping
        elif self._coordinator.ending or job_status.is_finishing:
            job_status.exit_code = 0 if job_status.has_finished else 1
        else:
            return
        self._requests.settle()

    def _tell_end(self) -> None:
        self._schedule.tell_missed()
        if self.job_status.exit_code is not None:
            about = {"code": self.job_status.exit_code, "kept_step": self.checkpointing.kept_step}
            self.tell({"is": "ended", **about, **self.status()})

    def _close_checkpointing(self) -> None:
        job_status, succeeded = self.job_status, self.job_status.exit_code == 0
        self.checkpointing.close(lose=succeeded)
        job_status.unsaved = self.checkpointing.unsaved
        job_status.exit_code = job_status.code_of_end
        if succeeded and self._pool_job is None:  # a host removes them once the end is safe
            jobdir.finish(self._job.folder, self._job.script, keep=self._job.keep_checkpoints)

    # What may be asked.

    @property
    def blocked_reason(self) -> str | None:
        """Tell why the job can't come to its target, if it can't."""
        return self.retries.last_error if self._given_up or self._coordinator.hopeless else None

    @property
    def is_hosted(self) -> bool:
        return self._pool_job is not None

    @property
    def is_saving(self) -> bool:
        """Tell whether state is on its way to the disk. For any thread."""
        return self.is_open and self.workers.is_saving

    @property
    def is_unsaved(self) -> bool:
        """Tell whether it was to leave and could not be saved, so it trains on. For any thread."""
        return self.suspension.is_refused

    def status(self) -> Message:
        """Give all there is to know about the job now."""
        return self.job_status.full(self.workers, self.checkpointing.saved_step)

    def set_workers(self, workers: int, since: Since = "decision") -> None:
        """Set the number of workers on this machine; 0: they save and leave."""
        gpus, taken = self.workers.gpus or 0, self.workers.slot_numbers(self._coordinator.members)
        self.set_target(local_job.local_slots(self._job, workers, gpus, taken), since)

    def set_target(self, slots: Sequence[Slot], since: Since = "command") -> None:
        """Set the slots of the job; none: save and leave. A rigid job stays where it is."""
        if self.job_status.rigid is not None and self._slots:
            return
        job_status, before = self.job_status, set(self._slots)
        self._slots = {slot.number: slot for slot in slots}
        self.workers.set_slots(slots)
        self.suspension.remember_slots(slots)
        job_status.target = len(slots)
        job_status.awake_target = len(slots) or job_status.awake_target
        if slots:
            job_status.has_slept = job_status.has_slept or job_status.is_asleep
            job_status.is_asleep = False
        is_news = before != set(self._slots) or self._given_up  # a host may well repeat itself
        if is_news and (since == "command" or self._changes.count):  # else it is the start
            job_status.due = job_status.due_now(since)
        self.feed(group.TargetSet(tuple(self._slots)))

    # Events from the workers.

    def on_warm(self) -> None:
        job_status = self.job_status
        if self._pool_job is None and job_status.target is None and job_status.stopping is None:
            self.set_workers(self._job.first_size(self.workers.gpus or 0))

    def on_store(self) -> None:
        self._due_group.look()

    def on_store_lost(self) -> None:
        for member in self._coordinator.members:
            self._break(member, self._changes.generation)

    def on_word(self, record: WorkerRecord, message: Message) -> None:
        if self.job_status.stopping is not None:
            return
        worker = record.number
        match message["is"]:
            case "arrived":
                self._on_arrived(record, message)
            case "ready":
                self.feed(group.WorkerReady(worker, message["generation"]))
            case "unready":
                self.retries.last_error = f"worker {worker} could not join: {message['because']}"
                self.tell({**message, "worker": worker})
                self.feed(group.WorkerUnready(worker, message["generation"]))
            case "swapped":
                self._on_swapped(record, message)
            case "stepped":
                self._on_stepped(record, message)
            case "broken":
                self.tell({**message, "worker": worker})
                self._break(worker, message["generation"])
            case "image":
                self._on_image(record, message)
            case "metrics":
                self.job_status.hear_metrics(message)
            case "profile":
                self.tell(self.job_status.profiled(message))
            case "ended":
                self.limits.on_ended(message)
                self.feed(group.WorkerStepped(worker, message["step"], None))
                self.feed(group.LoopEnded(worker))
            case "lost" | "problem":
                self.tell({**message, "worker": worker})
            case "turn ended" | "turn begun":
                self._turns.hear(record, message)
            case "rigid":
                self.limits.on_rigid(message)
            case "out-of-memory" if not self._turns.crowd_out(record):
                self.limits.on_out_of_memory(record, message["samples"])
            case "unsaved":
                self.capture_timer.is_awaited = False
                self.suspension.expect(record, message)
                self.on_saved(message)
            case "rejected":
                error = TrainingError(message["what"], message["because"], message["try"])
                self._exit_policy.blame(record, error, 2)
            case "spans" if self._changes.trace is not None:
                self._changes.trace.spans(worker, message["spans"])
            case _:
                pass  # `alive`, and what a newer worker may have to say

    def on_gone(self, record: WorkerRecord, code: int, because: str | None) -> None:
        if not self._turns.on_gone(record, code, because):
            self._exit_policy.take(record, code, because)
            self._end_if_alone()

    def _on_arrived(self, record: WorkerRecord, message: Message) -> None:
        workers_max, job_status = message["workers_max"], self.job_status
        error = job_errors.mismatch(job_status.about, message, self._job.argv[0])
        if error := job_errors.half_prepared(self._job) if job_status.is_finishing else error:
            self._exit_policy.blame(record, error, 1)
            return
        if not job_status.about:
            self.tell_about(message)
            self.limits.on_prepared()
            try:
                self._job.check_sizes(workers_max)
            except TrainingError as error:
                self.fail(error, 2)
            if self._pool_job is None and job_status.target and job_status.target > workers_max:
                self.set_workers(workers_max)
        if self._changes.trace is not None:
            self._changes.trace.begin_worker(record, self._loop.now_s())
        self.feed(group.WorkerArrived(record.number, message["parts"], workers_max))

    def tell_about(self, arrived: Message) -> None:
        """Tell what the script is, as the first worker to arrive said."""
        self.job_status.about = arrived
        self.tell({**arrived, "is": "prepared"})

    def _on_stepped(self, record: WorkerRecord, message: Message) -> None:
        step = message["step"]
        self.job_status.step_timer.stepped(step, self._loop.now_s())
        self.retries.stepped(step)
        self.limits.on_stepped(message)
        self.capture_timer.plan()
        self.feed(group.WorkerStepped(record.number, step, message.get("pass_s")))
        self._schedule.stepped(step)
        self._progress.stepped()

    # The group.

    def feed(self, event: group.Event) -> None:
        """Let the coordinator decide, and do what it says."""
        if self.job_status.stopping is not None:
            return
        commands = self._coordinator.handle(event, self._loop.now_s())
        if not any(isinstance(command, group.Cancel) for command in commands):
            self._complete_change()  # before the next one begins
        for command in commands:
            self._execute(command)
        if (wake_at_s := self._coordinator.wake_at_s) is not None:
            self._loop.alarm("wake", wake_at_s, lambda: self.feed(group.TimerFired()))
        self.suspension.fall_asleep()
        self._turns.settle()
        self._check_given_up()
        self._requests.settle()

    def _execute(self, command: group.Command) -> None:
        match command:
            case group.StartWorker(worker, slot):
                self.workers.start(worker, self._slots[slot], joins=bool(self._coordinator.members))
                self.tell({"is": "starting", "worker": worker, "slot": slot})
            case group.Prepare() | group.Regroup():
                self._due_group.order(command)
            case group.Commit(generation, step, to):
                self._on_commit(generation)
                self.workers.send(to, {"do": "commit", "generation": generation, "step": step})
                self.workers.guard(to)
            case group.Cancel(generation, to):
                self._due_group.cancel()
                self._changes.cancel()
                told = {*to, *self._coordinator.members}
                self.workers.send(told, {"do": "cancel", "generation": generation})
            case group.StopWorker(worker):
                self.workers.stop(worker)
            case _:
                assert_never(command)

    def _build(self, command: group.Prepare | group.Regroup) -> None:
        """Have a group built, and note from when on."""
        plan, regroup = command.plan, isinstance(command, group.Regroup)
        image: Path | None = None
        if plan.fresh:
            try:
                image = self.checkpointing.first_image()
            except TrainingError as error:
                if isinstance(error.__cause__, OSError):
                    raise  # another time, or another node, may do
                self.fail(error, 1)
                return
        due, slept = self.job_status.due, self.job_status.has_slept
        self._changes.begin(plan, due, regroup=regroup, slept=slept)
        # Leavers build nothing, but must know what it is they will be told to commit to.
        to = {*plan.to, *self._coordinator.members}
        self.workers.build(plan, to, image, regroup=regroup, park=self.job_status.parks)

    def _on_commit(self, generation: int) -> None:
        retries = self.retries
        if self._changes.commit(generation).fresh and not retries.allows_start():
            last = retries.last_error
            self.fail(job_errors.restarted_in_vain(self._job, retries.best_step, last), 1)

    def _on_swapped(self, record: WorkerRecord, message: Message) -> None:
        if message.get("left"):
            self.suspension.on_left(record, message.get("parked"))
        if (owns := self._changes.swapped(record.number, message)) is not None:
            record.owns = owns
            record.speed = WorkerSpeed()
        self.feed(group.WorkerSwapped(record.number, message["generation"], message["step"]))

    def _complete_change(self) -> None:
        """Tell of a change once all living workers have made it."""
        if self._coordinator.phase in ("swapping", "broken", "regrouping"):
            return
        event = self._changes.complete({record.number: record for record in self.workers.records})
        if event is not None and event["to"]:  # a suspension is told once it is durable
            self.job_status.has_slept = False
            self.job_status.step_timer.restart()
            self.tell(event)
            self._progress.began()

    def _check_given_up(self) -> None:
        """Act where the coordinator has given up."""
        coordinator = self._coordinator
        for slot in coordinator.failed_slots - self._given_up:
            self._tell_problem(job_errors.slot_given_up(slot, self.retries.last_error))
            if self._pool_job is not None:
                self._pool_job.assign_later()
        self._given_up = set(coordinator.failed_slots)
        is_alone = not self.workers.records and not coordinator.ending
        if self._given_up and (is_alone or not self.job_status.needs_loop):
            self.fail(job_errors.nobody_left(self._job, self.retries.last_error), 1)
        elif coordinator.hopeless and coordinator.phase in ("broken", "regrouping"):
            for member in coordinator.members:  # from the newest image they may do better
                self.workers.kill(member)

    def _break(self, worker: int, generation: int) -> None:
        """Take in that a group can't go on; all of its workers may be alive."""
        was_broken = self._coordinator.phase == "broken"
        self.feed(group.GroupBroken(worker, generation))
        if self._coordinator.phase == "broken" and not was_broken:
            self.job_status.due = self.job_status.due_now("failure")

    # State.

    def _on_image(self, record: WorkerRecord, message: Message) -> None:
        """Save an image that was asked for; others only hand state from worker to worker."""
        self.tell(message)
        if self.capture_timer.is_awaited or self.job_status.target == 0 or message.get("keep"):
            self.capture_timer.is_awaited = False
            self.suspension.expect(record, message)
            self.workers.save(record.node, message["path"])

    def on_saved(self, word: Message) -> None:
        self.suspension.on_saved(word)
        self._due_group.look()
        self._turns.on_saved()
        self._interrupt.on_saved()
        self.suspension.fall_asleep()
        self._requests.settle()

    def _ask_image(self) -> None:
        if not self._turns.capture():
            self.workers.send(self._coordinator.members[:1], {"do": "capture"})

    def capture(self) -> None:
        """Have an image taken and saved, if the job trains on its target slots."""
        if self.job_status.is_at_target and not self.workers.is_saving:
            self.capture_timer.take()
