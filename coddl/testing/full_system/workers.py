"""The workers of all jobs, as they really are: on which slot of which node, of which training.

Trainings are those of emulated pools, but for what a pool in one process cannot show: workers die
with the agent of their node, or when it ends them; a node lets no worker onto a slot that its
own orders do not give to that run; a state takes time to be saved, and may not be saved at all.
"""

import asyncio
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from coddl.agent.emulated.nodes import EmulatedCluster, Timer
from coddl.agent.emulated.runner import EmulatedRunner
from coddl.agent.emulated.training import EmulatedTraining
from coddl.agent.job_runner import JobRun, RunListener
from coddl.agent.reconcile import Addresses
from coddl.agent.slot_table import AgentBridge
from coddl.api.wire import RunProgress
from coddl.core.pool.orders import AssignedSlot
from coddl.core.pool.records import Outcome, RunUnsaved, Trouble
from coddl.core.reconfigure import Reconfigure
from coddl.core.speed.table import Speeds
from coddl.runtime.supervisor.job_hosts import JobHosts
from coddl.runtime.supervisor.slots import Parked, SlotProcess
from coddl.testing.full_system.states import SavedStates
from coddl.testing.full_system.trainer import Trainer
from coddl.testing.full_system.virtual_time import EPOCH_S, SimulatedProcess, VirtualTime

AGAIN_S: Final = 1.0  # between attempts to start a worker where one has died, or to save
DISK_FULL: Final = Trouble("its state can't be saved", "the disk is full", "room")


class WorkersWatch(Protocol):
    """Hears what becomes of workers."""

    def started(self, slot: int, job: int, attempt: int, found: "Worker | None", node: str) -> None:
        """A worker has started on a slot; `found` was there."""

    def ended(self, slot: int, worker: "Worker", because: str) -> None:
        """A worker is gone."""

    def began(self, run: JobRun, done: float, left: Sequence[int]) -> None:
        """A training begins anew, from what was saved; `left` are slots of an earlier one."""

    def said_saved(self, job: int, step: int) -> None:
        """It was told that this step is saved."""


