"""What worker hosts record, and what a new lead makes of it. Tables; no processes."""

import pytest

from coddl.runtime.supervisor.adoption import Adoption
from coddl.runtime.supervisor.generations import Survivor, SurvivorsFound
from coddl.runtime.supervisor.job_status import StepTimer
from coddl.runtime.supervisor.retry_budget import JOINERS_MAX, RESTARTS_MAX, RetryBudget
from coddl.runtime.supervisor.worker_history import WorkerHistory
from coddl.runtime.supervisor.worker_record import WorkerRecord
from coddl.runtime.wire import Message

ARRIVED = {"is": "arrived", "parts": 8, "workers_max": 8, "virtual_nodes": 8, "steps": 100}
PREPARED = {"do": "prepare", "generation": 3, "members": [0, 2]}
COMMITTED = {"do": "commit", "generation": 3, "step": 5}
REGROUPED = {"do": "regroup", "generation": 4, "members": [2, 5]}
SWAPPED = {"is": "swapped", "generation": 3, "step": 7, "left": False}
LEFT = {"is": "swapped", "generation": 4, "step": 9, "left": True}
END_TURN = {"do": "end turn", "resident": False}
BEGIN_TURN = {"do": "begin turn"}
TURN_ENDED = {"is": "turn ended", "step": 9, "image": "slot-0.img", "resident": False}
TURN_BEGUN = {"is": "turn begun", "seconds": 0.1}
MOVED_OUT: dict[str, object] = {"awaits_turn": True, "image": "slot-0.img", "step": 9}

# What worker 2 said and was told, and what is remembered then.
STORIES: dict[str, tuple[list[Message], dict[str, object]]] = {
    "nothing": ([], {"has_state": False, "may_have_state": False, "step": 0, "arrived": None}),
    "it came to its loop": (
        [{"is": "prepared"}, ARRIVED],
        {"has_prepared": True, "arrived": ARRIVED, "may_have_state": False},
    ),
    "a group is being built": ([ARRIVED, PREPARED], {"may_have_state": False}),
    "it was told to change: it may have the state": (
        [ARRIVED, PREPARED, COMMITTED],
        {"may_have_state": True, "has_state": False},
    ),
    "a commit to what was cancelled means nothing": (
        [PREPARED, {"do": "cancel", "generation": 3}, COMMITTED],
        {"may_have_state": False},
    ),
    "whoever is told to regroup may have got the state": ([REGROUPED], {"may_have_state": True}),
    "it trains": (
        [PREPARED, COMMITTED, SWAPPED, {"is": "stepped", "step": 8}],
        {"has_state": True, "step": 8, "has_left": False},
    ),
    "it left": ([PREPARED, COMMITTED, SWAPPED, LEFT], {"has_left": True, "step": 9}),
    "it was told to end its turn: an adopting lead begins it": (
        [END_TURN],
        {"awaits_turn": True, "image": None},
    ),
    "it waits for its turn": ([END_TURN, TURN_ENDED], MOVED_OUT),
    "its turn has begun": (
        [END_TURN, TURN_ENDED, BEGIN_TURN, TURN_BEGUN],
        {"awaits_turn": False, "image": None},
    ),
    "its turn ended when it was told to begin it": (
        [END_TURN, BEGIN_TURN, TURN_ENDED],
        {"awaits_turn": False},
    ),
    "it ended its turn a second time": (
        [END_TURN, BEGIN_TURN, TURN_ENDED, TURN_BEGUN, END_TURN, TURN_ENDED],
        MOVED_OUT,
    ),
    "it was told to end its turn before it had heard that it begins": (
        [END_TURN, TURN_ENDED, BEGIN_TURN, END_TURN, TURN_ENDED],
        MOVED_OUT,
    ),
    "it was parked before its turn ended": (
        [END_TURN, {**LEFT, "parked": 64}],
        {"awaits_turn": False, "is_parked": True},
    ),
    "its loop is over": ([{"is": "ended", "step": 100}], {"has_ended": True, "step": 100}),
}


@pytest.mark.parametrize(("words", "want"), STORIES.values(), ids=STORIES.keys())
def test_a_worker_is_remembered(words: list[Message], want: dict[str, object]) -> None:
    history = WorkerHistory(2, slot=6)
    for word in words:
        history.told(word) if "do" in word else history.heard(word)
    data = history.as_data()
    assert want.items() <= data.items()
    assert WorkerHistory.from_data(data).as_data() == data, "a lead that adopts it knows the same"


