"""Emulated nodes of one process: what the agent of each is given in place of processes and files.

A training may have workers on several nodes. All of them are in this process, so the agent that
leads a job only has to be told that a slot is empty by the node that the slot is on.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from coddl.agent.emulated.training import EmulatedTraining, Workload
from coddl.agent.job_runner import JobRun
from coddl.agent.slot_table import AgentBridge
from coddl.api.emulation import EmulatedJob
from coddl.core.errors import UserError
from coddl.core.pool.records import Outcome, Trouble
from coddl.core.pool.spec import JobSpec
from coddl.core.reconfigure import Reconfigure
from coddl.core.speed.table import Speeds
from coddl.runtime.supervisor.slots import JobEnvironment, SlotProcess

NO_PROCESS: Final = JobEnvironment(python="", cwd=Path(), env={}, folder=Path())


class Timer(Protocol):
    """Something that happens later, unless it is cancelled."""

    def cancel(self) -> None: ...


class PoolTime(Protocol):
    """The time of the pool."""

    def now_s(self) -> float:
        """Seconds since 1970, as the pool counts them."""
        ...

    def call_at(self, at_s: float, action: Callable[[], None]) -> Timer:
        """Have something happen at a time."""
        ...


class EmulatedHosts:
    """The workers of a node: a table of who is on which slot."""

    is_alive = True

    def __init__(self, bridge: AgentBridge, end_job: Callable[[int], None]) -> None:
        self._bridge = bridge
        self._end_job = end_job
        self._held: dict[int, SlotProcess] = {}

    def occupy(self, job: int, attempt: int, slots: Iterable[int]) -> None:
        """Have a job's workers on exactly these slots of the node."""
        before, name = self._held, str(job)
        process = SlotProcess(name, attempt, None)
        others = {slot: at for slot, at in before.items() if at.job != name}
        self._held = others | dict.fromkeys(slots, process)
        if self._held != before:
            self.look_again()

    def look_again(self) -> None:
        """Tell who is here."""
        self._bridge.on_holding(self._held, {})

    def kill(self, job: str) -> None:
        """End a job's workers."""
        self._end_job(int(job))

    def kill_slot(self, slot: int) -> None:
        """End the job that has a slot."""
        if (at := self._held.get(slot)) is not None:
            self._end_job(int(at.job))


class EmulatedEnvironments:
    """Environments of jobs that need none: each is ready at once."""

    def __init__(self) -> None:
        self.ready: dict[int, JobEnvironment] = {}
        self.failed: dict[int, tuple[Outcome, Trouble]] = {}

    def want(self, specs: Mapping[int, JobSpec], also: Iterable[int]) -> None:
        """Have these environments."""
        self.ready = dict.fromkeys((*specs, *also), NO_PROCESS)

    def tidy(self, job: int, spec: JobSpec, attempt: int, *, forget: bool) -> None:
        """Do nothing: a job leaves nothing behind."""


class EmulatedCluster:
    """The trainings of all nodes of the process, and the slots that they are on."""

    def __init__(self, time: PoolTime, speeds: Speeds, costs: Reconfigure) -> None:
        self.time = time
        self._speeds = speeds
        self._costs = costs
        self._hosts: dict[str, EmulatedHosts] = {}
        self._trainings: dict[int, EmulatedTraining] = {}
        self._done: dict[int, float] = {}  # iterations, of jobs that have saved them
        self._node_of: dict[int, str] = {}  # by slot

    def hosts_on(self, node: str, bridge: AgentBridge) -> EmulatedHosts:
        """Make the worker hosts of a node."""
        self._hosts[node] = EmulatedHosts(bridge, self.end)
        return self._hosts[node]

    def training_for(self, run: JobRun) -> EmulatedTraining:
        """Give the training of a run: the one whose workers it adopts, or a new one.

        Raises UserError if the job does not say what to emulate.
        """
        workload = self.workload_of(run)
        training = self._trainings.get(run.job)
        if training is None or not run.adopt:
            self.end(run.job)
            training = EmulatedTraining(workload, self._costs, self._done.get(run.job, 0.0))
            self._trainings[run.job] = training
        return training

    def note_slots(self, nodes: Mapping[int, str]) -> None:
        """Learn on which nodes slots are."""
        self._node_of |= nodes

    def occupy(self, run: JobRun) -> None:
        """Have the workers of a run on the slots of its training, and nowhere else."""
        training = self._trainings.get(run.job)
        slots = training.slots if training is not None and not training.is_finished else ()
        for node, hosts in self._hosts.items():
            here = [slot for slot in slots if self._node_of[slot] == node]
            hosts.occupy(run.job, run.attempt, here)

    def end(self, job: int) -> None:
        """End a training; what it has saved is kept, and the rest is lost."""
        if self._trainings.pop(job, None) is not None:
            for hosts in self._hosts.values():
                hosts.occupy(job, 0, ())

    def forget(self, job: int) -> None:
        """Drop what is kept of a job that is over."""
        self._done.pop(job, None)

    def save(self, job: int, done: float) -> None:
        """Keep what a job has done for its next run."""
        self._done[job] = done

    def progress(self) -> dict[int, float]:
        """Tell how many iterations each job has done that is not over."""
        now_s = self.time.now_s()
        return self._done | {
            job: training.done_at(now_s) for job, training in self._trainings.items()
        }

    def workload_of(self, run: JobRun) -> Workload:
        """Tell what a run trains; raises UserError if its job does not say what to emulate."""
        job, names = EmulatedJob.of(run.spec.launch.argv), self._speeds.names
        if job.model not in names:
            because = f'there are no speeds of model "{job.model}"'
            raise UserError("the job can't be emulated", because, f"one of {', '.join(names)}")
        row = self._speeds.step_s[names.index(job.model)].tolist()
        steps = {gpus: step_s for gpus, step_s in enumerate(row) if gpus}
        assert not math.isinf(row[-1]), "a curve ends with a number"
        return Workload(job.iterations, steps)
