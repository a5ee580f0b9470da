"""Turns on one slot, with a clock of our own and workers that do as they are told."""

import random
from dataclasses import dataclass, field

import pytest

from coddl.agent.slot_turns import MOVE_S, NO_SHOW_S, BeginTurn, EndTurn, SharedSlot, TurnAction
from coddl.core.pool.records import RunId

A, B, C = RunId(1, 1), RunId(2, 1), RunId(3, 1)
TURN_S = 10.0
GB = 1 << 30


@dataclass
class Node:
    """A node with one shared slot, whose workers need `boundary_s` to end a turn."""

    slot: SharedSlot = field(default_factory=SharedSlot)
    boundary_s: float = 0.1
    begin_s: float = 0.2  # until it is at work
    now_s: float = 0.0
    weights: dict[RunId, float] = field(default_factory=dict)
    leaving: set[RunId] = field(default_factory=set)
    at_work: RunId | None = None
    ready: set[RunId] = field(default_factory=set)
    waiting: set[int] = field(default_factory=set)  # jobs
    resident: set[RunId] = field(default_factory=set)
    peaks: dict[RunId, int] = field(default_factory=dict)
    story: list[tuple[float, TurnAction]] = field(default_factory=list)
    had_s: dict[RunId, float] = field(default_factory=dict)
    _ends_at_s: float | None = None
    _begins: tuple[RunId, float] | None = None

    def share(self, *runs: RunId, **weights: float) -> None:
        """Have runs share the slot, all ready; weights by the name of the run."""
        names = {A: "a", B: "b", C: "c"}
        self.weights = {run: weights.get(names.get(run, ""), 1.0) for run in runs}
        self.ready = {*runs}
        self.admit()

    def admit(self) -> None:
        self.slot.note(self.at_work, self.waiting, self.ready)
        self.slot.admit(self.weights, self.leaving, TURN_S, self.now_s)

    def look(self) -> None:
        actions: list[TurnAction] | None = None
        while actions is None or actions:
            self.slot.note(self.at_work, self.waiting, self.ready)
            actions = self.slot.look(self.now_s)
            self._do(actions)

    def _do(self, actions: list[TurnAction]) -> None:
        for action in actions:
            assert (self.now_s, action) not in self.story, "told twice"
            self.story.append((self.now_s, action))
            match action:
                case EndTurn(run, resident) if run == self.at_work:
                    self._ends_at_s = self.now_s + self.boundary_s
                    (self.resident.add if resident else self.resident.discard)(run)
                case EndTurn(run, resident):
                    assert run in self.resident, "only who stays can move out"
                    assert not resident
                    self.resident.discard(run)
                    self.slot.note_ended(run, resident=False, peak_bytes=self.peaks.get(run, 0))
                case BeginTurn(run) if run == self.at_work:
                    self._ends_at_s = None
                case BeginTurn(run):
                    assert self.at_work is None, "one at a time"
                    self._begins = (run, self.now_s + self.begin_s)
                    self._ends_at_s = None

    def run(self, seconds: float) -> None:
        """Let time pass, in steps of a tenth of a second."""
        for _ in range(round(seconds / 0.1)):
            if self.at_work is not None:
                self.had_s[self.at_work] = self.had_s.get(self.at_work, 0.0) + 0.1
            self.now_s += 0.1
            if self._begins is not None and self.now_s >= self._begins[1]:
                self.at_work, self._begins = self._begins[0], None
                self.waiting.discard(self.at_work.job)
                self.admit()
            if self._ends_at_s is not None and self.now_s >= self._ends_at_s:
                self.end_turn()
            self.look()

    def end_turn(self) -> None:
        run, self.at_work, self._ends_at_s = self.at_work, None, None
        assert run is not None
        self.waiting.add(run.job)
        peak = self.peaks.get(run, 0)
        self.slot.note_ended(run, resident=run in self.resident, peak_bytes=peak)

    def die(self) -> None:
        """Have the worker that is at work die, and not come back."""
        self.at_work = self._ends_at_s = self._begins = None

    def leave(self, run: RunId) -> None:
        """Have a run end where it is."""
        self.weights.pop(run, None)
        self.ready.discard(run)
        self.leaving.discard(run)
        self.waiting.discard(run.job)
        if self.at_work == run:
            self.at_work = self._ends_at_s = None
        if self._begins is not None and self._begins[0] == run:
            self._begins = None
        self.admit()

    @property
    def begun(self) -> list[RunId]:
        return [each.run for _, each in self.story if isinstance(each, BeginTurn)]


def test_runs_take_turns_and_have_the_same_time() -> None:
    node = Node(boundary_s=0.4)
    node.share(A, B, C)
    node.run(330.0)
    assert node.begun[:6] == [A, B, C, A, B, C]
    times = [node.had_s[run] for run in (A, B, C)]
    assert max(times) - min(times) <= TURN_S + 1.0, "one of them has the turn"


def test_who_has_long_steps_does_not_get_more() -> None:
    node = Node()
    node.share(A, B)
    for _ in range(3000):
        node.boundary_s = 7.0 if node.at_work == A else 0.1
        node.run(0.1)
    assert node.had_s[A] == pytest.approx(node.had_s[B], rel=0.1)