def test_a_lead_knows_since_when_a_worker_has_its_turn_again() -> None:
    record = WorkerRecord(WorkerHistory(2, slot=6), "a", started_s=1.0, heard_s=1.0)
    record.hear(TURN_BEGUN, 2.0)
    assert (record.heard_s, record.turn_begun_s) == (1.0, 0.0), "it never had to wait"
    record.hear(TURN_ENDED, 3.0)
    assert (record.state, record.heard_s) == ("WAITING", 3.0)
    record.hear(TURN_BEGUN, 90.0)
    assert (record.state, record.heard_s, record.turn_begun_s) == ("STARTING", 90.0, 90.0)


def test_ranks_and_numbers_come_from_what_it_was_told() -> None:
    history = WorkerHistory(2, slot=6)
    history.told(PREPARED)
    assert (history.rank, history.generation, history.newest_worker) == (None, 3, 2)
    history.told(COMMITTED)
    history.heard(SWAPPED)
    assert history.rank == 1
    history.told(REGROUPED)
    assert (history.rank, history.generation, history.newest_worker) == (1, 4, 5)


def living(*workers: Message, gone: tuple[Message, ...] = (), **numbers: int) -> Message:
    numbers = {"generation": 0, "newest": -1} | numbers
    return {"is": "living", "workers": list(workers), "gone": list(gone), **numbers}


def worker(number: int, *words: Message) -> Message:
    history = WorkerHistory(number, slot=10 + number, gpu="1", pid=100 + number)
    for word in words:
        history.told(word) if "do" in word else history.heard(word)
    return history.as_data()


def test_a_new_lead_keeps_those_who_may_have_the_state() -> None:
    adoption = Adoption.of(["a", "b", "c"])
    trains = [ARRIVED, {**PREPARED, "members": [0, 1, 2, 3]}, COMMITTED, SWAPPED]
    adoption.living("a", living(worker(0, *trains), worker(1, *trains[:3]), generation=3), 5.0)
    done = [adoption.is_done]
    adoption.living("b", living(worker(2, *trains, LEFT), worker(4, ARRIVED), newest=6), 5.0)
    adoption.skip("c")
    done.append(adoption.is_done)
    assert done == [False, True]
    survivors = (Survivor(0, 10, 7, True), Survivor(1, 11, 0, False))
    assert adoption.found() == SurvivorsFound(survivors, 3, 6, 8, 8)
    assert adoption.useless() == [4]  # 2 leaves by itself
    assert {(record.number, record.node, record.history.pid) for record in adoption.records} == {
        (0, "a", 100), (1, "a", 101), (2, "b", 102), (4, "b", 104),
    }  # fmt: skip


ENDS = {
    "its script came to its end": ({"has_ended": True, "code": 0}, True),
    "it failed after its loop": ({"has_ended": True, "code": 1}, False),
    "it left": ({"has_ended": False, "code": 0}, False),
}


@pytest.mark.parametrize(("word", "finished"), ENDS.values(), ids=ENDS.keys())
def test_who_exited_unheard_may_have_finished_the_job(word: Message, finished: bool) -> None:
    adoption = Adoption.of(["a"])
    adoption.living("a", living(gone=({"is": "exited", "worker": 0, **word},)), 5.0)
    assert adoption.has_finished is finished
    assert adoption.found() == SurvivorsFound((), 0, -1, None)


def test_the_pace_counts_from_the_first_report_after_a_change() -> None:
    step_timer = StepTimer()
    assert (step_timer.step_s, step_timer.iterations) == (None, 0)
    for step, now_s in ((10, 1.0), (12, 2.0), (12, 2.5), (14, 3.0)):  # two workers, one behind
        step_timer.stepped(step, now_s)
    assert (step_timer.step_s, step_timer.iterations) == (0.5, 4)
    step_timer.restart()
    step_timer.stepped(15, 9.0)
    assert (step_timer.step_s, step_timer.iterations) == (None, 0)


def test_the_pace_leaves_out_pauses() -> None:
    step_timer = StepTimer()
    for step, now_s in ((10, 1.0), (12, 2.0)):
        step_timer.stepped(step, now_s)
    step_timer.pause()
    assert (step_timer.step_s, step_timer.iterations) == (0.5, 2)
    for step, now_s in ((13, 90.0), (15, 92.0)):
        step_timer.stepped(step, now_s)
    assert (step_timer.step_s, step_timer.iterations) == (0.75, 4)
    step_timer.restart()
    assert (step_timer.step_s, step_timer.iterations) == (None, 0)


def test_the_retry_budget_ends_unless_there_is_progress() -> None:
    retries = RetryBudget()
    assert [retries.allows_start() for _ in range(RESTARTS_MAX + 2)].index(False) == 4
    retries.stepped(1)
    assert retries.allows_start()
    assert [retries.allows_joiner() for _ in range(JOINERS_MAX + 1)].index(False) == 10
