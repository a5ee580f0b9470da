"""A whole pool in virtual time: the server, its agents, and all that goes wrong, by one seed.

Server, control loop, journal, sessions and agents are those of production. Simulated are the time,
the lines, the disk, and the processes of jobs. A run has a time of trouble; then all is mended, and
every job must end.
"""

import logging
import random
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import structlog

from coddl.core.reconfigure import reconfigure_of
from coddl.core.speed.table import Speeds, speeds_of
from coddl.testing.full_system.elastic import ElasticJobs
from coddl.testing.full_system.faults import FaultInjector
from coddl.testing.full_system.invariants import Broken, Invariants
from coddl.testing.full_system.leads import write_script
from coddl.testing.full_system.machines import (
    JOBS,
    Makers,
    NodeMachine,
    ServerMachine,
    SimulatedWorld,
)
from coddl.testing.full_system.network import Network
from coddl.testing.full_system.peer_lines import PeerNetwork
from coddl.testing.full_system.plan import SimulationPlan
from coddl.testing.full_system.story import Story
from coddl.testing.full_system.trainer import TrainingWorld
from coddl.testing.full_system.training_invariants import TrainingInvariants
from coddl.testing.full_system.users import Users
from coddl.testing.full_system.virtual_time import VirtualTime
from coddl.testing.full_system.workers import Worker, WorkerCluster

QUIET_MAX_S: Final = 1_500.0  # after the last fault, within which every job must end
REST_S: Final = 40.0  # after the last job, within which every slot must be given back
MEMORY: Final = Path("/dev/shm")  # a folder in memory, where there is one
SILENT: Final = structlog.make_filtering_bound_logger(logging.CRITICAL)  # below that: at no cost


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run."""

    plan: SimulationPlan
    broken: Broken | None
    story: str
    ended_s: float  # virtual
    records: int
    steps: int  # callbacks
    met: Counter[tuple[str, str]] = field(default_factory=Counter)  # faults and phases


def run(plan: SimulationPlan, makers: Makers | None = None) -> Outcome:
    """Run a plan; `makers` are what tests plant mistakes with."""
    logs = structlog.get_config()
    structlog.configure(processors=[_drop], wrapper_class=SILENT)
    where = MEMORY if MEMORY.is_dir() else None
    try:
        with tempfile.TemporaryDirectory(prefix="coddl-full-system-", dir=where) as folder:
            return _Simulation(plan, makers or Makers(), Path(folder)).run()
    finally:
        structlog.configure(**logs)


def _drop(_logger: object, _method: str, _event: object) -> str:
    """Have nothing logged: the story tells all that can be told of a run."""
    raise structlog.DropEvent


class _Simulation:
    """One run."""

    def __init__(self, plan: SimulationPlan, makers: Makers, folder: Path) -> None:
        time = VirtualTime()
        story = Story(time)
        workers: dict[int, Worker] = {}
        invariants = Invariants(story, workers)
        costs = reconfigure_of(plan.reconfigure)
        cluster = WorkerCluster(time, _speeds(), costs, invariants, workers)
        peers = PeerNetwork(time, random.Random(f"{plan.seed}:peers"))
        chance = random.Random(f"{plan.seed}:trainings")
        watch = TrainingInvariants(invariants, cluster.states)
        trainings = TrainingWorld(time, peers, chance, watch, cluster.states)
        write_script(folder / JOBS)
        self._plan = plan
        self._world = SimulatedWorld(
            plan=plan,
            time=time,
            network=Network(time, random.Random(f"{plan.seed}:network")),
            elastic=ElasticJobs(trainings, cluster, watch, costs, plan.save_s),
            cluster=cluster,
            invariants=invariants,
            story=story,
            folder=folder,
            makers=makers,
        )
        self._server = ServerMachine(self._world)
        marks: dict[str, str] = {}
        self._nodes = {each.name: NodeMachine(self._world, each, marks) for each in plan.nodes}
        self._users = Users(self._world, self._server)
        self._faults = FaultInjector(self._world, self._server, self._nodes)

    def run(self) -> Outcome:
        """Let all happen; then tidy up."""
        world, plan = self._world, self._plan
        try:
            self._happen()
        except Exception as error:  # of the simulation, or of a process that could not start
            world.invariants.fail("nothing raises", repr(error))
        outcome = Outcome(
            plan=plan,
            broken=world.invariants.broken,
            story=world.story.text,
            ended_s=world.time.now_s,
            records=world.invariants.records,
            steps=world.time.steps,
            met=self._faults.met,
        )
        self._tidy()
        return outcome

    def _happen(self) -> None:
        """Have a time of trouble, then a quiet one."""
        world, plan = self._world, self._plan
        world.story.tell(f"seed {plan.seed}: policy {plan.policy}, lease {plan.lease_s:g} s")
        self._server.start()
        for node in plan.nodes:
            world.time.call_at(node.joins_s, self._nodes[node.name].start)
        self._users.begin()
        self._faults.begin(plan.faults)
        world.time.run(plan.trouble_s, self._is_broken)
        if not self._is_broken():
            self._be_quiet()

    def _be_quiet(self) -> None:
        """Mend all, and wait until all is over."""
        world = self._world
        world.story.tell("all faults are over")
        self._faults.mend()
        until_s = world.time.now_s + QUIET_MAX_S
        while world.time.now_s < until_s and not self._is_broken() and not self._is_over():
            self._users.free_all()
            world.time.run(min(until_s, world.time.now_s + 10.0), self._is_settled)
        if not self._is_broken():
            world.time.run(world.time.now_s + REST_S, self._is_empty)
        if not self._is_broken():
            world.invariants.all_is_over(world.time.now_s - self._plan.trouble_s)

    def _is_broken(self) -> bool:
        return self._world.invariants.broken is not None

    def _is_over(self) -> bool:
        return self._users.has_asked_all and not self._world.invariants.pool.active

    def _is_settled(self) -> bool:
        return self._is_broken() or self._is_over()

    def _is_empty(self) -> bool:
        slots = self._world.invariants.pool.slots.values()
        is_empty = not self._world.cluster.workers and not any(slot.owners for slot in slots)
        return self._is_broken() or is_empty

    def _tidy(self) -> None:
        """Let go of all coroutines and files; nothing comes of it any more."""
        self._world.network.is_over = True
        agents = [each for node in self._nodes.values() for each in node.buried]
        processes = [*self._server.buried, *(process for process, _ in agents)]
        for process in processes:
            process.bury()
        self._world.time.run_ready()
        for process in processes:
            process.close()
        for _, node in agents:
            node.close()


def _speeds() -> Speeds:
    """Give the speeds of the models that jobs train."""
    gpus = np.arange(1.0, 13.0)
    curves = [np.full(12, 1.0), 1.0 / gpus**0.9, 0.3 + 0.7 / gpus]
    step_s = np.concatenate([np.full((3, 1), np.inf), np.array(curves)], axis=1)
    return speeds_of(("flat", "good", "skewed"), step_s, np.isfinite(step_s))
