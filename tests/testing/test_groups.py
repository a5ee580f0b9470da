"""Groups of workers that only advance: how they are built, change, break and end."""

import random
from pathlib import Path

from coddl.runtime.wire import Message
from coddl.testing.full_system.groups import BROKEN_AFTER_S, BUILD_WITHIN_S, TrainerGroup
from coddl.testing.full_system.peer_lines import PeerNetwork
from coddl.testing.full_system.states import SavedStates, State
from coddl.testing.full_system.trainer import BATCH, Trainer, TrainerWorkload, TrainingWorld
from coddl.testing.full_system.virtual_time import VirtualTime

STEPS = 40


class Watch:
    """Keeps what groups did."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int, bool]] = []  # generation, step, anew
        self.unbuilt = 0

    def told(self, trainer: Trainer, generation: int) -> None: ...
    def stepped(self, group: TrainerGroup, before: State) -> None: ...
    def committed_unbuilt(self, trainer: Trainer, generation: int) -> None:  # noqa: ARG002
        self.unbuilt += 1

    def begins(self, group: TrainerGroup, *, anew: bool, planned: bool) -> None:  # noqa: ARG002 - either
        self.begun.append((group.generation, group.state.step, anew))


class Host:
    """The worker host of a node: hears workers at once."""

    attempt = 1
    is_led = False

    def __init__(self, node: str, said: list[tuple[int, Message]]) -> None:
        self.node, self.said = node, said
        self.images: dict[Path, State] = {}

    def hear(self, worker: int, word: Message) -> None:
        self.said.append((worker, word))

    def on_exit(self, worker: int, code: int) -> None:
        self.said.append((worker, {"is": "exited", "code": code}))


class Stage:
    """Workers 0, 1, ... on nodes a, b, ..., and what they say."""

    def __init__(self, workers: int) -> None:
        self.time, self.watch = VirtualTime(), Watch()
        self.peers = PeerNetwork(self.time, random.Random(1))
        chance, saved = random.Random(1), SavedStates()
        self.world = TrainingWorld(self.time, self.peers, chance, self.watch, saved)
        self.said: list[tuple[int, Message]] = []
        self.workers: list[Trainer] = []
        for _ in range(workers):
            self.add()

    def add(self) -> None:
        number = len(self.workers)
        workload = TrainerWorkload(1, STEPS, lambda _workers: 1.0, arrive_s=0.1, pause_s=0.1)
        host = Host("abcd"[number], self.said)
        about = (self.world, workload, host, number, number)
        self.workers.append(Trainer(*about, on_death=lambda _trainer, _because: None))
        self.time.run(self.time.now_s + 1.0)

    def tell(self, do: str, to: list[int], generation: int, members: list[int]) -> None:
        counts = [BATCH // len(members)] * len(members) if members else []
        group = {"members": members, "counts": counts, "bridge": [], "image": None}
        word = {"do": do, "generation": generation, "step": 0, **group, "store": ("a", 1)}
        for number in to:
            self.workers[number].tell(word)

    def started(self, members: list[int]) -> "Stage":
        """Have a first group train."""
        self.tell("prepare", members, 1, members)
        self.later(1.0)
        self.tell("commit", members, 1, members)
        assert self.later(1.0).count("swapped") == len(members)
        return self

    def later(self, seconds: float) -> list[str]:
        """Let time pass; give the kinds of what was said."""
        self.said.clear()
        self.time.run(self.time.now_s + seconds)
        return [word["is"] for _, word in self.said]


def test_a_group_trains_to_its_end() -> None:
    stage = Stage(2).started([0, 1])
    said = stage.later(STEPS + 1.0)
    assert stage.watch.begun == [(1, 0, True)]
    assert (said.count("ended"), said.count("exited")) == (2, 2)
    assert said.count("stepped") >= STEPS


def test_a_change_waits_until_all_members_know_of_it() -> None:
    stage = Stage(3).started([0, 1])
    stage.tell("prepare", [0, 1, 2], 2, [0, 1, 2])
    assert stage.later(1.5).count("ready") == 3
    stage.tell("commit", [0, 2], 2, [0, 1, 2])
    assert "swapped" not in stage.later(5.0)
    stage.tell("commit", [1], 2, [0, 1, 2])
    assert stage.later(2.0).count("swapped") == 3
    (_, first, _), (generation, step, anew) = stage.watch.begun
    assert (generation, anew) == (2, False)
    assert step > first
    assert len({worker.state for worker in stage.workers}) == 1


def test_survivors_of_a_death_go_on_from_the_furthest_state() -> None:
    stage = Stage(3).started([0, 1, 2])
    stage.later(5.3)
    stage.workers[2].die(-9, "a test")
    assert stage.later(0.5).count("broken") == 2
    states = [worker.state.step for worker in stage.workers[:2] if worker.state]
    stage.tell("regroup", [0, 1], 2, [0, 1])
    assert stage.later(1.5).count("swapped") == 2
    assert stage.watch.begun[-1] == (2, max(states), False)


def test_workers_that_can_not_reach_each_other_say_so() -> None:
    stage = Stage(2).started([0, 1])
    stage.peers.cut("a", "b")
    assert "broken" not in stage.later(BROKEN_AFTER_S - 1.0)
    assert stage.later(3.0).count("broken") == 2
    stage.tell("regroup", [0, 1], 2, [0, 1])
    assert stage.later(BUILD_WITHIN_S + 1.0).count("unready") == 2


def test_the_last_image_is_waited_for() -> None:
    stage = Stage(2).started([0, 1])
    for do in ("prepare", "commit"):
        stage.tell(do, [0, 1], 2, [])
        said = stage.later(1.5)
    assert said.count("image") == 1
    assert "exited" not in stage.later(20.0)
    stage.tell("leave", [0], 2, [])
    assert stage.later(1.0).count("exited") == 2


def test_a_commit_to_a_group_that_is_not_built_is_noticed() -> None:
    stage = Stage(2).started([0, 1])
    stage.add()
    stage.tell("prepare", [0, 2], 2, [0, 1, 2])
    stage.tell("commit", [0, 2], 2, [0, 1, 2])
    stage.later(1.0)
    assert stage.watch.unbuilt == 2
