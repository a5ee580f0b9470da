"""Leads of elastic jobs in a simulated agent: the production supervisor, without its thread."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from coddl.agent.job_runner import ElasticRunner, JobRun, RunListener
from coddl.agent.reconcile import Addresses
from coddl.core.pool.orders import AssignedSlot
from coddl.core.pool.records import Outcome, Trouble
from coddl.core.pool.spec import JobSpec
from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor.lead_parts import LeadParts
from coddl.runtime.supervisor.slots import JobEnvironment
from coddl.runtime.wire import Message
from coddl.testing.full_system.elastic import ElasticJobs
from coddl.testing.full_system.virtual_loop import VirtualLoop
from coddl.testing.full_system.virtual_time import SimulatedProcess

CODE: Final = "code"  # the folder with the script
SCRIPT: Final = "import coddl\n\ncoddl.prepare()\n"  # what jobs run, as far as it is read


def write_script(jobs: Path) -> None:
    """Make the folder of jobs, with the script that they name."""
    (jobs / CODE).mkdir(parents=True)
    (jobs / CODE / "emulated").write_text(SCRIPT)


class SimulatedEnvironments:
    """Environments of jobs that run that script: each is ready at once."""

    def __init__(self, folder: Path) -> None:
        self.ready: dict[int, JobEnvironment] = {}
        self.failed: dict[int, tuple[Outcome, Trouble]] = {}
        self._folder = folder

    def want(self, specs: Mapping[int, JobSpec], also: Iterable[int]) -> None:
        """Have these environments."""
        self.ready = {job: self._environment(job) for job in (*specs, *also)}

    def _environment(self, job: int) -> JobEnvironment:
        if (found := self.ready.get(job)) is not None:
            return found
        checkpoints = self._folder / f"{job}" / "checkpoints"
        cwd = self._folder / CODE
        return JobEnvironment(python="", cwd=cwd, env={}, folder=checkpoints)

    def tidy(self, job: int, spec: JobSpec, attempt: int, *, forget: bool) -> None:
        """Do nothing: no run reads what a job has left."""


class SupervisedRunner(ElasticRunner):
    """Leads a job with a supervisor that the agent's process calls."""

    def __init__(
        self,
        run: JobRun,
        listener: RunListener,
        jobs: ElasticJobs,
        process: SimulatedProcess,
    ) -> None:
        self._jobs = jobs
        self._virtual_loop = loop = VirtualLoop(
            process, on_error=self._on_error, after_each=self._look
        )
        self._outcome: int | Exception | None = None
        self._is_over = False
        parts = LeadParts(
            loop,
            jobs.world.peers.dialler(run.node, loop),
            lambda job: jobs.world.saved.lead(int(job.id), job.attempt),
        )
        super().__init__(run, listener, parts)

    def start(self, slots: Sequence[AssignedSlot], addresses: Addresses) -> None:
        """Open the supervisor as soon as the process gets to it."""
        self._virtual_loop.post(self._open)
        self.resize(slots, addresses)

    def join(self, timeout_s: float) -> bool:  # noqa: ARG002 - it has no thread
        """Tell whether it has ended."""
        return self._is_over

    def _open(self) -> None:
        self._check()
        self._jobs.note(self.run)
        self._supervisor.open()

    def _hear(self, event: Message) -> None:
        super()._hear(event)
        self._jobs.watch.supervisor_told(self.run, event)

    def _on_error(self, error: Exception) -> None:
        if not isinstance(error, TrainingError):
            self._jobs.watch.supervisor_raised(self.run, error)
        if self._outcome is None:
            self._outcome = error

    def _look(self) -> None:
        """Once the supervisor has come to its end, close it as soon as its workers are gone."""
        if self._is_over:
            return
        if self._outcome is None:
            self._outcome = self._supervisor.job_status.exit_code
        if self._outcome is None:
            return
        if self._supervisor.is_open:
            self._supervisor.workers.dismiss()
            if not self._supervisor.workers.is_dismissed:
                return
        self._is_over = True
        self._supervisor.close()
        outcome = self._supervisor.job_status.exit_code
        is_raised = isinstance(self._outcome, Exception)
        self._conclude(self._outcome if is_raised or outcome is None else outcome)
