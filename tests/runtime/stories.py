"""A small language for stories about the Coordinator: events in, its commands in words."""

from dataclasses import dataclass

from coddl.runtime.supervisor.coordinator import Coordinator
from coddl.runtime.supervisor.generations import (
    Cancel,
    Command,
    Commit,
    Event,
    GroupBroken,
    GroupPlan,
    LoopEnded,
    Phase,
    Prepare,
    Regroup,
    StartWorker,
    StopWorker,
    TargetSet,
    TimerFired,
    WorkerArrived,
    WorkerLost,
    WorkerReady,
    WorkerStepped,
    WorkerSwapped,
    WorkerUnready,
)

VIRTUAL_NODES = 4


@dataclass(frozen=True)
class After:
    """Time passes, then the Coordinator is woken."""

    seconds: float


Row = tuple[list[Event | After], str]


@dataclass(frozen=True)
class Story:
    """Begins with workers 0..n-1 on slots 0..n-1, all of generation 1 and at step 10."""

    members: int
    rows: list[Row]
    ends: tuple[int, ...]
    phase: Phase = "steady"


def target(*slots: int) -> list[Event | After]:
    return [TargetSet(slots)]


def arrived(*workers: int) -> list[Event | After]:
    return [WorkerArrived(worker, VIRTUAL_NODES) for worker in workers]


def ready(generation: int, *workers: int) -> list[Event | After]:
    return [WorkerReady(worker, generation) for worker in workers]


def unready(generation: int, *workers: int) -> list[Event | After]:
    return [WorkerUnready(worker, generation) for worker in workers]


def swapped(generation: int, *workers: int) -> list[Event | After]:
    return [WorkerSwapped(worker, generation, 10) for worker in workers]


def broken(generation: int, worker: int) -> list[Event | After]:
    return [GroupBroken(worker, generation)]


def lost(*workers: int) -> list[Event | After]:
    return [WorkerLost(worker) for worker in workers]


def ended(*workers: int) -> list[Event | After]:
    return [LoopEnded(worker) for worker in workers]


def after(seconds: float) -> list[Event | After]:
    return [After(seconds)]


def timed(times: int, **pass_s: float) -> list[Event | After]:
    return [
        WorkerStepped(int(worker[1:]), 10, seconds)
        for _ in range(times)
        for worker, seconds in pass_s.items()
    ]


def told(command: Command) -> str:
    """Say a command in a few words: `prepare 2 [0:2 1:2] to 0 1`."""
    match command:
        case StartWorker(worker, slot):
            return f"start {worker}@{slot}"
        case StopWorker(worker):
            return f"stop {worker}"
        case Prepare(plan):
            return f"prepare {told_plan(plan)}"
        case Regroup(plan):
            return f"regroup {told_plan(plan)}"
        case Commit(generation, step, to):
            return f"commit {generation} after {step} to {' '.join(map(str, to))}"
        case Cancel(generation, to):
            return f"cancel {generation} to {' '.join(map(str, to))}"


def told_plan(plan: GroupPlan) -> str:
    owned = " ".join(f"{w}:{n}" for w, n in zip(plan.members, plan.counts, strict=True))
    bridge = f" bridge {' '.join(map(str, plan.bridge))}" if plan.bridge else ""
    fresh = " fresh" if plan.fresh else ""
    return f"{plan.generation} [{owned}]{bridge}{fresh} to {' '.join(map(str, plan.to))}"


# Beginnings that many stories share.
GROWING_2: Row = (target(0, 1), "start 1@1")
BUILDING_2: Row = (target(0, 1) + arrived(1), "start 1@1; prepare 2 [0:2 1:2] to 0 1")
SWAPPING_2: Row = (
    target(0, 1) + arrived(1) + ready(2, 0, 1),
    "start 1@1; prepare 2 [0:2 1:2] to 0 1; commit 2 after 11 to 0 1",
)
MOVING: Row = (
    target(2, 3) + arrived(2, 3) + ready(2, 0, 2, 3),
    "start 2@2; start 3@3; prepare 2 [2:2 3:2] bridge 0 2 3 to 0 2 3; commit 2 after 11 to 0 1 2 3",
)
HALVING: Row = (
    target(0, 1) + ready(2, 0, 1),
    "prepare 2 [0:2 1:2] to 0 1; commit 2 after 11 to 0 1 2 3",
)
SHRINKING: Row = (target(0), "prepare 2 [0:4] to 0")


class Stage:
    """Plays events to a Coordinator, at a time that passes only when told to."""

    def __init__(self, members: int) -> None:
        self.coordinator = Coordinator()
        self.now_s = 100.0
        workers = range(members)
        self.play(target(*workers) + arrived(*workers) + ready(1, *workers) + swapped(1, *workers))

    def tell(self, story: Story) -> None:
        """Play a story, and compare each answer and the end with what it says."""
        for events, want in story.rows:
            assert self.play(events) == want, events
        assert self.coordinator.phase == story.phase
        assert self.coordinator.members == story.ends

    def play(self, events: list[Event | After]) -> str:
        said: list[str] = []
        for event in events:
            if isinstance(event, After):
                self.now_s += event.seconds
                event = TimerFired()
            said += map(told, self.coordinator.handle(event, self.now_s))
        return "; ".join(said)
