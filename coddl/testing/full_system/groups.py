"""Groups of trainers: how one is built, how it makes steps, and how it breaks.

All of this is between workers, and happens in the world: no lead and no agent takes part in it. A
step takes all members; of one that is interrupted by a death some survivors may have the result.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from coddl.runtime.wire import Message
from coddl.testing.full_system.states import State

if TYPE_CHECKING:
    from coddl.testing.full_system.trainer import Trainer, TrainerWorkload, TrainingWorld

BUILD_S: Final = (0.02, 0.6)  # that workers take to build a group, once all are there
BUILD_WITHIN_S: Final = 8.0  # after which those that are there give up
NOTICED_S: Final = 0.1  # after which peers see that a worker has died
BROKEN_AFTER_S: Final = 5.0  # without an answer of a peer
LOOK_EVERY_S: Final = 0.5  # at peers that do not answer
TOLD_EVERY_S: Final = 4.0  # steps, by members that are not the main one
HALF_APPLIED: Final = 0.3  # of the steps that a death interrupts


class GroupWatch(Protocol):
    """Hears what groups do."""

    def told(self, trainer: "Trainer", generation: int) -> None:
        """A worker hears of a generation."""

    def committed_unbuilt(self, trainer: "Trainer", generation: int) -> None:
        """A worker is told to change to a group that it has not built."""

    def begins(self, group: "TrainerGroup", *, anew: bool, planned: bool) -> None:
        """A group begins to train; `anew`: none of its members had a state."""

    def stepped(self, group: "TrainerGroup", before: State) -> None:
        """A group has made a step."""


@dataclass(frozen=True, slots=True)
class ToldPlan:
    """A group as its workers are told of it."""

    generation: int
    members: tuple[int, ...]
    counts: tuple[int, ...]
    bridge: tuple[int, ...]
    image: str | None
    store_node: str

    @classmethod
    def of(cls, word: Message) -> "ToldPlan":
        """Read it off `prepare` or `regroup`."""
        return cls(
            generation=word["generation"],
            members=tuple(word["members"]),
            counts=tuple(word["counts"]),
            bridge=tuple(word["bridge"]),
            image=word["image"],
            store_node=word["store"][0],
        )


class GroupBuilding:
    """A group to be: its workers meet, say that they have built it, and change to it."""

    def __init__(
        self,
        world: "TrainingWorld",
        workload: "TrainerWorkload",
        attempt: int,
        word: Message,
        *,
        is_regroup: bool,
    ) -> None:
        self.world, self.workload, self.attempt = world, workload, attempt
        self.plan = ToldPlan.of(word)
        self.participants = {*self.plan.members, *self.plan.bridge}
        self.is_over = False
        self._is_regroup = is_regroup
        self._is_built = self._is_timed = False
        self._here: dict[int, Trainer] = {}  # that build it
        self._inside: dict[int, Trainer] = {}  # that have changed to it

    # Building.

    def join(self, trainer: "Trainer") -> None:
        """Have a worker build it, with all others."""
        if self.is_over:
            trainer.say("unready", generation=self.plan.generation, because="peers have left")
            return
        if not self._here:
            self.world.time.call_later(BUILD_WITHIN_S, self._give_up)
        self._here[trainer.number] = trainer
        if self._here.keys() == self.participants:
            self.world.time.call_later(BUILD_S[0], self._build)

    def drop(self, trainer: "Trainer") -> None:
        """Have a worker forget it."""
        self._here.pop(trainer.number, None)
        if self._inside.pop(trainer.number, None) is not None:
            trainer.entering = None
            self.on_death()

    def _build(self) -> None:
        if self.is_over or self._is_built:
            return
        here = self._here
        if here.keys() != self.participants or not self._all_reach(here.values()):
            self.world.time.call_later(LOOK_EVERY_S, self._build)
            return
        self._is_built = True
        for trainer in list(here.values()):
            self.world.time.call_later(
                self.world.chance.uniform(*BUILD_S), self._end_build, trainer
            )

    def _end_build(self, trainer: "Trainer") -> None:
        """Have a worker say that it has built the group; after a loss, begin to train in it."""
        if self._here.get(trainer.number) is not trainer or not trainer.is_alive:
            return
        if self._is_regroup:
            self.enter(trainer)
        else:
            trainer.on_built(self)

    def _give_up(self) -> None:
        if self._is_built or self.is_over:
            return
        self.is_over = True
        for trainer in list(self._here.values()):
            trainer.say("unready", generation=self.plan.generation, because="peers did not come")

    def _all_reach(self, trainers: Iterable["Trainer"]) -> bool:
        """Tell whether workers are alive, and reach each other and the store."""
        trainers = list(trainers)
        nodes = dict.fromkeys([self.plan.store_node, *(each.node for each in trainers)])
        reaches = all(self.world.peers.reaches(one, other) for one in nodes for other in nodes)
        return reaches and all(each.is_alive for each in trainers)

    # Changing.

    def enter(self, trainer: "Trainer") -> None:
        """Have a worker change to it, and wait there for the others."""
        if self.is_over:
            trainer.break_off(self.plan.generation, "peers have left")
            return
        if trainer.state is not None and not self._is_timed:  # joiners wait for the others' step
            self._is_timed = True
            self.world.time.call_later(BROKEN_AFTER_S, self._break_late)
        self._inside[trainer.number] = trainer
        trainer.entering = self
        if self._is_complete:
            self.world.time.call_later(self.workload.pause_s, self._begin)

    @property
    def _is_complete(self) -> bool:
        return self._inside.keys() >= {*self.plan.members, *self.plan.bridge[:1]}

    def on_death(self) -> None:
        """Have those inside find that one of them is gone."""
        self.world.time.call_later(NOTICED_S, self._break, "a peer has died")

    def _break_late(self) -> None:
        if not self._is_complete:
            self._break("peers did not come")

    def _break(self, because: str) -> None:
        if not self.is_over:
            self.is_over = True
            inside, self._inside = list(self._inside.values()), {}
            for trainer in inside:
                trainer.break_off(self.plan.generation, because)

    def _begin(self) -> None:
        if self.is_over or not self._is_complete:
            return
        inside = [self._inside[number] for number in sorted(self._inside)]
        if not self._all_reach(inside):
            self._break("a peer does not answer")
            return
        self.is_over = True
        states = [each.state for each in inside if each.state is not None]
        newest = max(states, key=lambda state: state.step, default=None)
        state = newest or self.world.restored(self.workload.job, self.plan.image)
        members = [self._inside[number] for number in self.plan.members]
        group = TrainerGroup(self, members, state)
        leavers = [each for each in inside if each not in members]
        self.world.watch.begins(group, anew=newest is None, planned=not self._is_regroup)
        for leaver in leavers:  # it has handed the state over
            leaver.entering = None
            leaver.part(self.plan.generation)
        for member in members:
            member.enter(group, self.workload.pause_s)
        group.begin()


class TrainerGroup:
    """Workers that train together."""

    def __init__(
        self,
        building: GroupBuilding,
        members: Sequence["Trainer"],
        state: State,
    ) -> None:
        self.world, self.workload = building.world, building.workload
        self.attempt = building.attempt
        self.generation, self.counts = building.plan.generation, building.plan.counts
        self.members, self.state = list(members), state
        self.is_over = False
        self._step_s = building.workload.step_s(len(members))
        self._blocked_s: float | None = None  # since when members can't reach each other
        self._leaves_by: int | None = None  # the generation, once the last image is written

    @property
    def job(self) -> int:
        return self.workload.job

    def begin(self) -> None:
        """Begin to make steps."""
        if self.state.step >= self.workload.steps:
            self._finish()
        else:
            self.world.time.call_later(self._step_s, self._end_step)

    def _end_step(self) -> None:
        """Make a step, if all members take part in it."""
        if self.is_over:
            return
        nodes = dict.fromkeys(member.node for member in self.members)
        if not all(self.world.peers.reaches(one, other) for one in nodes for other in nodes):
            self._wait_for_peers()
            return
        self._blocked_s = None
        before, self.state = self.state, State(self.state.step + 1, self.state)
        for index, member in enumerate(self.members):
            member.tell_step(self.state, self._step_s, is_main=index == 0, every_s=TOLD_EVERY_S)
        self.world.watch.stepped(self, before)
        if self.state.step >= self.workload.steps:
            self._finish()
            return
        main = self.members[0]
        if main.wants_image:
            main.wants_image = False
            main.write_image()
        if not self._change():
            self.world.time.call_later(self._step_s, self._end_step)

    def _wait_for_peers(self) -> None:
        now_s = self.world.time.now_s
        if self._blocked_s is None:
            self._blocked_s = now_s
        if now_s - self._blocked_s >= BROKEN_AFTER_S:
            self._break("a peer does not answer")
        else:
            self.world.time.call_later(LOOK_EVERY_S, self._end_step)

    def _finish(self) -> None:
        self.is_over = True
        for member in self.members:
            member.end_loop()

    # Changing to another group.

    def _change(self) -> bool:
        """Change, if all members know to what; tell whether they do."""
        commits = {member.commit for member in self.members}
        commit = commits.pop()
        if commits or commit is None or commit[1] > self.state.step:
            return False
        generation = commit[0]
        building = self.members[0].plan_of(generation)
        if not building.plan.members:
            self._leaves_by = generation
            self.members[0].write_image(generation=generation)
            return True
        self.is_over = True
        for member in self.members:
            member.group = None
            if member.number in (*building.plan.members, *building.plan.bridge[:1]):
                building.enter(member)
            else:
                member.part(generation)
        return True

    def leave(self, generation: int) -> None:
        """Have all leave, now that the last image is safe."""
        if not self.is_over and self._leaves_by == generation:
            self.is_over = True
            for member in self.members:
                member.part(generation)

    # Breaking.

    def on_death(self) -> None:
        """Have survivors find that a member is gone."""
        self.world.time.call_later(NOTICED_S, self._break, "a peer has died")
        chance, survivors = self.world.chance, [each for each in self.members if each.is_alive]
        is_training = self._leaves_by is None and self._blocked_s is None and not self.is_over
        if is_training and survivors and chance.random() < HALF_APPLIED:
            before, self.state = self.state, State(self.state.step + 1, self.state)
            for survivor in chance.sample(survivors, chance.randint(1, len(survivors))):
                survivor.state = self.state
            self.world.watch.stepped(self, before)
        self.is_over = True

    def abandon(self, trainer: "Trainer") -> None:
        """Have a worker leave in the middle of a step: the others can't end it."""
        if not self.is_over:
            self.is_over = True
            self.members.remove(trainer)
            self.world.time.call_later(NOTICED_S, self._break, "a peer has left")

    def _break(self, because: str) -> None:
        self.is_over = True
        for member in self.members:
            if member.is_alive and member.group is self:
                member.break_off(self.generation, because)
