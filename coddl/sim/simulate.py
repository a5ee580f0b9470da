"""Run policies on a trace: one run, or a grid of them on all cores."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from coddl.core.cluster import Cluster
from coddl.core.columns import BoolColumn, IntColumn
from coddl.core.errors import UserError
from coddl.core.node_count import NodeBounds
from coddl.core.placement.placement import Placement
from coddl.core.policies.policy import Policy, RulePolicy
from coddl.core.scheduler import Scheduler, Stability
from coddl.sim.beliefs import Beliefs, as_believed
from coddl.sim.compiled import run_compiled
from coddl.sim.dispatch import RULES
from coddl.sim.failures import FailureModel
from coddl.sim.loop import SimulatedCluster, StepLoop
from coddl.sim.node_scaling import NodeScaling, worth_of
from coddl.sim.pool_conditions import PoolConditions, PoolEvents
from coddl.sim.run import Events, Losses, Run
from coddl.sim.run_key import RunKey
from coddl.sim.world import (
    ACTIVE,
    ARRIVED,
    CANCELLED,
    ENDS_AT,
    EVENTS,
    FAILURES,
    FINISH_S,
    FINISHED,
    LOGGED,
    LOST_GPU_S,
    MIGRATIONS,
    NOW,
    REALLOCATIONS,
    STOPS_AT,
    Reconfigure,
    World,
    world_of,
)
from coddl.traces.trace import Trace

CHUNK = 20_000  # events between two looks at progress and at Ctrl-C
STEPS = 20  # the same, for a policy in plain Python, which may take its time
PATIENCE = 2_000_000  # events in which not one job finishes, before a run is given up


@dataclass(frozen=True, eq=False)
class Case:
    """One run to be made."""

    key: RunKey
    policy: Policy
    trace: Trace
    reconfigure: Reconfigure = field(default_factory=Reconfigure)
    stability: Stability = field(default_factory=Stability)
    cluster: Cluster | None = None  # None: `gpus` GPUs, it does not matter where
    nodes: NodeBounds | None = None  # how many of the cluster's nodes there may be; None: all
    placement: Placement | None = None
    beliefs: Beliefs | None = None  # None: the scheduler knows the truth
    quota_gpus: IntColumn = field(default_factory=lambda: np.zeros(0, np.int64))
    failures: FailureModel | None = None  # None: nothing goes wrong
    conditions: PoolConditions | None = None  # None: nothing happens but what is decided
    prerun: bool = False  # a job has its minimum until it has made its first step
    keep_events: bool = False

    @property
    def is_plain(self) -> bool:
        """Return whether the policy alone decides, about shares and nothing else."""
        alone = self.cluster is None and self.placement is None
        fixed = self.beliefs is None or self.beliefs.is_fixed
        alike = self.trace.priority is None and self.trace.preemptible is None
        undisturbed = self.conditions is None and not self.prerun
        return alone and self.stability == Stability() and fixed and alike and undisturbed


def _ignore(_jobs: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Watch:
    """How a caller follows runs and stops them. Called from the threads that make the runs."""

    partial: bool = False  # after Ctrl-C, return what has finished so far instead of raising
    stop: threading.Event = field(default_factory=threading.Event)
    planned: Callable[[int], None] = _ignore  # called with the total number of jobs
    progress: Callable[[int], None] = _ignore  # called with how many finished since its last call


def chunks_of(
    case: Case, world: World, scaling: NodeScaling | None, step_by_step: bool
) -> Callable[[], bool]:
    """What runs the next chunk of events: the compiled loop where the policy has a rule it knows
    and decides alone, else step by step.
    """
    policy = case.policy
    if (
        case.is_plain
        and not step_by_step
        and isinstance(policy, RulePolicy)
        and policy.rule in RULES
    ):
        code, shares = RULES.index(policy.rule), np.empty(case.trace.size, np.int64)
        if case.beliefs is not None:
            world = as_believed(world, case.beliefs)
        return partial(run_compiled, world, case.key.gpus, code, policy.parameters, shares, CHUNK)
    return partial(step_loop_of(case, world, scaling).run, STEPS)


def step_loop_of(case: Case, world: World, scaling: NodeScaling | None = None) -> StepLoop:
    """Return the step-by-step loop of a case, with its nodes as they are at the start."""
    speeds = case.trace.speeds
    cluster, beliefs = case.cluster or Cluster.of(case.key.gpus), case.beliefs or Beliefs(speeds)
    simulated = SimulatedCluster(cluster, speeds, beliefs, case.quota_gpus, case.reconfigure.move_s)
    scheduler = Scheduler(case.policy, case.stability, case.placement)
    events = None if case.conditions is None else PoolEvents(case.conditions, world)
    nodes = scaling or scaling_of(case, world)
    return StepLoop(world, simulated, scheduler, nodes, events=events, prerun=case.prerun)


def scaling_of(case: Case, world: World) -> NodeScaling | None:
    """The nodes that come and go in a case, before anything has happened."""
    if case.nodes is None:
        return None
    jobs, beliefs = world.jobs, case.beliefs or Beliefs(case.trace.speeds)
    curve = jobs.curve if beliefs.curve is None else beliefs.curve
    rigid = bool(getattr(case.policy, "rigid", False))
    worth = worth_of(jobs, curve, beliefs.speeds, rigid=rigid)
    begin_s = float(case.trace.submitted_s.min(initial=np.inf))
    return NodeScaling(case.nodes, worth, begin_s)


def run_case(case: Case, watch: Watch | None = None, *, step_by_step: bool = False) -> Run:
    """Make one run. A run that was stopped has what finished by then."""
    watch = watch or Watch()
    world = world_before(case)
    scaling = scaling_of(case, world)
    next_chunk = chunks_of(case, world, scaling, step_by_step)
    kept: list[Events] = []
    started_s, goes_on, told, still_at = time.perf_counter(), True, 0, 0
    while goes_on and not watch.stop.is_set():
        goes_on = next_chunk()
        if case.keep_events:
            kept.append(_events(world))
        world.counts[LOGGED] = 0
        done, events = int(world.counts[FINISHED]), int(world.counts[EVENTS])
        watch.progress(done - told)
        if done > told:
            told, still_at = done, events
        elif events - still_at > PATIENCE:
            raise _thrashing(case, events - still_at, case.trace.size - done)
    jobs = world.jobs
    done = np.arange(case.trace.size) < world.counts[ARRIVED]
    done[world.active[: world.counts[ACTIVE]]] = False
    return Run(
        key=case.key,
        trace=case.trace,
        end_s=float(world.clock[NOW]),
        finish_s=np.where(done, world.floats[FINISH_S], np.nan),
        first_start_s=jobs.first_start_s,
        executed_s=jobs.executed_s,
        attained_gpu_s=jobs.attained_gpu_s,
        reallocations=int(world.counts[REALLOCATIONS]),
        migrations=int(world.counts[MIGRATIONS]),
        cancelled_preparations=int(world.counts[CANCELLED]),
        event_count=int(world.counts[EVENTS]),
        wall_s=time.perf_counter() - started_s,
        events=Events(*map(np.concatenate, zip(*kept, strict=True))) if case.keep_events else None,
        losses=None if case.failures is None else _losses(world, done),
        nodes=None if scaling is None else scaling.history,
    )


def world_before(case: Case) -> World:
    """The world of a run before anything has happened, what will go wrong in it included."""
    trace, faults = case.trace, None
    if case.failures is not None:
        trace, faults = case.failures.draw(trace, case.key.seed)
    return world_of(trace, case.key.gpus, case.reconfigure, case.key.seed, faults)


def _losses(world: World, done: BoolColumn) -> Losses:
    """What went wrong with the jobs that are done, and with the others so far."""
    failed = done & (world.floats[STOPS_AT] > world.floats[ENDS_AT])
    lost_gpu_s = np.where(failed, world.jobs.attained_gpu_s, world.floats[LOST_GPU_S])
    return Losses(
        failed, done & ~failed & (world.floats[ENDS_AT] > 0.0), world.ints[FAILURES], lost_gpu_s
    )


def run_cases(cases: Sequence[Case], watch: Watch | None = None) -> list[Run]:
    """Make all runs, as many at a time as there are cores.

    Kernels run without the interpreter's lock, so threads are enough, and nothing has to be copied
    between processes.
    """
    watch = watch or Watch()
    watch.planned(sum(case.trace.size for case in cases))
    runs: list[Run | None] = [None] * len(cases)
    todo: Iterator[int] = iter(sorted(range(len(cases)), key=lambda i: -cases[i].trace.size))
    with ThreadPoolExecutor(cores()) as pool:
        running: dict[Future[Run], int] = {}
        try:
            while True:
                while len(running) < cores() and (i := next(todo, -1)) >= 0:
                    running[pool.submit(run_case, cases[i], watch)] = i
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    runs[running.pop(future)] = future.result()
        except BaseException as error:
            watch.stop.set()
            if not (watch.partial and isinstance(error, KeyboardInterrupt)):
                raise
            for future, i in running.items():
                runs[i] = future.result()
    return [run for run in runs if run is not None]


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _thrashing(case: Case, events: int, jobs: int) -> UserError:
    return UserError(
        f"{case.key.policy} on {case.key.gpus} GPUs does not come to an end",
        f"in the last {events:,} events none of {jobs:,} jobs finished: they are resized or put "
        "off sooner than they can begin to train",
        "a longer lease_h or threshold_gpu_h, or a cheaper --reconfigure",
    )


def _events(world: World) -> Events:
    """What the log holds."""
    size = world.counts[LOGGED]
    what = world.log.what[:size].T.copy()
    return Events(world.log.time_s[:size].copy(), what[0], what[1], what[2])