def test_time_goes_by_weight() -> None:
    node = Node()
    node.share(A, B, a=3.0)
    node.run(400.0)
    assert node.had_s[A] / node.had_s[B] == pytest.approx(3.0, rel=0.1)


def test_a_run_alone_is_left_alone() -> None:
    node = Node(at_work=A)
    node.share(A)
    node.run(100.0)
    assert node.story == []
    assert not node.slot.is_shared
    assert node.slot.wake_at_s is None


def test_who_comes_new_begins_at_once_and_has_a_whole_turn() -> None:
    node = Node(at_work=A)
    node.share(A)
    node.run(3.0)
    node.share(A, B)
    node.run(1.0)
    assert node.at_work == B
    node.run(TURN_S - 1.0)
    assert node.at_work == B
    node.run(1.0)
    assert node.at_work == A


def test_the_start_of_a_run_does_not_count_against_it() -> None:
    node = Node(at_work=A)
    node.share(A, B)
    node.run(0.5)
    node.boundary_s = 60.0  # it has to start
    node.run(70.5)
    node.boundary_s = 0.1
    assert node.at_work == A
    node.run(TURN_S)
    assert node.at_work == B


def test_who_must_leave_is_let_in_and_the_others_go_on() -> None:
    node = Node()
    node.share(A, B, C)
    node.run(25.0)
    assert node.at_work == C
    node.leaving.add(A)
    del node.weights[A]  # it has no right to another turn
    while node.at_work != A:
        node.admit()  # as after any news
        assert node.slot.leavers == [A], "it is still there"
        node.run(0.1)
    node.run(0.1)
    assert node.slot.leavers == []
    node.run(3 * TURN_S)
    assert node.at_work == A, "as long as it takes"
    node.leave(A)
    node.run(0.5)
    assert node.at_work in (B, C)
    node.run(100.0)
    assert node.had_s[B] == pytest.approx(node.had_s[C], abs=TURN_S + 1)


def test_who_has_not_begun_and_must_leave_needs_no_turn() -> None:
    node = Node()
    node.share(A, B)
    node.run(1.0)
    del node.weights[B]
    node.leaving.add(B)
    node.admit()
    node.run(30.0)
    assert node.begun == [A]


def test_when_the_others_are_gone_the_last_one_goes_on() -> None:
    node = Node()
    node.share(A, B)
    node.run(15.0)
    assert node.at_work == B
    node.leave(B)
    node.run(0.5)
    assert node.at_work == A
    assert not node.slot.is_shared


def test_a_turn_that_was_about_to_end_goes_on_if_nobody_else_is_left() -> None:
    node = Node(boundary_s=5.0)
    node.share(A, B)
    node.run(12.0)
    assert isinstance(node.story[-1][1], EndTurn)
    node.leave(B)
    node.run(5.0)
    assert node.at_work == A


def test_who_does_not_come_is_passed_over() -> None:
    node = Node()
    node.share(A, B)
    node.run(1.0)
    node.die()
    node.run(0.5)
    assert node.at_work == B
    node.die()
    node.ready.discard(A)
    node.run(NO_SHOW_S + 1)
    assert node.slot.holder == B, "there is nobody else"
    node.ready.add(A)
    node.run(0.5)
    assert node.at_work == A


def test_whoever_is_at_work_has_the_turn() -> None:
    node = Node()
    node.share(A, B)
    node.look()
    node.die()
    node.at_work = B  # started before it heard that it is not its turn
    node.run(1.0)
    assert node.slot.holder == B
    node.run(TURN_S)
    assert node.at_work == A


def test_runs_that_fit_together_stay_on_the_gpu() -> None:
    node = Node(SharedSlot(memory_bytes=100 * GB))
    node.peaks = {A: 40 * GB, B: 40 * GB}
    node.share(A, B)
    node.run(100.0)
    ends = [each.resident for _, each in node.story if isinstance(each, EndTurn)]
    assert ends[:2] == [False, False], "what they need is not known before"
    assert all(ends[2:])
    node.peaks[C] = 30 * GB
    node.share(A, B, C)
    node.run(0.1)
    assert node.at_work != C, "there is no room for it yet"
    node.run(1.0)
    assert node.at_work == C
    assert node.resident == set()
    node.run(100.0)
    ends = [each.resident for _, each in node.story if isinstance(each, EndTurn)]
    assert not any(ends[-3:])


def test_without_a_limit_all_stay_and_without_memory_none() -> None:
    for memory, stays in ((None, True), (0, False)):
        node = Node(SharedSlot(memory_bytes=memory))
        node.share(A, B)
        node.run(50.0)
        ends = [each.resident for _, each in node.story if isinstance(each, EndTurn)]
        assert ends
        assert set(ends) == {stays}


