"""A worker that only advances: it speaks as a real one does, and trains in groups."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from coddl.runtime.wire import Message
from coddl.testing.full_system.groups import GroupBuilding, GroupWatch, TrainerGroup
from coddl.testing.full_system.peer_lines import PeerNetwork
from coddl.testing.full_system.states import SavedStates, State
from coddl.testing.full_system.virtual_time import VirtualTime

BATCH: Final = 64  # samples: the parts that a group's members share
EXIT_S: Final = 0.05  # that a process takes to end
WORD_S: Final = 0.0005  # that a word takes from a worker host to its worker
FORKED_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class TrainerWorkload:
    """What a job trains: its steps, and what they and its start take."""

    job: int
    steps: int
    step_s: Callable[[int], float]  # by workers
    arrive_s: float  # from the fork to the loop
    pause_s: float  # at a change of the group


class TrainerHost(Protocol):
    """The worker host of a trainer's node, as far as a worker needs it."""

    node: str
    images: dict[Path, State]  # in the node's memory

    @property
    def attempt(self) -> int: ...
    @property
    def is_led(self) -> bool:
        """Tell whether a lead hears what its workers say."""
        ...

    def hear(self, worker: int, word: Message) -> None:
        """Hear what a worker says, when its process runs."""
        ...

    def on_exit(self, worker: int, code: int) -> None:
        """Hear that a worker's process is gone, when its own process runs."""
        ...


@dataclass(frozen=True, slots=True)
class TrainingWorld:
    """What all trainers share."""

    time: VirtualTime
    peers: PeerNetwork
    chance: random.Random
    watch: GroupWatch
    saved: SavedStates
    buildings: dict[tuple[object, ...], GroupBuilding] = field(default_factory=dict)

    def restored(self, job: int, image: str | None) -> State:
        """Give the state of a checkpoint, or the first one."""
        return State(0) if image is None else self.saved.of(job).all[Path(image)]


