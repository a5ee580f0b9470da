"""Stories of workers that die, hang or can't build a group."""

import pytest

from coddl.runtime.supervisor.generations import WorkerStepped, WorkerSwapped
from tests.runtime.stories import (
    BUILDING_2,
    GROWING_2,
    HALVING,
    MOVING,
    SHRINKING,
    SWAPPING_2,
    Row,
    Stage,
    Story,
    after,
    arrived,
    broken,
    lost,
    ready,
    swapped,
    target,
    timed,
    unready,
)

STORIES = {
    "a joiner lost while starting is replaced": Story(
        1, [GROWING_2, (lost(1), "start 2@1")], ends=(0,), phase="starting"
    ),
    "three lost in a row: that slot is given up": Story(
        1, [GROWING_2, (lost(1, 2), "start 2@1; start 3@1"), (lost(3), "")], ends=(0,)
    ),
    "a given-up slot is tried again when it is asked for again": Story(
        1,
        [
            GROWING_2,
            (lost(1, 2, 3), "start 2@1; start 3@1"),
            (target(0, 1), "start 4@1"),
            (lost(4), "start 5@1"),
        ],
        ends=(0,),
        phase="starting",
    ),
    "who can't move stays, and is not suspended": Story(
        1, [(target(1), "start 1@1"), (lost(1, 2, 3), "start 2@1; start 3@1")], ends=(0,)
    ),
    "two lost and one arrived is a new count": Story(
        1,
        [
            GROWING_2,
            (lost(1, 2) + arrived(3), "start 2@1; start 3@1; prepare 2 [0:2 3:2] to 0 3"),
            (lost(3), "cancel 2 to 0; start 4@1"),
            (lost(4), "start 5@1"),
        ],
        ends=(0,),
        phase="starting",
    ),
    "a member lost: the rest regroup, then a replacement starts": Story(
        3,
        [
            (lost(1), "regroup 2 [0:2 2:2] to 0 2"),
            (swapped(2, 0), ""),
            (swapped(2, 2), "start 3@1"),
        ],
        ends=(0, 2),
        phase="starting",
    ),
    "a member lost while joiners start: they are kept": Story(
        2,
        [
            (target(0, 1, 2), "start 2@2"),
            (lost(1) + arrived(2), "regroup 3 [0:4] to 0"),
            (swapped(3, 0), "start 3@1"),
            (arrived(3), "prepare 4 [0:2 3:1 2:1] to 0 2 3"),
        ],
        ends=(0,),
        phase="building",
    ),
    "a member lost while building": Story(
        2,
        [
            (target(0, 2) + arrived(2), "start 2@2; prepare 2 [0:2 2:2] to 0 2"),
            (lost(1), "cancel 2 to 0 2; regroup 3 [0:4] to 0"),
            (swapped(3, 0), "prepare 4 [0:2 2:2] to 0 2"),
        ],
        ends=(0,),
        phase="building",
    ),
    "all who were told to prepare are lost: the cancel is for nobody": Story(
        2,
        [SHRINKING, (lost(0), "cancel 2 to ; regroup 3 [1:4] to 1")],
        ends=(1,),
        phase="regrouping",
    ),
    "the last member lost while building: fresh, with the joiner": Story(
        1,
        [BUILDING_2, (lost(0), "cancel 2 to 1; start 2@0"), (lost(2), "start 3@0")],
        ends=(),
        phase="starting",
    ),
    "the giver of a move lost while building: fresh": Story(
        1,
        [
            (target(1) + arrived(1), "start 1@1; prepare 2 [1:4] bridge 0 1 to 0 1"),
            (lost(0), "cancel 2 to 1; prepare 3 [1:4] fresh to 1"),
        ],
        ends=(),
        phase="building",
    ),
    "a joiner lost after the commit: the old ones regroup": Story(
        1,
        [SWAPPING_2, (lost(1), "regroup 3 [0:4] to 0"), (swapped(3, 0), "start 2@1")],
        (0,),
        "starting",
    ),
    "a member lost after the commit: a leaver stays for once": Story(
        4,
        [
            HALVING,
            (swapped(2, 3) + lost(3), ""),
            (lost(1), "regroup 3 [0:2 2:2] to 0 2"),
            (swapped(3, 0, 2), "start 4@1"),
        ],
        ends=(0, 2),
        phase="starting",
    ),
    "lost in a move: joiners who swapped regroup with leavers who did not": Story(
        2,
        [MOVING, (swapped(2, 0, 2), ""), (lost(3), "regroup 3 [1:2 2:2] to 1 2")],
        ends=(1, 2),
        phase="regrouping",
    ),
    "nobody known to hold the state: regrouping is fresh": Story(
        1, [SWAPPING_2, (lost(0), "regroup 3 [1:4] fresh to 1")], ends=(1,), phase="regrouping"
    ),
    "more than virtual nodes: who has no state is stopped": Story(
        4,
        [
            (target(0, 4, 5) + arrived(4), "start 4@4; start 5@5"),
            (arrived(5), "prepare 2 [0:2 4:1 5:1] to 0 4 5"),
            (ready(2, 0, 4, 5) + swapped(2, 4), "commit 2 after 11 to 0 1 2 3 4 5"),
            (lost(3), "stop 5; regroup 3 [0:1 1:1 2:1 4:1] to 0 1 2 4"),
        ],
        ends=(0, 1, 2, 4),
        phase="regrouping",
    ),
    "more than virtual nodes: who stays goes before who leaves": Story(
        4,
        [
            (target(4, 5) + arrived(4), "start 4@4; start 5@5"),
            (arrived(5), "prepare 2 [4:2 5:2] bridge 0 4 5 to 0 4 5"),
            (ready(2, 0, 4, 5) + swapped(2, 4, 5), "commit 2 after 11 to 0 1 2 3 4 5"),
            (lost(3), "stop 2; regroup 3 [0:1 1:1 4:1 5:1] to 0 1 4 5"),
        ],
        ends=(0, 1, 4, 5),
        phase="regrouping",
    ),
    "all lost: fresh on the same slots": Story(
        2,
        [(lost(0, 1), "regroup 2 [1:4] to 1; start 2@0; start 3@1")],
        ends=(),
        phase="starting",
    ),
    "lost while regrouping": Story(
        3,
        [(lost(1), "regroup 2 [0:2 2:2] to 0 2"), (lost(0), "regroup 3 [2:4] to 2")],
        ends=(2,),
        phase="regrouping",
    ),
    "unready while regrouping: once more, and one word is enough": Story(
        2,
        [
            (broken(1, 0) + after(0.5), "regroup 2 [0:2 1:2] to 0 1"),
            (unready(2, 0, 1), "regroup 3 [0:2 1:2] to 0 1"),
            (swapped(3, 0, 1), ""),
        ],
        ends=(0, 1),
    ),
    "a broken group waits to hear who died": Story(
        2, [(broken(1, 0), ""), (lost(1), "regroup 2 [0:4] to 0")], ends=(0,), phase="regrouping"
    ),
    "a broken group in which nobody died regroups as it is": Story(
        2,
        [(broken(1, 0), ""), (after(0.4), ""), (after(0.1), "regroup 2 [0:2 1:2] to 0 1")],
        ends=(0, 1),
        phase="regrouping",
    ),
    "a joiner that never answers: it is stopped, and another is tried": Story(
        1,
        [
            BUILDING_2,
            (ready(2, 0) + after(299.9), ""),
            (after(0.1), "stop 1; cancel 2 to 0"),
            (after(0.5), "start 2@1"),
            (arrived(2) + ready(3, 0, 2), "prepare 3 [0:2 2:2] to 0 2; commit 3 after 11 to 0 2"),
            (swapped(3, 0, 2), ""),
        ],
        ends=(0, 2),
    ),
    "a member that never answers: it is asked again": Story(
        1,
        [
            BUILDING_2,
            (ready(2, 1) + after(300), "cancel 2 to 0 1; prepare 3 [0:2 1:2] to 0 1"),
            (ready(3, 0, 1) + swapped(3, 0, 1), "commit 3 after 11 to 0 1"),
        ],
        ends=(0, 1),
    ),
    "broken while building: cancelled, for nobody could reach the step": Story(
        1, [BUILDING_2, (broken(1, 0), "cancel 2 to 0 1")], ends=(0,), phase="broken"
    ),
    "broken during the swap: leavers still leave": Story(
        4,
        [
            HALVING,
            (broken(2, 0) + swapped(2, 2, 3), ""),
            (after(0.5), "regroup 3 [0:2 1:2] to 0 1"),
        ],
        ends=(0, 1),
        phase="regrouping",
    ),
    "broken in the old group after the commit": Story(
        1,
        [SWAPPING_2, (broken(1, 0), ""), (after(0.5), "stop 1; regroup 3 [0:4] to 0")],
        ends=(0,),
        phase="regrouping",
    ),
    "broken before the last word of the swap was heard": Story(
        1,
        [
            SWAPPING_2,
            (swapped(2, 0) + broken(2, 0) + swapped(2, 1), ""),
            (after(0.5), "regroup 3 [0:2 1:2] to 0 1"),
        ],
        ends=(0, 1),
        phase="regrouping",
    ),
    "a target while broken is remembered": Story(
        2,
        [
            (broken(1, 0) + target(0), ""),
            (after(0.5), "regroup 2 [0:2 1:2] to 0 1"),
            (swapped(2, 0, 1), "prepare 3 [0:4] to 0"),
        ],
        ends=(0, 1),
        phase="building",
    ),
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_story(story: Story) -> None:
    Stage(story.members).tell(story)


def test_wake_at_says_when_to_come_back() -> None:
    stage = Stage(1)
    wishes_s = [stage.coordinator.wake_at_s]
    for events in (broken(1, 0), after(0.5)):
        stage.play(events)
        wishes_s.append(stage.coordinator.wake_at_s)
    assert wishes_s == [None, stage.now_s, None]


def test_a_slot_that_is_given_up_is_exposed() -> None:
    stage = Stage(1)
    stage.play(target(0, 1) + lost(1, 2, 3))
    assert stage.coordinator.failed_slots == {1}
    stage.play(target(0))
    assert stage.coordinator.failed_slots == set()


def test_joiners_with_whom_no_group_can_be_built_are_given_up() -> None:
    stage = Stage(1)
    stage.play(target(0, 1) + arrived(1))
    for generation in range(2, 6):
        said = stage.play(unready(generation, 0, 1))
        assert said.startswith(f"cancel {generation} to 0 1; prepare {generation + 1}")
    assert stage.play(unready(6, 0, 1)) == "cancel 6 to 0 1; stop 1"
    assert stage.coordinator.failed_slots == {1}
    assert not stage.coordinator.hopeless
    assert stage.coordinator.members == (0,)


def test_failures_that_ended_in_a_group_do_not_count_any_more() -> None:
    stage = Stage(1)
    stage.play(target(0, 1) + arrived(1))
    for generation in range(2, 6):
        stage.play(unready(generation, 0, 1))
    stage.play(ready(6, 0, 1) + swapped(6, 0, 1))
    stage.play(lost(1) + swapped(7, 0) + arrived(2))
    assert stage.play(unready(8, 0, 2)).startswith("cancel 8 to 0 2; prepare 9")


def test_a_smaller_group_that_cannot_be_built_leaves_the_old_one_training() -> None:
    stage = Stage(2)
    stage.play(target(0))
    for generation in range(2, 6):
        assert stage.play(unready(generation, 0)).startswith(f"cancel {generation} to 0; prepare")
    assert stage.play(unready(6, 0)) == "cancel 6 to 0"
    assert stage.coordinator.hopeless
    assert (stage.coordinator.phase, stage.coordinator.members) == ("steady", (0, 1))
    said = stage.play(timed(20, w0=0.3, w1=0.1) + after(10.1) + timed(1, w0=0.3))
    assert said == "", "rebalances toward a target it gave up"


def stuck() -> Stage:
    """Give two members of whom every regroup failed."""
    stage = Stage(2)
    said = stage.play(broken(1, 0) + after(0.5))
    for generation in range(2, 7):
        assert said == f"regroup {generation} [0:2 1:2] to 0 1"
        assert not stage.coordinator.hopeless
        said = stage.play(unready(generation, 0, 1))
    assert said == ""
    return stage


def test_members_who_cannot_regroup_are_hopeless() -> None:
    assert stuck().coordinator.hopeless


WAYS_OUT: dict[str, list[Row]] = {
    "a new target": [(target(0), "regroup 7 [0:2 1:2] to 0 1")],
    "one is lost": [(lost(1), "regroup 7 [0:4] to 0"), (swapped(7, 0), "start 2@1")],
    "all are lost": [(lost(1), "regroup 7 [0:4] to 0"), (lost(0), "start 2@0; start 3@1")],
}


@pytest.mark.parametrize("rows", WAYS_OUT.values(), ids=WAYS_OUT.keys())
def test_there_is_hope_again_when(rows: list[Row]) -> None:
    stage = stuck()
    for events, want in rows:
        assert stage.play(events) == want
    assert not stage.coordinator.hopeless


def test_regrouping_again_and_again_without_a_step_is_hopeless() -> None:
    stage = Stage(2)
    for generation in range(1, 6):
        said = stage.play(broken(generation, 0) + after(0.5) + swapped(generation + 1, 0, 1))
        assert said == f"regroup {generation + 1} [0:2 1:2] to 0 1"
    stage.play(broken(6, 0) + after(0.5))
    assert stage.coordinator.hopeless


def test_a_step_in_between_is_a_success() -> None:
    stage = Stage(2)
    for generation in range(1, 20):
        stage.play(broken(generation, 0) + after(0.5) + swapped(generation + 1, 0, 1))
        stage.play([WorkerStepped(0, 10 + generation, None)])
    assert not stage.coordinator.hopeless


def test_a_restart_forgets_steps_that_an_older_image_takes_back() -> None:
    stage = Stage(1)
    stage.play([WorkerStepped(0, 500, None), *lost(0), *arrived(1), *ready(2, 1)])
    stage.play([WorkerSwapped(1, 2, 300), *target(0, 1), *arrived(2)])
    assert stage.play(ready(3, 1, 2)) == "commit 3 after 301 to 1 2"
