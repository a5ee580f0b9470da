"""Who has the turn on a slot that several runs share. Pure.

    not there ──► at work ──► told to end its turn ──► waits ──► at work
    │                                                  └── resident on the GPU, or moved out of it
    └── its start is held by its job host

Who is at work and who waits is told by the job hosts, whatever was asked for: workers also die,
park and finish.

A turn ends at an update boundary, so it may last longer than asked for. What counts is the time
that each run has had: the one that has had least, by its weight, is next. A run that must leave is
let in before all others, as it leaves at its next boundary.

A run that runs out of memory while others are resident ends its turn, and the others move out.
From then on no run stays resident, as long as all of these share the slot.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from coddl.core.pool.records import RunId, SlotTurns

NO_SHOW_S: Final = 10.0  # after which a run that does not take its turn is passed over
MOVE_S: Final = 30.0  # how long a turn waits at most for other runs to move out
CONTEXT_BYTES: Final = 1 << 30  # of GPU memory that each process needs beside its tensors
FILL: Final = 0.95  # of the memory that runs may use together


@dataclass(frozen=True, slots=True)
class EndTurn:
    """Have a run end its turn; one that waits on the GPU moves out of it."""

    run: RunId
    resident: bool  # its tensors stay on the GPU


@dataclass(frozen=True, slots=True)
class BeginTurn:
    """Have a run begin its turn; one that was to end it goes on."""

    run: RunId
    crowded: bool = False  # others are resident on the GPU


TurnAction = EndTurn | BeginTurn


@dataclass(slots=True)
class _Member:
    """A run that takes turns."""

    weight: float
    joined_s: float
    had_s: float = 0.0  # of the slot's time, since then
    used_s: float | None = None  # by its weight, for the order of turns; None: has had no turn
    # Its tensors, if it waits; stuck: on the GPU, as it was to move out of it and could not.
    where: Literal["gpu", "moving", "stuck", "out"] = "out"
    peak_bytes: int | None = None  # of GPU memory; None: unknown
    leaves: bool = False
    is_told_end: bool = False  # to end its turn, and not to begin another since


@dataclass(slots=True)
class SharedSlot:
    """The runs that take turns on one slot, and whose turn it is."""

    memory_bytes: int | None = None  # that they may use together and stay there; None: any
    holder: RunId | None = None  # who has the turn
    _turn_s: float = 0.0
    _members: dict[RunId, _Member] = field(default_factory=dict)
    _at_work: RunId | None = None
    _ready: Collection[RunId] = ()  # whose runs can be told something
    _waiting: Collection[int] = ()  # jobs whose workers wait for their turn
    _since_s: float = 0.0  # the holder has had the turn; or others are moving out
    _has_come: bool = False  # the holder was at work since then
    _was_stuck: bool = False  # the holder has the turn again, as it could not move out
    _is_ending: bool = False  # the holder was told to end its turn
    _is_short: bool = False  # the holder has run out of memory: its turn ends
    _crowd: frozenset[RunId] = frozenset()  # the members when that happened last
    _report: SlotTurns = field(default_factory=SlotTurns)

    # What is known.

    def admit(
        self, runs: Mapping[RunId, float], leaving: Collection[RunId], turn_s: float, now_s: float
    ) -> None:
        """Have these runs take turns, by their weights.

        Who waits here and must leave needs the turn once more, though it has no right to another.
        """
        for run, each in list(self._members.items()):
            each.leaves = run in leaving
            if run not in runs and not (each.leaves and self._waits(run)):
                del self._members[run]
        for run, weight in runs.items():
            if run not in self._members:
                # Who was here alone has had its time; others begin as soon as they can.
                used_s = self._least_used_s if run == self._at_work else None
                self._members[run] = _Member(weight, now_s, used_s=used_s)
            self._members[run].weight = weight
        self._turn_s = turn_s or self._turn_s

    def note(
        self, at_work: RunId | None, waiting: Collection[int], ready: Collection[RunId]
    ) -> None:
        """Take in who is at work here, which jobs wait, and which runs can be told something."""
        self._at_work, self._waiting, self._ready = at_work, waiting, ready

    def note_ended(self, run: RunId, *, resident: bool, peak_bytes: int) -> None:
        """Take in that a run has ended its turn or moved out, and what memory it has needed."""
        if (member := self._members.get(run)) is None:
            return
        member.peak_bytes = peak_bytes
        if resident:
            member.where = "gpu" if member.where == "gpu" else "stuck"
        else:
            member.where = "out"

    def note_crowded(self, run: RunId) -> None:
        """Take in that a run has run out of memory while others were resident."""
        if run in self._members:
            self._crowd = frozenset(self._members)
            self._is_short |= run == self.holder

    @property
    def owner(self) -> RunId | None:
        """The run that may start processes here; not one that others have to make room for."""
        return None if self._is_short else self.holder

    @property
    def members(self) -> frozenset[RunId]:
        """The runs that take turns here, and the run that is at work if it is another."""
        return frozenset([*self._members, *([self._at_work] if self._at_work else [])])

    @property
    def is_shared(self) -> bool:
        """Tell whether turns matter: there are several runs, or one that waits or is about to."""
        is_kept = any(self._waits(run) or each.is_told_end for run, each in self._members.items())
        return is_kept or len(self.members) > 1

    @property
    def leavers(self) -> list[RunId]:
        """Who waits here and must leave."""
        return [run for run, each in self._members.items() if each.leaves and self._waits(run)]

    @property
    def report(self) -> SlotTurns:
        """Who has the turn, and the part of the time that each has had, at the last change."""
        return self._report

    # What follows.

    def look(self, now_s: float) -> list[TurnAction]:
        """Tell what to do now; again does no harm."""
        self._follow(now_s)
        if self.holder is None:
            return self._grant(now_s)
        if self._members.keys() == {self.holder}:  # the others have left
            self._is_short = False
            is_told_end = self._members[self.holder].is_told_end
            return self._tell_begin(self.holder) if is_told_end else []
        if self._at_work != self.holder or self._is_ending or self.holder not in self._ready:
            return []
        end_s = now_s if self._is_short else self._end_s()
        if end_s is None or now_s < end_s:
            return []
        resident, mine = self._fit(), self._members[self.holder]
        mine.where, mine.is_told_end = "gpu" if resident else "out", True
        self._is_ending = True
        return [EndTurn(self.holder, resident)]

    @property
    def wake_at_s(self) -> float | None:
        """When to look again if nothing happens before; None: nothing would change."""
        if self._at_work not in (None, self.holder) or self._is_ending:
            return None
        if self.holder is None:
            is_moving = any(each.where == "moving" for each in self._others_ready)
            return self._since_s + MOVE_S if is_moving else None
        if not self._others_ready or (self._has_come and self.holder not in self._ready):
            return None
        return self._end_s() if self._has_come else self._since_s + NO_SHOW_S

    def _follow(self, now_s: float) -> None:
        """Compare the holder with the run that is at work, and end or begin turns accordingly."""
        if self._at_work is not None:
            if self._at_work != self.holder and self._at_work in self._members:
                self._end(now_s)
                self._begin(self._at_work, now_s)  # it was quicker than our word
            self._has_come |= self._at_work == self.holder
            return
        is_late = not self._has_come and now_s >= self._since_s + NO_SHOW_S
        is_free = bool(self._others_ready) and (self._has_come or is_late)
        is_ending = self._is_ending or self._is_short
        if is_ending or self.holder not in self._members or is_free:
            self._end(now_s)

    def _grant(self, now_s: float) -> list[TurnAction]:
        """Give the turn to the next run, once there is memory for it."""
        ready = [run for run in self._members if self._would_come(run)]
        if not ready or self._at_work is not None:
            return []
        # A run that is stuck has the turn until it can move out: there is no room for the others.
        stuck = [run for run in ready if self._members[run].where == "stuck"]
        run = min(ready if self._fit() or not stuck else stuck, key=self._claim)
        others = {other: self._members[other] for other in ready if other != run}
        stay = {} if self._fit() else {o: m for o, m in others.items() if m.where == "gpu"}
        if stay:
            self._since_s = now_s
            for each in stay.values():
                each.where = "moving"
            return [EndTurn(other, resident=False) for other in stay]
        is_moving = any(each.where == "moving" for each in others.values())
        if is_moving and now_s < self._since_s + MOVE_S:
            return []
        self._begin(run, now_s)
        return self._tell_begin(run)

    def _tell_begin(self, run: RunId) -> list[TurnAction]:
        """Have a run begin its turn, or not end it."""
        self._is_ending = self._members[run].is_told_end = False
        others = [each for o, each in self._members.items() if o != run and self._waits(o)]
        return [BeginTurn(run, crowded=any(each.where != "out" for each in others))]

    def _claim(self, run: RunId) -> tuple[bool, bool, float]:
        """Order runs by who is next: who must leave, who has had no turn, who has had least."""
        member = self._members[run]
        return not member.leaves, member.used_s is not None, member.used_s or 0.0

    def _end_s(self) -> float | None:
        """When the holder's turn ends: after its time, and once another one has had less.

        At once if another one must leave, or is new; never while it must leave itself, or does.
        """
        if self.holder not in self._members:
            return None
        mine = self._members[self.holder]
        others = self._others_ready
        if mine.leaves or not others:
            return None
        has_new = any(each.used_s is None for each in others)
        is_urgent = any(each.leaves for each in others) or (has_new and mine.used_s is not None)
        if is_urgent and not self._was_stuck:
            return self._since_s
        length_s = self._turn_s * mine.weight
        least = min(each.used_s or 0.0 for each in others)
        ahead_s = 0.0 if mine.used_s is None else (least - mine.used_s) * mine.weight
        return self._since_s + max(length_s, ahead_s)

    def _begin(self, run: RunId, now_s: float) -> None:
        self.holder, self._since_s = run, now_s
        self._was_stuck = self._members[run].where == "stuck"
        self._members[run].where = "out"
        self._has_come = self._is_ending = self._is_short = False
        self._note_shares(now_s)

    def _end(self, now_s: float) -> None:
        """End the holder's turn, and add the time to its account."""
        member = self._members.get(self.holder) if self.holder is not None else None
        if member is not None:
            had_s = now_s - self._since_s
            member.had_s += had_s if self._has_come else 0.0
            if member.used_s is None:
                member.used_s = self._least_used_s  # its start does not count against it
            else:
                member.used_s += had_s / member.weight
        self.holder = None
        self._is_ending = self._has_come = self._is_short = False
        self._note_shares(now_s)

    def _note_shares(self, now_s: float) -> None:
        shares = {
            run.job: round(each.had_s / max(each.had_s, now_s - each.joined_s, 1e-9), 3)
            for run, each in self._members.items()
        }
        self._report = SlotTurns(self.holder.job if self.holder is not None else None, shares)

    @property
    def _least_used_s(self) -> float:
        """What those have had that have had least, of those that have had a turn."""
        used = [each.used_s for each in self._members.values() if each.used_s is not None]
        return min(used, default=0.0)

    @property
    def _others_ready(self) -> list[_Member]:
        runs = [run for run in self._members if run != self.holder and self._would_come(run)]
        return [self._members[run] for run in runs]

    def _would_come(self, run: RunId) -> bool:
        """Tell whether a run needs the turn; not if it leaves, and has left or never begun."""
        return run in self._ready and (self._waits(run) or not self._members[run].leaves)

    def _waits(self, run: RunId) -> bool:
        return run.job in self._waiting and run != self._at_work

    def _fit(self) -> bool:
        """Tell whether all of them fit into the GPU's memory together; unknown: they do not."""
        if self._crowd and self._crowd <= self._members.keys():
            return False  # whatever was measured
        if self.memory_bytes is None:
            return True
        needs = [each.peak_bytes for each in self._members.values()]
        known = [each + CONTEXT_BYTES for each in needs if each is not None]
        return len(known) == len(needs) and sum(known) <= FILL * self.memory_bytes