class WorldTime:
    """The time of trainings: that of the world, in which no clock is wrong."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time

    def now_s(self) -> float:
        """Seconds since 1970."""
        return EPOCH_S + self._time.now_s

    def call_at(self, at_s: float, action: Callable[[], None]) -> Timer:
        """Have the process that runs now do something later."""
        loop = asyncio.get_running_loop()
        return loop.call_later(max(0.0, at_s - self.now_s()), action)


@dataclass(slots=True, eq=False)
class Worker:
    """A worker on a slot."""

    job: int
    attempt: int
    training: EmulatedTraining | None  # of a restartable job
    node: str
    trainer: "Trainer | None" = None  # of an elastic one


class SimulatedHosts:
    """The workers of a node, as its agent sees them: gone with it."""

    is_alive = True
    job_hosts: JobHosts  # of elastic jobs

    def __init__(
        self, cluster: "WorkerCluster", node: str, process: SimulatedProcess, bridge: AgentBridge
    ) -> None:
        self._cluster, self._node = cluster, node
        self.process, self.bridge = process, bridge

    def look_again(self) -> None:
        """See who may be here by now, and tell who is."""
        self.job_hosts.look_again()

    def on_holding(self, held: Mapping[int, SlotProcess], parked: Parked) -> None:
        """Tell who is here: the workers of elastic jobs, and those of commands."""
        commands = {
            slot: SlotProcess(str(each.job), each.attempt, None)
            for slot, each in self._commands.items()
        }
        self.bridge.on_holding({**commands, **held}, parked)
        self._cluster.look_again()

    @property
    def _commands(self) -> "dict[int, Worker]":
        """The workers of restartable jobs here."""
        workers = self._cluster.workers.items()
        return {s: w for s, w in workers if w.node == self._node and w.trainer is None}

    def kill(self, job: str) -> None:
        """End the workers of a job."""
        here = [slot for slot, worker in self._commands.items() if worker.job == int(job)]
        self._cluster.lose(here, "its agent ended it")
        self.job_hosts.kill(job)

    def kill_slot(self, slot: int) -> None:
        """End the worker on a slot."""
        if slot in self._commands:
            self._cluster.lose([slot], "it was no longer to be on that slot")
        self.job_hosts.kill_slot(slot)

    def admits(self, run: JobRun, slot: int) -> bool:
        """Tell whether a run may start a worker on an empty slot here."""
        if not self.process.runs:
            return False
        owner = self.bridge.table.owners.get(slot)  # a command's agent has looked before
        return owner == (run.job, run.attempt) and self.bridge.is_leased()


class WorkerCluster(EmulatedCluster):
    """All workers, and what has been saved of each job."""

    def __init__(
        self,
        time: VirtualTime,
        speeds: Speeds,
        costs: Reconfigure,
        watch: WorkersWatch,
        workers: "dict[int, Worker]",
    ) -> None:
        """`workers`, by slot, are changed by this cluster alone."""
        super().__init__(WorldTime(time), speeds, costs)
        self.workers = workers
        self.states = SavedStates()  # of elastic jobs
        self._watch = watch
        self._agents: dict[str, SimulatedHosts] = {}
        self._leads: dict[EmulatedTraining, SimulatedRunner] = {}
        self._waiting: dict[SimulatedRunner, None] = {}

    # Nodes.

    def join(self, node: str, process: SimulatedProcess, bridge: AgentBridge) -> SimulatedHosts:
        """Make the worker hosts of a new agent."""
        self._agents[node] = SimulatedHosts(self, node, process, bridge)
        return self._agents[node]

    def lose_node(self, node: str, because: str) -> None:
        """Have all workers of a node end, and what its agent led be without a lead."""
        agent = self._agents.get(node)
        for training, runner in list(self._leads.items()):
            if agent is not None and runner.process is agent.process and not agent.process.is_alive:
                self.leave_alone(training)
        self.lose([slot for slot, w in self.workers.items() if w.node == node], because)

    def lose(self, slots: Iterable[int], because: str) -> None:
        """Have the workers on slots end; their trainings go on with those that are left."""
        hit: dict[EmulatedTraining, None] = {}
        nodes: dict[str, None] = {}
        for slot in slots:
            worker = self.workers.get(slot)
            if worker is not None and worker.trainer is not None:
                worker.trainer.die(-signal.SIGKILL, because)
            elif worker is not None and worker.training is not None:
                del self.workers[slot]
                hit[worker.training] = nodes[worker.node] = None
                self._watch.ended(slot, worker, because)
        for training in hit:
            training.leave(self.time.now_s())
            if (lead := self._leads.get(training)) is not None:
                lead.post_loss()
            elif not self.slots_of(training):
                self._drop(training)
        self._tell(nodes)

    def _tell(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            agent = self._agents[node]
            if agent.process.is_alive:
                agent.process.within(agent.look_again)

    # Trainings.

    def lead(self, run: JobRun, runner: "SimulatedRunner") -> EmulatedTraining:
        """Give a run a training that begins from what was saved: commands are not adopted."""
        assert not run.adopt
        training = EmulatedTraining(self.workload_of(run), self._costs, self.saved(run.job))
        self._trainings[run.job] = training
        left = [slot for slot, worker in self.workers.items() if worker.job == run.job]
        self._watch.began(run, self.saved(run.job), left)
        self._leads[training] = runner
        return training

    def leave_alone(self, training: EmulatedTraining) -> None:
        """Have the lead of a training be gone: its workers wait for another one."""
        self._leads.pop(training, None)
        training.leave(self.time.now_s())
        if not self.slots_of(training):
            self._drop(training)

    def has_lead(self, training: EmulatedTraining, runner: "SimulatedRunner") -> bool:
        """Tell whether a runner leads a training."""
        return self._leads.get(training) is runner

    def finish(self, training: EmulatedTraining) -> None:
        """End the workers of a training whose lead has no more use for them."""
        self._leads.pop(training, None)
        self.settle(training, (), "its run ended")
        self._drop(training)

    def _drop(self, training: EmulatedTraining) -> None:
        for job in [job for job, each in self._trainings.items() if each is training]:
            del self._trainings[job]

    def slots_of(self, training: EmulatedTraining) -> list[int]:
        """Name the slots on which a training has workers."""
        return [slot for slot, worker in self.workers.items() if worker.training is training]

    def saved(self, job: int) -> float:
        """Tell how many iterations of a job are saved."""
        return self._done.get(job, 0.0)

    def try_save(self, job: int, done: float) -> bool:
        """Save a job's state, if there is room; tell whether it is saved."""
        if not self.states.is_full:
            self.save(job, done)
        return not self.states.is_full

    # Slots.

    def admits(self, run: JobRun, training: EmulatedTraining, seat: AssignedSlot) -> bool:
        """Tell whether a run has a worker on a slot, or may start one there."""
        worker, agent = self.workers.get(seat.slot), self._agents.get(seat.node)
        if worker is not None and worker.training is training:
            return True
        if agent is None or not agent.admits(run, seat.slot):
            return False
        if worker is not None and worker.job == run.job and worker.attempt < run.attempt:
            self.lose([seat.slot], "a newer run has its slot, and does not adopt it")
        return seat.slot not in self.workers

    def start(self, run: JobRun, training: EmulatedTraining, seats: Iterable[AssignedSlot]) -> None:
        """Have workers of a training on these slots too."""
        nodes: dict[str, None] = {}
        for seat in seats:
            found = self.workers.get(seat.slot)
            if found is None or found.training is not training:
                self._watch.started(seat.slot, run.job, run.attempt, found, seat.node)
                self.workers[seat.slot] = Worker(run.job, run.attempt, training, seat.node)
                nodes[seat.node] = None
        self._tell(nodes)

    def settle(self, training: EmulatedTraining, keep: Sequence[int], because: str) -> None:
        """Have the workers of a training leave all slots but some."""
        nodes: dict[str, None] = {}
        for slot in self.slots_of(training):
            if slot not in keep:
                worker = self.workers.pop(slot)
                nodes[worker.node] = None
                self._watch.ended(slot, worker, because)
        self._tell(nodes)

    def wait(self, runner: "SimulatedRunner") -> None:
        """Have a runner look again when slots may have become free, or its own."""
        self._waiting[runner] = None

    def look_again(self) -> None:
        """Have those that wait for slots look again."""
        waiting, self._waiting = self._waiting, {}
        for runner in waiting:
            runner.post_look()

    def told_saved(self, job: int, step: int) -> None:
        """Note that it was told that a step is saved."""
        self._watch.said_saved(job, step)

    # As the runner of an emulated pool uses it.

    def occupy(self, run: JobRun) -> None:
        """Do nothing: a runner settles its workers itself."""

    def end(self, job: int) -> None:
        """Do nothing: as above."""


