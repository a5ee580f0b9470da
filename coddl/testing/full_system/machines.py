"""The machines of a simulation: the one of the server, and the nodes. They outlive processes."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from coddl.agent.emulated.node import EmulatedNode, EmulatedNodeParts, look, tell
from coddl.agent.job_runner import JobRun, JobRunner, RunListener
from coddl.agent.server_line import ServerRefusal
from coddl.agent.slot_table import AgentBridge, WorkerHosts
from coddl.api.jobsfolder import JobsFolder
from coddl.core.pool.records import Device
from coddl.runtime.supervisor.job_hosts import JobHosts
from coddl.runtime.supervisor.slots import HostAddress
from coddl.server.agent_sessions import AgentSession
from coddl.server.journal import Journal
from coddl.server.retention import Retention
from coddl.server.server import Server
from coddl.server.store import StoredRecord
from coddl.testing.full_system.disk import Disk, ServerDisk
from coddl.testing.full_system.elastic import ElasticJobs
from coddl.testing.full_system.invariants import Invariants
from coddl.testing.full_system.leads import SimulatedEnvironments, SupervisedRunner
from coddl.testing.full_system.network import Network, ServerEnd, SimulatedDialer
from coddl.testing.full_system.plan import PlannedNode, SimulationPlan
from coddl.testing.full_system.story import Story
from coddl.testing.full_system.upkeep import SimulatedUpkeep
from coddl.testing.full_system.virtual_loop import VirtualLoop
from coddl.testing.full_system.virtual_time import SimulatedProcess, Skew, VirtualTime
from coddl.testing.full_system.workers import SimulatedRunner, WorkerCluster

TELL_EVERY_S: Final = 2.0  # how jobs are doing
JOBS: Final = "jobs"  # the folder of all jobs
RESTART_S: Final = 3.0  # that a supervisor takes to start an agent again
LEAVE_S: Final = 30.0  # that an agent which is to end may take


class SimulatedServer(Server):
    """The server, which tells of bugs that it has survived."""

    on_bug: Callable[[Exception], None] = lambda _error: None

    def report_bug(self, error: Exception) -> None:
        """Put a bug's story into the log; the pool goes on."""
        super().report_bug(error)
        self.on_bug(error)


@dataclass(frozen=True, slots=True)
class Makers:
    """What makes the parts of a simulation in which tests plant mistakes."""

    runner: type[SimulatedRunner] = SimulatedRunner
    lead: type[SupervisedRunner] = SupervisedRunner
    node: type[EmulatedNode] = EmulatedNode
    job_hosts: type[JobHosts] = JobHosts
    server: type[SimulatedServer] = SimulatedServer
    journal: type[Journal] = Journal


@dataclass(frozen=True, slots=True)
class SimulatedWorld:
    """What all machines share."""

    plan: SimulationPlan
    time: VirtualTime
    network: Network
    elastic: ElasticJobs
    cluster: WorkerCluster
    invariants: Invariants
    story: Story
    folder: Path
    makers: Makers

    def chance(self, of: str) -> random.Random:
        """Give what one part draws from: the same, whatever the others draw."""
        return random.Random(f"{self.plan.seed}:{of}")


