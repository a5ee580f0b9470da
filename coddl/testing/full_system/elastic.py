"""Elastic jobs of a simulation: their workloads, their workers and the job hosts of these."""

from collections.abc import Callable, Mapping
from functools import partial

from coddl.agent.job_runner import JobRun
from coddl.agent.slot_table import AgentBridge
from coddl.core.reconfigure import Reconfigure
from coddl.runtime.supervisor.hosted_workers import HostedListener, OpenedWorkers
from coddl.runtime.supervisor.job_hosts import JobHosts
from coddl.runtime.supervisor.slots import HostAddress, JobEnvironment, Parked, SlotProcess
from coddl.testing.full_system.hosted import SimulatedWorkers, SimulatedWriter
from coddl.testing.full_system.peer_lines import PeerEnd
from coddl.testing.full_system.states import SimulatedCheckpoints
from coddl.testing.full_system.trainer import Trainer, TrainerWorkload, TrainingWorld
from coddl.testing.full_system.training_invariants import TrainingInvariants
from coddl.testing.full_system.virtual_loop import VirtualLoop
from coddl.testing.full_system.workers import Worker, WorkerCluster


class ElasticJobs:
    """All elastic jobs; their workers are entered among those of the cluster."""

    def __init__(
        self,
        world: TrainingWorld,
        cluster: WorkerCluster,
        watch: TrainingInvariants,
        costs: Reconfigure,
        save_s: float,
    ) -> None:
        """`save_s`: what saving an image takes."""
        self.world, self.watch = world, watch
        self._cluster, self._costs, self._save_s = cluster, costs, save_s
        self._workloads: dict[int, TrainerWorkload] = {}

    def note(self, run: JobRun) -> None:
        """Learn what a run trains; raises UserError if its job does not say."""
        costs, workload = self._costs, self._cluster.workload_of(run)
        self._workloads[run.job] = TrainerWorkload(
            run.job,
            workload.steps,
            workload.step_on,
            arrive_s=costs.prepare_s or costs.pause_s,
            pause_s=costs.pause_s if costs.mode == "concurrent" else 0.0,
        )

    def job_hosts(
        self,
        make: type[JobHosts],
        loop: VirtualLoop,
        address: HostAddress,
        bridge: AgentBridge,
        on_holding: Callable[[Mapping[int, SlotProcess], Parked], None],
    ) -> JobHosts:
        """Make the job hosts of an agent, and have them reached at its address."""

        def opened(job: str, _: JobEnvironment, listener: HostedListener) -> OpenedWorkers:
            return self._open(loop, address.node, job, listener, lambda: _is_led(job_hosts, job))

        job_hosts = make(loop, address.token, bridge, opened, on_holding=on_holding)
        self.world.peers.listen(address.node, loop, job_hosts.accept)
        return job_hosts

    def _open(
        self,
        loop: VirtualLoop,
        node: str,
        job: str,
        listener: HostedListener,
        is_led: Callable[[], bool],
    ) -> OpenedWorkers:
        make = partial(self._start, int(job))
        workers = SimulatedWorkers(loop, node, listener, make, is_led)
        workers.writer = SimulatedWriter(
            loop,
            self._save_s,
            lambda: SimulatedCheckpoints(
                self.world.saved, int(job), workers.attempt, workers.images
            ),
        )
        return OpenedWorkers(workers, workers.writer, None)

    def _start(self, job: int, workers: SimulatedWorkers, number: int, slot: int) -> Trainer:
        """Start a worker on a slot."""
        cluster, attempt = self._cluster, workers.attempt
        self.watch.started(slot, job, attempt, cluster.workers.get(slot), workers.node)
        workload = self._workloads[job]
        trainer = Trainer(self.world, workload, workers, number, slot, on_death=self._on_death)
        cluster.workers[slot] = Worker(job, attempt, None, workers.node, trainer)
        self.watch.trainers[trainer] = None
        return trainer

    def _on_death(self, trainer: Trainer, because: str) -> None:
        worker = self._cluster.workers.get(trainer.slot)
        if worker is not None and worker.trainer is trainer:
            del self._cluster.workers[trainer.slot]
            self.watch.ended(trainer.slot, worker, because)
        self.watch.trainers.pop(trainer, None)


def _is_led(job_hosts: JobHosts, job: str) -> bool:
    """Tell whether the workers of a job have a lead, and neither end knows that it is gone."""
    end = job_hosts.lead_of(job)
    return isinstance(end, PeerEnd) and end.is_open and end.peer.is_open
