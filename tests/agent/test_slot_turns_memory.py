"""Runs on one slot of which one runs out of memory: others make room, and it gets its turns."""

import pytest

from coddl.agent.slot_turns import BeginTurn, EndTurn, SharedSlot
from coddl.core.pool.records import RunId
from tests.agent.test_slot_turns import GB, TURN_S, A, B, C, Node


def crowded_node() -> Node:
    """Give a node where three runs stay on the GPU, and one of them has the turn."""
    node = Node(SharedSlot(memory_bytes=100 * GB))
    node.peaks = dict.fromkeys((A, B, C), GB)
    node.share(A, B, C)
    node.run(7 * TURN_S)
    assert node.resident == {A, B, C}
    assert node.at_work is not None
    node.resident.discard(node.at_work)
    node.story.clear()
    return node


def residents_told(node: Node) -> set[bool]:
    return {each.resident for _, each in node.story if isinstance(each, EndTurn)}


@pytest.mark.parametrize("is_gone_first", [True, False])
def test_who_runs_out_of_memory_beside_others_has_them_move_out(is_gone_first: bool) -> None:
    node = crowded_node()
    (run,) = {A, B, C} - node.resident
    if is_gone_first:
        node.die()
    node.slot.note_crowded(run)
    assert node.slot.owner is None
    node.look()
    if not is_gone_first:
        node.die()
    node.look()
    assert len(node.resident) == 1, "it has the turn"
    node.run(5 * TURN_S)
    assert run in node.begun
    assert residents_told(node) == {False}
    assert not any(each.crowded for _, each in node.story if isinstance(each, BeginTurn))


def test_who_starts_again_before_others_have_moved_out_ends_its_turn() -> None:
    node = crowded_node()
    (run,) = {A, B, C} - node.resident
    node.slot.note_crowded(run)
    node.run(1.0)  # there is a worker all the time, as far as is known
    assert node.story[0][1] == EndTurn(run, resident=False)
    assert len(node.resident) == 1
    node.run(5 * TURN_S)
    assert set(node.begun) == {A, B, C}


def test_after_memory_ran_out_nobody_stays_until_one_of_them_is_gone() -> None:
    node = crowded_node()
    (run,) = {A, B, C} - node.resident
    node.slot.note_crowded(run)
    node.run(5 * TURN_S)
    node.share(A, B, C, RunId(4, 1))
    node.run(10 * TURN_S)
    assert residents_told(node) == {False}
    node.leave(A)
    node.run(TURN_S)
    node.story.clear()
    node.run(5 * TURN_S)
    assert residents_told(node) == {True}


def test_who_finds_no_room_to_move_in_has_a_turn_when_others_are_out() -> None:
    slot = SharedSlot(memory_bytes=100 * GB)
    slot.note(None, {A.job, B.job}, {A, B})
    slot.admit({A: 1.0, B: 1.0}, (), TURN_S, 0.0)
    for run in (A, B):
        slot.note_ended(run, resident=False, peak_bytes=GB)
    assert slot.look(0.0) == [BeginTurn(A)]
    slot.note(A, {B.job}, {A, B})
    assert slot.look(TURN_S) == [EndTurn(A, resident=True)]
    slot.note_ended(A, resident=True, peak_bytes=GB)
    slot.note(None, {A.job, B.job}, {A, B})
    assert slot.look(TURN_S) == [BeginTurn(B, crowded=True)]
    slot.note_ended(B, resident=False, peak_bytes=GB)
    slot.note_crowded(B)
    assert slot.look(TURN_S) == [BeginTurn(A)], "it is there"
    slot.note(A, {B.job}, {A, B})
    assert slot.look(2 * TURN_S) == [EndTurn(A, resident=False)]
    slot.note_ended(A, resident=False, peak_bytes=GB)
    slot.note(None, {A.job, B.job}, {A, B})
    assert slot.look(2 * TURN_S) == [BeginTurn(B)]