def test_nobody_waits_for_ever_for_others_to_move_out() -> None:
    slot = SharedSlot(memory_bytes=100 * GB)
    slot.note(A, (), {A, B})
    slot.admit({A: 1.0, B: 1.0}, (), TURN_S, 0.0)
    for run in (A, B):
        slot.note_ended(run, resident=False, peak_bytes=GB)
    assert slot.look(20.0) == [EndTurn(A, resident=True)]
    slot.note_ended(A, resident=True, peak_bytes=GB)
    slot.note(None, {A.job}, {A, B, C})
    slot.admit({A: 1.0, B: 1.0, C: 1.0}, (), TURN_S, 20.0)
    assert slot.look(21.0) == [EndTurn(A, resident=False)]
    assert slot.look(22.0) == []
    assert slot.wake_at_s == 21.0 + MOVE_S
    (begin,) = slot.look(21.0 + MOVE_S)
    assert isinstance(begin, BeginTurn)


def test_who_cannot_move_out_has_the_turn_until_it_can() -> None:
    slot = SharedSlot(memory_bytes=0)
    slot.note(A, (), {A, B})
    slot.admit({A: 1.0, B: 1.0}, (), TURN_S, 0.0)
    assert slot.look(20.0) == [EndTurn(A, resident=False)]
    slot.note_ended(A, resident=True, peak_bytes=GB)
    slot.note(None, {A.job}, {A, B})
    assert slot.look(21.0) == [BeginTurn(A)]
    slot.note(A, (), {A, B})
    assert slot.look(22.0) == [], "not again and again, though the other one is new"
    assert slot.look(21.0 + TURN_S) == [EndTurn(A, resident=False)]
    slot.note_ended(A, resident=False, peak_bytes=GB)
    slot.note(None, {A.job}, {A, B})
    assert slot.look(22.0 + TURN_S) == [BeginTurn(B)]


def test_who_waits_is_not_forgotten_if_another_is_quicker() -> None:
    node = Node()
    node.share(A, B)
    node.run(TURN_S + 1.0)
    assert node.at_work == B
    node.die()
    node.look()
    assert node.slot.holder == A
    node.die()
    node.at_work = B  # it was restarted before it heard
    node.run(0.1)
    assert node.slot.holder == B
    node.leaving.add(A)
    node.admit()
    assert node.slot.leavers == [A]
    node.run(1.0)
    assert node.at_work == A


def test_who_parks_where_its_turn_was_to_end_gets_no_other() -> None:
    node = Node(boundary_s=5.0)
    node.share(A, B)
    node.run(TURN_S + 1.0)
    assert isinstance(node.story[-1][1], EndTurn)
    node.leaving.add(A)
    del node.weights[A]
    node.admit()
    node.die()  # as it is parked
    node.run(0.5)
    assert node.slot.leavers == []
    assert node.at_work == B


def test_nothing_is_due_while_a_stranger_is_there() -> None:
    node = Node()
    node.share(A, B)
    node.run(1.0)
    node.slot.note(C, (), {A, B})
    assert node.slot.look(50.0) == []
    assert node.slot.wake_at_s is None


def test_who_cannot_be_told_is_not_told() -> None:
    node = Node(at_work=A)
    node.share(A, B)
    node.ready.discard(A)
    node.run(30.0)
    assert node.story == []
    assert node.slot.wake_at_s is None
    node.ready.add(A)
    node.run(0.2)
    assert node.story[0][1] == EndTurn(A, resident=True)


def test_what_each_has_had_is_told() -> None:
    node = Node()
    node.share(A, B)
    node.run(205.0)
    report = node.slot.report
    assert node.at_work is not None
    assert report.job == node.at_work.job
    assert report.shares[A.job] == pytest.approx(0.5, abs=0.06)
    assert report.shares[B.job] == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_comes_one_is_at_work_and_everybody_gets_turns(seed: int) -> None:
    chance = random.Random(seed)
    memory = chance.choice([None, 0, 100 * GB])
    node = Node(SharedSlot(memory_bytes=memory), boundary_s=chance.uniform(0.1, 3.0))
    runs = [RunId(number, 1) for number in range(1, 6)]
    node.peaks = {run: chance.choice([1, 30]) * GB for run in runs}
    for _ in range(60):
        run = chance.choice(runs)
        match chance.randrange(7):
            case 0 | 1:
                node.weights[run] = 1.0
                node.ready.add(run)
            case 2:
                node.leave(run)
            case 3 if run in node.weights:  # told to park: it needs the turn once more, and goes
                node.leaving.add(run)
                del node.weights[run]
            case 4 if node.at_work == run:
                node.die()
            case 5 if run in node.weights:
                (node.ready.discard if run in node.ready else node.ready.add)(run)
            case 6 if node.at_work == run:
                node.slot.note_crowded(run)
                chance.choice([node.die, node.look])()
        node.admit()
        node.run(chance.uniform(0.1, 8.0))
        assert node.at_work is None or node.at_work == node.slot.holder
        for left in node.leaving & {node.at_work}:
            node.leave(left)
    for left in list(node.leaving):
        node.leave(left)
    node.ready |= node.weights.keys()
    node.admit()
    if node.at_work is None and node._begins is None and node.slot.owner in node.weights:
        node.at_work = node.slot.owner  # whose worker has died starts another one
    node.had_s.clear()
    node.run(20 * (TURN_S + 4.0))
    assert node.weights.keys() <= node.had_s.keys()