class Trainer:
    """A worker's process."""

    def __init__(
        self,
        world: TrainingWorld,
        workload: TrainerWorkload,
        host: TrainerHost,
        number: int,
        slot: int,
        *,
        on_death: Callable[["Trainer", str], None],
    ) -> None:
        self.world, self.workload, self.host = world, workload, host
        self.number, self.slot = number, slot
        self.is_alive = True
        self._is_gone = False
        self.is_leaving = False  # it was told to, or its loop is over
        self.state: State | None = None
        self.group: TrainerGroup | None = None
        self.entering: GroupBuilding | None = None
        self.wants_image = False
        self.newest_generation = 0  # that it was told
        self.told_s = 0.0  # when it last told of a step
        self._on_death = on_death
        self._plans: dict[int, GroupBuilding] = {}
        self._built: set[int] = set()
        self._images = 0
        self.commit: tuple[int, int] | None = None  # generation and step
        self._later(FORKED_S, self._fork)

    @property
    def job(self) -> int:
        return self.workload.job

    @property
    def node(self) -> str:
        return self.host.node

    def _fork(self) -> None:
        self.host.hear(self.number, {"is": "forked"})
        arrive_s = self.workload.arrive_s * self.world.chance.uniform(1.0, 1.5)
        self._later(arrive_s, self._arrive)

    def _arrive(self) -> None:
        cut = {"parts": BATCH, "workers_max": BATCH, "virtual_nodes": None, "global_batch": BATCH}
        self.say("prepared")
        self.say("arrived", steps=self.workload.steps, **cut)

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        def act() -> None:
            if self.is_alive:
                action()

        self.world.time.call_later(delay_s, act)

    def say(self, kind: str, **fields: object) -> None:
        """Say something to the worker host."""
        if self.is_alive:
            self.host.hear(self.number, {"is": kind, **fields})

    # What it is told.

    def tell(self, word: Message) -> None:
        """Have it hear a word of its lead some time soon."""
        self._later(WORD_S, partial(self._take, word))

    def _take(self, word: Message) -> None:
        if self.is_leaving:
            return
        match word["do"]:
            case "prepare":
                self._prepare(word)
            case "commit":
                self._commit(word["generation"], word["step"])
            case "cancel":
                self._cancel(word["generation"])
            case "regroup":
                self._regroup(word)
            case "capture":
                self.wants_image = True
            case "leave" if self.group is not None:
                self.group.leave(word["generation"])
            case "stop":
                self.is_leaving = True
                self._later(EXIT_S, partial(self.die, 0, "it was stopped"))
            case _:
                pass

    def _prepare(self, word: Message) -> None:
        building = self._building(word, is_regroup=False)
        if not building.plan.members:
            self.on_built(building)  # a suspension builds nothing
        elif self.number in building.participants:
            building.join(self)

    def _building(self, word: Message, *, is_regroup: bool) -> GroupBuilding:
        world, attempt = self.world, self.host.attempt
        key = (self.job, *word["store"], word["generation"])
        if (building := world.buildings.get(key)) is None:
            building = GroupBuilding(world, self.workload, attempt, word, is_regroup=is_regroup)
            world.buildings[key] = building
        world.watch.told(self, building.plan.generation)
        self._plans[building.plan.generation] = building
        return building

    def _commit(self, generation: int, step: int) -> None:
        building = self._plans.get(generation)
        if building is None:
            return  # a regroup has revoked it
        if self.number in building.participants and generation not in self._built:
            self.world.watch.committed_unbuilt(self, generation)
        self.commit = (generation, step)
        if self.group is None and self.state is None and self.number in building.participants:
            building.enter(self)

    def _cancel(self, generation: int) -> None:
        if (building := self._plans.pop(generation, None)) is not None:
            building.drop(self)
        if self.commit is not None and self.commit[0] == generation:
            self.commit = None

    def _regroup(self, word: Message) -> None:
        for building in self._plans.values():
            building.drop(self)
        self._plans.clear()
        self.commit = None
        group, self.group = self.group, None
        if group is not None:
            group.abandon(self)
        building = self._building(word, is_regroup=True)
        if self.number in building.participants:
            building.join(self)

    # What becomes of it.

    def on_built(self, building: GroupBuilding) -> None:
        """Have built a group beside the one it trains in."""
        if self._plans.get(building.plan.generation) is building:
            self._built.add(building.plan.generation)
            self.say("ready", generation=building.plan.generation)

    def enter(self, group: TrainerGroup, pause_s: float) -> None:
        """Begin to train in a group."""
        self.group, self.entering, self.state = group, None, group.state
        self._forget(group.generation)
        self._say_swapped(group.generation, pause_s, left=False)

    def part(self, generation: int) -> None:
        """Leave by a generation in which it has no place."""
        self.group, self.is_leaving = None, True
        self._say_swapped(generation, 0.0, left=True)
        self._later(EXIT_S, partial(self.die, 0, "it has left"))

    def _say_swapped(self, generation: int, pause_s: float, *, left: bool) -> None:
        pause = {"boundary_s": 0.0, "state_s": 0.0, "swap_s": pause_s}
        step = self.state.step if self.state is not None else 0
        self.say("swapped", generation=generation, step=step, left=left, pause=pause)

    def _forget(self, generation: int) -> None:
        self._plans = {g: plan for g, plan in self._plans.items() if g > generation}
        if self.commit is not None and self.commit[0] <= generation:
            self.commit = None

    def plan_of(self, generation: int) -> GroupBuilding:
        """Give the group that it was told to change to."""
        return self._plans[generation]

    def break_off(self, generation: int, because: str) -> None:
        """Say that a group can't go on; wait for another one."""
        self.group = self.entering = None
        self.say("broken", generation=generation, because=because)

    def tell_step(self, state: State, step_s: float, *, is_main: bool, every_s: float) -> None:
        """Take over the state after a step; tell of it, or not yet."""
        self.state = state
        now_s = self.world.time.now_s
        if is_main or now_s - self.told_s >= every_s:
            self.told_s = now_s
            times = {"window_s": step_s, "pass_s": step_s, "data_wait_s": 0.0, "exchange_s": 0.0}
            self.say("stepped", step=state.step, iterations=1, samples=BATCH, **times)

    def write_image(self, **more: object) -> None:
        """Write the state to the node's memory, and say where it is."""
        assert self.state is not None
        self._images += 1
        path = Path("/images", f"{self.number}-{self._images % 2}")
        self.host.images[path] = self.state
        self.say("image", path=str(path), step=self.state.step, bytes=1, seconds=0.0, **more)

    def end_loop(self) -> None:
        """Have made the last step."""
        assert self.state is not None
        self.group, self.is_leaving = None, True
        self.say("ended", step=self.state.step, complete=True)
        self._later(EXIT_S, partial(self.die, 0, "its loop is over"))

    def die(self, code: int, because: str) -> None:
        """End at once, as when its node is lost."""
        self._stop()
        self._vanish(code, because)

    def be_killed(self, signal_: int) -> None:
        """End by a signal: it does nothing more, but has its slot until its process is gone."""
        if self.is_alive:
            self._stop()
            self.world.time.call_later(EXIT_S, partial(self._vanish, -signal_, f"signal {signal_}"))

    def _stop(self) -> None:
        """Do nothing from now on; its peers find out."""
        if not self.is_alive:
            return
        self.is_alive = False
        if self.group is not None:
            self.group.on_death()
        if self.entering is not None:
            self.entering.on_death()

    def _vanish(self, code: int, because: str) -> None:
        """Be gone: its slot is empty from now on."""
        if not self._is_gone:
            self._is_gone = True
            self._on_death(self, because)
            self.host.on_exit(self.number, code)
