"""Any storm of targets, deaths and crossing words keeps the protocol's rules and comes to rest."""

from collections import deque
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from coddl.runtime.supervisor.coordinator import BUILD_WAIT_S, Coordinator
from coddl.runtime.supervisor.generations import (
    Cancel,
    Command,
    Commit,
    Event,
    GroupBroken,
    GroupPlan,
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
MOVES_MAX = 5000  # until it must have come to rest
TARGETS = [(), (0,), (1,), (0, 1), (1, 2), (0, 1, 2), (3, 2, 1, 0), (2, 3), (0, 1, 2, 3, 4)]


@dataclass
class Process:
    """A worker: what it was told and has not read yet, what it said and nobody has heard yet."""

    slot: int
    inbox: deque[Command] = field(default_factory=deque)
    outbox: deque[Event] = field(default_factory=deque)
    generation: int = 0
    alive: bool = True


class World:
    """Toy workers around a Coordinator. Words cross, but each worker's own stay in order."""

    def __init__(self) -> None:
        self.coordinator = Coordinator()
        self.now_s = 0.0
        self.rules = Rules()
        self.processes: dict[int, Process] = {}
        self.plans: dict[int, GroupPlan] = {}
        self.heard: list[Event] = []
        self.steps = 0

    def handle(self, event: Event) -> None:
        self.rules.hear(event)
        for command in self.coordinator.handle(event, self.now_s):
            self.rules.obey(command)
            self.execute(command)
        self.rules.check(self.coordinator, self.now_s)

    def execute(self, command: Command) -> None:
        match command:
            case StartWorker(worker, slot):
                self.processes[worker] = Process(slot)
                self.processes[worker].outbox.append(WorkerArrived(worker, VIRTUAL_NODES))
            case StopWorker(worker):
                self.kill(worker)
            case Prepare(plan) | Regroup(plan):
                self.plans[plan.generation] = plan
                for worker in plan.to:
                    self.processes[worker].inbox.append(command)
            case Commit(_, _, to) | Cancel(_, to):
                for worker in to:
                    self.processes[worker].inbox.append(command)

    def kill(self, worker: int) -> None:
        process = self.processes[worker]
        if process.alive:
            process.alive = False
            process.outbox.append(WorkerLost(worker))

    def read(self, worker: int, *, able: bool) -> None:
        """Let a worker do the next thing it was told."""
        process = self.processes[worker]
        match process.inbox.popleft():
            case Prepare(plan):
                answer = WorkerReady if able else WorkerUnready
                process.outbox.append(answer(worker, plan.generation))
            case Regroup(plan) if not able:
                process.outbox.append(WorkerUnready(worker, plan.generation))
            case Regroup(GroupPlan(generation)) | Commit(generation):
                process.generation = generation
                process.outbox.append(WorkerSwapped(worker, generation, self.steps))
                if worker not in self.plans[generation].members:
                    self.kill(worker)  # it leaves
            case _:
                pass

    def move(self, kind: str, number: int) -> None:
        """Let one thing happen; the number picks to whom."""
        alive = [w for w, p in self.processes.items() if p.alive]
        told = [w for w in alive if self.processes[w].inbox]
        saying = [w for w, p in self.processes.items() if p.outbox]
        training = [w for w in alive if self.processes[w].generation]
        match kind:
            case "read" | "fail" if told:
                self.read(told[number % len(told)], able=kind == "read")
            case "hear" if saying:
                event = self.processes[saying[number % len(saying)]].outbox.popleft()
                self.heard.append(event)
                self.handle(event)
            case "repeat" if self.heard:
                self.handle(self.heard[number % len(self.heard)])
            case "target":
                self.handle(TargetSet(TARGETS[number % len(TARGETS)]))
            case "kill" if alive:
                self.kill(alive[number % len(alive)])
            case "break" if training:
                worker = training[number % len(training)]
                process = self.processes[worker]
                process.outbox.append(GroupBroken(worker, process.generation))
            case "step" if training:
                self.steps += 1
                worker = training[number % len(training)]
                passes = [WorkerStepped(worker, self.steps, 0.1 * (1 + worker % 3))] * 20
                self.processes[worker].outbox.extend(passes)
            case "wait":
                self.now_s += (number % 30) / 10
                self.handle(TimerFired())
            case _:
                pass

    def rest(self) -> None:
        """Let all that is under way happen, and nothing else."""
        for number in range(MOVES_MAX):
            if any(p.outbox for p in self.processes.values()):
                self.move("hear", number)
            elif any(p.inbox and p.alive for p in self.processes.values()):
                self.move("read", number)
            elif self.coordinator.wake_at_s is not None:
                self.now_s = self.coordinator.wake_at_s
                self.handle(TimerFired())
            else:
                return
        raise AssertionError(f"no rest after {MOVES_MAX} moves: {self.coordinator.phase}")


class Rules:
    """Holds the Coordinator to what the protocol promises, by what it has heard and said."""

    def __init__(self) -> None:
        self.slots: dict[int, int] = {}  # of workers started, and not known to have gone
        self.with_state: set[int] = set()
        self.newest = 0
        self.plan: GroupPlan | None = None  # in flight
        self.committed = False
        self.ready: set[int] = set()
        self.awaited: set[int] = set()  # who has not swapped yet

    def hear(self, event: Event) -> None:
        match event:
            case WorkerReady(worker, generation) if self.plan and generation == self.newest:
                self.ready.add(worker)
            case WorkerSwapped(worker, generation) if self.plan and generation == self.newest:
                assert self.committed
                self.awaited.discard(worker)
                if worker not in self.plan.members:
                    self.gone(worker)
                elif worker in self.slots:
                    self.with_state.add(worker)
            case WorkerLost(worker):
                self.gone(worker)
            case _:
                pass

    def gone(self, worker: int) -> None:
        self.slots.pop(worker, None)
        self.with_state.discard(worker)

    def obey(self, command: Command) -> None:
        match command:
            case StartWorker(worker, slot):
                assert slot not in self.slots.values(), "two workers on one slot"
                assert worker not in self.slots
                self.slots[worker] = slot
            case StopWorker(worker):
                assert worker in self.slots, "stopped somebody unknown"
                self.gone(worker)
            case Prepare(plan):
                assert self.plan is None or self.done(), "two generations in flight"
                self.take(plan)
            case Regroup(plan):
                assert self.plan is None or self.committed, "regrouped without a cancel"
                self.take(plan)
                self.committed, self.awaited = True, set(plan.members)
            case Commit(generation, _, to):
                assert self.plan
                assert generation == self.plan.generation
                assert set(self.plan.to) <= self.ready, "committed before all were ready"
                assert {*self.plan.members, *self.plan.bridge} <= set(to)
                self.told(to)
                self.committed, self.awaited = True, set(to)
            case Cancel(generation, to):
                assert self.plan
                assert generation == self.plan.generation
                assert not self.committed, "cancelled what was committed"
                self.told(to)
                self.plan = None

    def take(self, plan: GroupPlan) -> None:
        assert plan.generation > self.newest, "generations must grow"
        assert len(set(plan.members)) == len(plan.members)
        assert plan.members[:1] == tuple(sorted(plan.members)[:1]), "the oldest is the main worker"
        assert len(plan.counts) == len(plan.members)
        assert sum(plan.counts) == (VIRTUAL_NODES if plan.members else 0)
        assert {*plan.members, *plan.bridge} <= set(plan.to)
        givers = self.with_state & {*plan.members, *plan.bridge}
        assert plan.fresh == bool(plan.members and not givers), "the state is nowhere, or forgotten"
        assert not (plan.fresh and self.with_state), "begins anew although somebody has the state"
        self.told(plan.to)
        self.plan, self.newest = plan, plan.generation
        self.committed, self.ready = False, set()

    def done(self) -> bool:
        return self.committed and not self.awaited & self.slots.keys()

    def told(self, to: tuple[int, ...]) -> None:
        assert set(to) <= self.slots.keys(), "spoke to the dead"

    def check(self, coordinator: Coordinator, now_s: float) -> None:
        assert set(coordinator.members) <= self.slots.keys()
        if coordinator.wake_at_s is not None:
            wait_s = BUILD_WAIT_S if coordinator.phase == "building" else 0.5
            assert now_s < coordinator.wake_at_s <= now_s + wait_s
        if coordinator.phase in ("steady", "starting") and self.plan:
            assert self.done(), "forgot a generation that was neither cancelled nor swapped to"
            self.plan = None
        if coordinator.phase == "steady":
            assert set(coordinator.members) == self.slots.keys(), "a joiner was left over"


KINDS = ["hear"] * 8 + ["read"] * 6 + ["target"] * 2
KINDS += ["step", "wait", "kill", "break", "fail", "repeat"]


MOVE = st.tuples(st.sampled_from(KINDS), st.integers(0, 10_000))
# Left alone, Hypothesis draws short lists; what is rare here needs a long storm.
MOVES = st.integers(0, 300).flatmap(lambda n: st.lists(MOVE, min_size=n, max_size=n))


@settings(max_examples=150, deadline=None)
@given(moves=MOVES, last=st.sampled_from(TARGETS))
def test_a_storm_keeps_the_rules_and_ends_at_the_last_target(
    moves: list[tuple[str, int]], last: tuple[int, ...]
) -> None:
    world = World()
    for kind, number in moves:
        world.move(kind, number)
    world.rest()
    world.handle(TargetSet(last))
    world.rest()
    coordinator = world.coordinator
    assert coordinator.phase == "steady"
    assert {world.processes[w].slot for w in coordinator.members} == set(last[:VIRTUAL_NODES])
    assert {w for w, p in world.processes.items() if p.alive} == set(coordinator.members)
    generations = {world.processes[w].generation for w in coordinator.members}
    assert len(generations) <= 1, "members train in different generations"
