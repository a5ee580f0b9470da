"""What is known of a worker from the messages that it was told and has said. Pure.

Its worker host and its lead keep the same history of it, so a new lead can go on from the host's.
"""

from dataclasses import dataclass, field
from typing import Final, Self

from coddl.runtime.wire import Message

# What an adopting lead must know; the rest follows from what it tells the worker itself.
ADOPTED: Final = (
    *("worker", "slot", "gpu", "pid", "has_prepared", "arrived", "step", "has_state"),
    *("may_have_state", "has_left", "is_parked", "awaits_turn", "image", "has_ended"),
)


@dataclass(slots=True)
class WorkerHistory:
    """The history of a worker, from the messages that it sent and was sent."""

    worker: int
    slot: int
    gpu: str | None = None
    pid: int | None = None
    has_prepared: bool = False
    arrived: Message | None = None  # what it said when it came to its loop
    step: int = 0
    rank: int | None = None  # None: of no group
    has_state: bool = False  # it trains, or did
    may_have_state: bool = False  # it was told to change to a group that has some
    has_left: bool = False
    is_parked: bool = False  # out of its group, it waits without its GPU
    ends_turn: bool = False  # it was told to
    awaits_turn: bool = False  # it has ended its turn, and waits for the next one
    image: str | None = None  # then: its state, if that is not on its GPU
    has_ended: bool = False
    generation: int = 0  # the highest number it was told
    newest_worker: int = 0  # the highest number it was told
    _begins_turn: bool = False  # it was told to, and has not said that it did
    _members: dict[int, list[int]] = field(default_factory=dict)  # of generations to come

    @property
    def has_arrived(self) -> bool:
        return self.arrived is not None

    @property
    def is_out(self) -> bool:
        """Tell whether it is of no group any more: it exits, or is parked."""
        return self.has_left or self.is_parked

    def told(self, word: Message) -> None:
        """Take in what the lead says to it."""
        generation = int(word.get("generation", 0))
        self.generation = max(self.generation, generation)
        match word["do"]:
            case "prepare" | "regroup":
                members = self._members[generation] = list(word["members"])
                self.newest_worker = max([self.newest_worker, *members])
                self.may_have_state |= word["do"] == "regroup" and self.worker in members
            case "commit":
                self.may_have_state |= self.worker in self._members.get(generation, ())
            case "cancel":
                self._members.pop(generation, None)
            case "unpark":
                self.is_parked = False
            case "end turn":
                self.ends_turn, self._begins_turn = True, False
            case "begin turn":
                self.ends_turn = self.awaits_turn = False
                self._begins_turn = True

    def heard(self, word: Message) -> None:
        """Take in what it says itself."""
        match word["is"]:
            case "prepared":
                self.has_prepared = True
            case "arrived":
                self.arrived = word
            case "stepped":
                self.step = word["step"]
            case "swapped":
                self._on_swapped(word)
            # Unless it could not begin, it said so before it heard that it is to begin.
            case "turn ended" if word.get("crowded") or not self._begins_turn:
                self.step, self.awaits_turn, self.image = word["step"], True, word["image"]
                self._begins_turn = False
            case "turn begun":
                self.awaits_turn = self._begins_turn = False
                self.image = None
            case "ended":
                self.step, self.has_ended = word["step"], True

    def _on_swapped(self, word: Message) -> None:
        generation, self.step = word["generation"], word["step"]
        self.is_parked = word.get("parked") is not None
        self.has_left = bool(word["left"]) and not self.is_parked
        self.ends_turn &= not self.is_parked
        members = self._members.get(generation, [])
        self.rank = members.index(self.worker) if self.worker in members else None
        self.has_state = True
        self._members = {g: who for g, who in self._members.items() if g > generation}

    def as_data(self) -> Message:
        """Give what an adopting lead must know."""
        data = {name: getattr(self, name) for name in ADOPTED}
        data["may_have_state"] |= self.has_state
        data["awaits_turn"] |= self.ends_turn  # it may end it at any time
        return data

    @classmethod
    def from_data(cls, data: Message) -> Self:
        """Take over what `as_data` gave at its worker host."""
        return cls(**{name: data[name] for name in ADOPTED})
