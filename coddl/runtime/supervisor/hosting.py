"""A job that an agent hosts: where it is to sit, who lives there already, and when it retires."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from coddl.runtime.supervisor import generations as group
from coddl.runtime.supervisor.adoption import Adoption
from coddl.runtime.supervisor.crew import Crew
from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.loop import Loop
from coddl.runtime.supervisor.remote import RemoteStation
from coddl.runtime.supervisor.seats import Post, Seat
from coddl.runtime.supervisor.standing import RETIRED, SUPERSEDED, Standing
from coddl.runtime.wire import Message

SEATS_AGAIN_S: Final = 60.0  # after a seat was given up


class Hosted(Protocol):
    """The supervisor, as its host's wishes reach it."""

    @property
    def standing(self) -> Standing: ...
    @property
    def crew(self) -> Crew: ...
    def set_target(self, seats: Sequence[Seat]) -> None: ...
    def take_over(self, adoption: Adoption) -> None: ...
    def feed(self, event: group.Event) -> None: ...
    def stop(self, code: int) -> None: ...


class Hosting:
    """Carries out what the host wishes; with `adopt`, first finds whoever an earlier lead left."""

    def __init__(self, supervisor: Hosted, loop: Loop, job: Job, node: str, *, adopt: bool) -> None:
        assert job.id, "a job of a pool has an id"
        self.node = node
        self._supervisor = supervisor
        self._loop = loop
        self._job = job
        self._adopts = adopt
        self._adoption: Adoption | None = None  # while it lasts
        self._seats: Sequence[Seat] | None = None  # None: not aimed yet
        self._posts: Mapping[str, Post] = {}
        self._stations: dict[str, RemoteStation] = {}

    def reach(self, node: str, on_word: Callable[[Message], None]) -> RemoteStation:
        """Give the station of a node; it connects when it is first asked for something."""
        adopt = self._adoption is not None and node in self._adoption.asked
        hello = {"job": self._job.id, "attempt": self._job.attempt, "adopt": adopt}
        self._stations[node] = RemoteStation(self._loop, self._posts[node], hello, on_word)
        return self._stations[node]

    # What the host wishes.

    def aim(self, seats: Sequence[Seat], posts: Mapping[str, Post]) -> None:
        """Have the job sit there, once it is known who lives."""
        standing, crew = self._supervisor.standing, self._supervisor.crew
        if standing.is_over or standing.is_retiring:
            return
        wanted = {self.node, *(seat.node for seat in seats)}
        assert seats, "a job that shall sit nowhere is retired"
        assert wanted <= posts.keys(), f"no post for {wanted - posts.keys()}"
        before, self._posts = self._posts, {**self._posts, **posts}
        is_first, self._seats = self._seats is None, tuple(seats)
        for node in [node for node, post in posts.items() if before.get(node, post) != post]:
            crew.forget_station(node, f"node {node} has a new agent")
        if is_first:
            self._begin(crew, wanted)
        if self._adoption is None:
            self._supervisor.set_target(seats)

    def lose(self, nodes: Sequence[str]) -> None:
        """Count workers on nodes as gone, though their stations have not said so."""
        for node in nodes:
            self._supervisor.crew.forget_station(node, f"the lease of node {node} is over")

    def aim_later(self) -> None:
        """Try seats again that were given up: their node may not have known of us yet."""
        self._loop.alarm("seats", time.monotonic() + SEATS_AGAIN_S, self._aim_again)

    def _aim_again(self) -> None:
        standing = self._supervisor.standing
        if self._seats and not (standing.is_over or standing.is_retiring):
            self._supervisor.set_target(self._seats)

    def retire(self) -> None:
        """Have the state made durable and everybody leave; before there is any, simply stop."""
        standing = self._supervisor.standing
        standing.is_retiring = True
        if standing.is_over or self._adoption is not None:
            return  # it ends by itself; or whoever is found is told afterwards
        if standing.coordinator.members and standing.coordinator.step and not standing.rigid:
            self._supervisor.set_target(())
        else:
            self._supervisor.stop(RETIRED)

    def _begin(self, crew: Crew, nodes: set[str]) -> None:
        if self._adopts:
            self._adoption = Adoption.of(nodes)
            for node in nodes:
                self._ask(crew, node)
        crew.open()

    def _ask(self, crew: Crew, node: str) -> None:
        """Ask a station who lives there."""
        crew.station(node)
        self._stations[node].connect()

    # What stations say.

    def on_living(self, node: str, word: Message) -> None:
        """Take in who lives at a station.

        Whoever is found later was given up before, or is another attempt's: killed.
        """
        if self._adoption is not None and node in self._adoption.asked:
            self._adoption.living(node, word, time.monotonic())
            self._end_adoption()
            return
        known = {(notes.seat.node, notes.number) for notes in self._supervisor.crew.notes}
        for each in word["workers"]:
            if (node, each["worker"]) not in known:
                self._stations[node].do({"do": "kill", "worker": each["worker"], "signal": 9})

    def on_unreachable(self, node: str) -> None:
        """Take in that a station can't be reached."""
        if self._adoption is not None:
            self._adoption.skip(node)
            self._end_adoption()

    def on_lost(self, node: str) -> None:
        """Ask a station anew that hung up: those who were found there may be gone, or not."""
        if self._adoption is not None:
            self._adoption.lose(node)
            self._ask(self._supervisor.crew, node)

    def on_unknown_gone(self, node: str, word: Message) -> None:
        """Take in that somebody who is not ours yet, or not any more, has exited."""
        if self._adoption is not None:
            self._adoption.gone(node, word)

    def on_superseded(self) -> None:
        """Leave everything as it is: a newer attempt has it."""
        self._supervisor.crew.abandon()
        self._supervisor.standing.exit_code = SUPERSEDED

    def _end_adoption(self) -> None:
        """Once all have answered, go on with those who were found, then toward the target."""
        adoption, standing = self._adoption, self._supervisor.standing
        if adoption is None or not adoption.is_done or standing.stopping is not None:
            return
        self._adoption = None
        self._supervisor.take_over(adoption)
        if standing.is_retiring:
            self.retire()
        elif standing.stopping is None:
            assert self._seats is not None
            self._supervisor.set_target(self._seats)
