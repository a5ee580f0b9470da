"""What a worker host records of a worker, for a lead that adopts the worker. Pure."""

from dataclasses import dataclass, field

from coddl.runtime.wire import Message


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
    is_parked: bool = False  # it waits, without its GPU
    ends_turn: bool = False  # it was told to
    awaits_turn: bool = False  # it has ended its turn, and waits for the next one
    image: str | None = None  # then: its state, if that is not on its GPU
    has_ended: bool = False
    generation: int = 0  # the highest number it was told
    newest_worker: int = 0  # the highest number it was told
    _begins_turn: bool = False  # it was told to, and has not said that it did
    _members: dict[int, list[int]] = field(default_factory=dict)  # of generations to come

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
        return {
            "worker": self.worker,
            "slot": self.slot,
            "gpu": self.gpu,
            "pid": self.pid,
            "has_prepared": self.has_prepared,
            "arrived": self.arrived,
            "step": self.step,
            "has_state": self.has_state,
            "may_have_state": self.may_have_state or self.has_state,
            "has_left": self.has_left,
            "is_parked": self.is_parked,
            "awaits_turn": self.awaits_turn or self.ends_turn,
            "image": self.image,
            "has_ended": self.has_ended,
        }