class SimulatedRunner(EmulatedRunner):
    """Leads a training whose workers may die, and whose state may not be saved at once."""

    def __init__(
        self,
        run: JobRun,
        listener: RunListener,
        cluster: WorkerCluster,
        process: SimulatedProcess,
        save_s: float,
    ) -> None:
        super().__init__(run, listener, cluster)
        self.process = process
        self._workers = cluster
        self._save_s = save_s
        self._seats: tuple[AssignedSlot, ...] = ()  # where it is to run
        self._placed: tuple[int, ...] = ()  # slots that its training was told last
        self._is_waiting = False
        self._is_leaving = False
        self._is_unsaved = False
        self._saved_s = cluster.time.now_s()

    # What may be asked of it.

    def _take_training(self) -> EmulatedTraining:
        return self._workers.lead(self.run, self)

    def resize(self, slots: Sequence[AssignedSlot], addresses: Addresses) -> None:  # noqa: ARG002 - slots name their nodes
        """Have it run on exactly these slots, as soon as they are empty and its own."""
        self._seats = tuple(slots)
        self._look()
        self._move()

    def suspend(self, reason: str, *, park: bool = False) -> None:  # noqa: ARG002 - none can be
        """Save its state, then end it."""
        if self._training is None:
            return
        self._listener.on_line(self.run, "coddl", f"stopping: {reason}")
        if not self._is_leaving:
            self._is_leaving = True
            self._later(self._save_s, self._save_and_leave)

    def force(self, *, at_all_costs: bool) -> bool:
        """End it, unless its state is not saved yet."""
        if self._training is not None and not at_all_costs and self._is_leaving:
            return False
        self._leave("retired")
        return True

    def release(self) -> None:
        """Leave its workers to another lead."""
        if self._training is not None and self._workers.has_lead(self._training, self):
            self._look()
        if self._training is not None and self._workers.has_lead(self._training, self):
            self._workers.leave_alone(self._training)
        super().release()

    @property
    def is_unsaved(self) -> bool:
        """Tell whether it is to leave and can't save its state."""
        return self._is_unsaved

    @property
    def progress(self) -> RunProgress | None:
        """How it is doing; now and then its state is saved."""
        told, now_s = super().progress, self._cluster.time.now_s()
        if told is None or self._training is None:
            return told
        if now_s - self._saved_s < self.run.spec.launch.checkpoint_every_s:
            return told
        if not self._save():
            return told
        self._saved_s = now_s
        step = int(self._workers.saved(self.run.job))
        self._workers.told_saved(self.run.job, step)
        return msgspec.structs.replace(told, saved_step=step)

    # What happens.

    def post_loss(self) -> None:
        """Hear, in its own process, that workers of it have died."""
        self.process.loop.call_soon(self._on_loss)

    def post_look(self) -> None:
        """Look, in its own process, whether it may have what it waits for."""
        self.process.loop.call_soon(self._move)

    def _on_loss(self) -> None:
        training = self._training
        if training is None or not self._workers.has_lead(training, self):
            return
        left = self._workers.slots_of(training)
        if not left:
            self._end("lost", Trouble("its workers died", "all of them", "nothing"))
            return
        self._placed = tuple(left)
        training.assign(self._placed, self._cluster.time.now_s())
        self._look()
        self._later(AGAIN_S, self._move)

    def _move(self) -> None:
        """Go where it is to be, as far as that can be now."""
        training = self._training
        if training is None or self._is_leaving or not self._seats:
            return
        slots = tuple(seat.slot for seat in self._seats)
        if set(slots) == set(self._placed) == set(self._workers.slots_of(training)):
            return
        if not all(self._workers.admits(self.run, training, seat) for seat in self._seats):
            self._workers.wait(self)
            if not self._is_waiting:
                self._is_waiting = True
                self._later(AGAIN_S, self._move_again)
            return
        self._workers.start(self.run, training, self._seats)
        self._placed = slots
        training.assign(slots, self._cluster.time.now_s())
        self._look()

    def _move_again(self) -> None:
        self._is_waiting = False
        self._move()

    def _look(self) -> float:
        training = self._training
        if training is not None and not self._workers.has_lead(training, self):
            self._forget_training()  # another run has its workers by now
            return self._cluster.time.now_s()
        now_s = super()._look()
        if self._training is not None and training is not None and training.reserved:
            self._workers.settle(training, training.reserved, "its run left the slot")
        return now_s

    def _save(self) -> bool:
        """Save what is done; tell whether it is saved."""
        training = self._training
        assert training is not None
        return self._workers.try_save(self.run.job, training.done_at(self._cluster.time.now_s()))

    def _save_and_leave(self) -> None:
        self._look()
        if self._training is None:
            return
        if self._save():
            self._leave("retired")
            return
        if not self._is_unsaved:
            self._is_unsaved = True
            step = int(self._training.done_at(self._cluster.time.now_s()))
            run = self.run
            self._listener.on_fact(run, RunUnsaved(run.job, run.attempt, step, DISK_FULL))
        self._later(AGAIN_S, self._save_and_leave)

    def _leave(self, outcome: Outcome, trouble: Trouble | None = None) -> None:
        now_s = self._look()
        if self._training is None:
            return
        is_saved = self._save()
        self._training.leave(now_s)
        if is_saved and outcome == "retired":
            self._workers.told_saved(self.run.job, int(self._training.done_at(now_s)))
        self._end(outcome, trouble)

    def _end(self, outcome: Outcome, trouble: Trouble | None = None) -> None:
        training = self._training
        if training is not None and self._workers.has_lead(training, self):
            self._workers.finish(training)
        super()._end(outcome, trouble)

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self._cluster.time.call_at(self._cluster.time.now_s() + delay_s, action)