class ServerMachine:
    """The machine with the journal, on which a process of the server runs or does not."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.disk = Disk(f"pool-{world.plan.seed}")
        self.server: SimulatedServer | None = None
        self.process: SimulatedProcess | None = None
        self.buried: list[SimulatedProcess] = []
        self._world = world
        self._chance = world.chance("server")
        draw = world.chance("retention")
        self._retention = Retention(
            jobs=draw.choice([3, 1000]), events_s=draw.choice([0.0, 30.0, 1e9])
        )
        self._starts = 0

    @property
    def is_up(self) -> bool:
        """Tell whether a process of the server is alive, running or not."""
        return self.process is not None and self.process.is_alive

    def start(self) -> None:
        """Start a process of the server, unless there is one."""
        world = self._world
        if self.is_up:
            return
        self._starts += 1
        # A clock of people is set now and then, while the machine is down too.
        skew = Skew(wall_s=self._chance.uniform(-3.0, 3.0), steady_s=5e5)
        name = f"server#{self._starts}"
        process = SimulatedProcess(name, world.time, skew, self._on_error)
        process.on_death(partial(self._on_death, process))
        process.thread_s = world.plan.decision_s
        self.process = process
        self.buried.append(process)
        world.story.tell(f"{name} starts")
        process.within(partial(self._start_in, process))

    def _start_in(self, process: SimulatedProcess) -> None:
        world, plan = self._world, self._world.plan
        store = ServerDisk(self.disk, process, self._on_commit, plan.decision_s)
        journal = world.makers.journal(store, snapshot_every=plan.snapshot_every)
        server = world.makers.server(
            journal, world.folder, process, stability=plan.stability, lease_s=plan.lease_s
        )
        server.upkeep = SimulatedUpkeep(server, self._retention)
        server.on_bug = self._on_bug
        server.on_failure = lambda: self._on_error(process, server.failure or Exception())
        self.server = server
        if self._starts == 1:
            server.follow(plan.policy, plan.placement)
        else:
            world.invariants.restored(server.pool)
        world.network.listen(process, lambda end: _session(server, end))
        process.spawn(_serve(server))

    def kill(self, because: str) -> None:
        """Kill the process."""
        if self.process is not None and self.process.is_alive:
            self._world.story.tell(f"the server is killed: {because}")
            self.process.kill()

    def _on_death(self, process: SimulatedProcess) -> None:
        self._world.story.tell(f"{process.name} is dead")
        self._world.network.end_of(process)
        self.server = None

    def _on_commit(self, lines: Sequence[StoredRecord]) -> None:
        assert self.server is not None
        history = self.disk.store.history
        self._world.invariants.committed(lines, self.server.pool, history)

    def _on_bug(self, error: Exception) -> None:
        self._world.invariants.fail("the server has no bugs", repr(error))

    def _on_error(self, process: SimulatedProcess, error: BaseException) -> None:
        if process.is_alive and not isinstance(error, asyncio.CancelledError):
            self._world.invariants.fail("the server has no bugs", repr(error))


async def _serve(server: Server) -> None:
    async with server.running():
        await asyncio.Event().wait()


async def _session(server: Server, end: ServerEnd) -> None:
    await AgentSession(server, end, server.sessions).run()


class NodeMachine:
    """A machine with slots, on which an agent runs or does not."""

    def __init__(
        self, world: SimulatedWorld, plan: PlannedNode, folder_marks: dict[str, str]
    ) -> None:
        self.plan = plan
        self.process: SimulatedProcess | None = None
        self.node: EmulatedNode | None = None
        self.buried: list[tuple[SimulatedProcess, EmulatedNode]] = []
        self._world = world
        self._chance = world.chance(f"node {plan.name}")
        self._marks = folder_marks
        self._boots = 0
        self._is_silent = False  # when it dies: the machine does, too
        self._fence_at_s = float("inf")  # by the clock of the world

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def is_up(self) -> bool:
        """Tell whether an agent is alive, running or not."""
        return self.process is not None and self.process.is_alive

    def start(self) -> None:
        """Start an agent, unless there is one."""
        if self.is_up:
            return
        world, self._boots = self._world, self._boots + 1
        self._fence_at_s = float("inf")
        name = f"agent {self.name}#{self._boots}"
        process = SimulatedProcess(name, world.time, self.plan.skew, self._on_error)
        process.on_death(partial(self._on_death, process))
        self.process = process
        world.story.tell(f"{name} starts")
        process.within(partial(self._start_in, process))

    def _start_in(self, process: SimulatedProcess) -> None:
        world, boot = self._world, f"{self.name}-{self._boots}"
        self._marks[self.name] = boot
        parts = EmulatedNodeParts(
            name=self.name,
            boot=boot,
            devices=tuple(Device(index, self.plan.kind) for index in range(self.plan.slots)),
            jobs=JobsFolder("/jobs", "shared", "", 0, dict(self._marks)),
            folder=world.folder / boot,
            dialer=SimulatedDialer(world.network, self.name, process),
            on_pool=lambda _pool: None,
            hosts_on=partial(self._hosts, process),
            runner_of=partial(self._runner, process),
            peer_token=boot,
            environments=lambda: SimulatedEnvironments(world.folder / JOBS),
            fence=self._set_fence,
            clock=process,
            chance=self._chance.random,
        )
        node = self.node = world.makers.node(parts)
        self.buried.append((process, node))
        process.spawn(self._serve(process, node))
        process.spawn(tell([node], TELL_EVERY_S))
        process.spawn(look([node]))

    def _hosts(self, process: SimulatedProcess, node: str, bridge: AgentBridge) -> WorkerHosts:
        hosts = self._world.cluster.join(node, process, bridge)
        address = HostAddress(node, node, 1, f"{self.name}-{self._boots}")
        make = self._world.makers.job_hosts
        hosts.job_hosts = self._world.elastic.job_hosts(
            make, VirtualLoop(process), address, bridge, hosts.on_holding
        )
        return hosts

    def _runner(self, process: SimulatedProcess, run: JobRun, listener: RunListener) -> JobRunner:
        world = self._world
        if run.spec.is_elastic and not run.precheck:
            return world.makers.lead(run, listener, world.elastic, process)
        return world.makers.runner(
            run, listener, world.cluster, process=process, save_s=world.plan.save_s
        )

    async def _serve(self, process: SimulatedProcess, node: EmulatedNode) -> None:
        """Do what an agent does; one that is refused, or done, ends, and is started again."""
        tasks = [asyncio.ensure_future(work) for work in node.works()]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done() and (error := task.exception()) is not None:
                    if not isinstance(error, ServerRefusal):
                        raise error
                    self._world.story.tell(f"{process.name} was refused: {error.because}")
        finally:
            for task in tasks:
                task.cancel()
        self.kill("it has ended")
        self._world.time.call_later(RESTART_S, self.start)

    def end(self) -> None:
        """Tell the agent to end in order, as by SIGTERM; it is killed if that takes long."""
        if self.is_up and self.process is not None and self.node is not None:
            process = self.process
            self._world.story.tell(f"{process.name} is told to end")
            process.spawn(self.node.leave())
            self._world.time.call_later(LEAVE_S, self._end_late, process)

    def _end_late(self, process: SimulatedProcess) -> None:
        if process.is_alive:
            self.kill("it has not ended in time")
            self._world.time.call_later(RESTART_S, self.start)

    def kill(self, because: str) -> None:
        """Kill the agent; its workers die with it."""
        if self.is_up and self.process is not None:
            self._world.story.tell(f"{self.process.name} is killed: {because}")
            self.process.kill()

    def lose(self) -> None:
        """Switch the machine off without notice."""
        if self.is_up and self.process is not None:
            self._world.story.tell(f"node {self.name} is switched off")
            self._is_silent = True
            self.process.kill()

    def notice(self, within_s: float) -> None:
        """Have the agent learn that the machine goes away."""
        if self.is_up and self.process is not None and self.node is not None:
            self._world.story.tell(f"node {self.name} is to leave within {within_s:.1f} s")
            leaves_at_s = self.process.steady_s() + within_s
            self.process.within(partial(self.node.outbox.notice, leaves_at_s))

    def _on_death(self, process: SimulatedProcess) -> None:
        quietly, self._is_silent = self._is_silent, False
        self._world.network.end_of(process, quietly=quietly)
        self._world.elastic.world.peers.end_of(process, quietly=quietly)
        self._world.cluster.lose_node(self.name, "its agent died")
        self.node = None

    # The fence: another process of this machine, which ends workers when the lease is over.

    def _set_fence(self, steady_s: float) -> None:
        assert self.process is not None
        self._fence_at_s = self.process.world_s(steady_s)
        self._world.time.call_at(self._fence_at_s, self._look_at_fence)

    def _look_at_fence(self) -> None:
        if self._world.time.now_s >= self._fence_at_s:
            self._world.cluster.lose_node(self.name, "the fence ended it")

    def _on_error(self, process: SimulatedProcess, error: BaseException) -> None:
        if not isinstance(error, asyncio.CancelledError):
            sentence = f"{process.name}: {error!r}"
            self._world.invariants.fail("agents have no defects", sentence)
