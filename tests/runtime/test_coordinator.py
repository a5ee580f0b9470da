"""The protocol as stories: what happens, and what the Coordinator then wants done."""

import re

import pytest

from coddl.runtime.supervisor.generations import TargetSet, WorkerStepped
from tests.runtime.stories import (
    BUILDING_2,
    GROWING_2,
    HALVING,
    MOVING,
    SHRINKING,
    SWAPPING_2,
    After,
    Stage,
    Story,
    after,
    arrived,
    broken,
    ended,
    lost,
    ready,
    swapped,
    target,
    timed,
    unready,
)

PLANNED = {
    "the first start is fresh, and commits at once": Story(
        0,
        [
            (target(0, 1), "start 0@0; start 1@1"),
            (arrived(0), ""),
            (arrived(1), "prepare 1 [0:2 1:2] fresh to 0 1"),
            (ready(1, 0), ""),
            (ready(1, 1), "commit 1 after 0 to 0 1"),
            (swapped(1, 0, 1), ""),
        ],
        ends=(0, 1),
    ),
    "growing starts only who is missing": Story(
        1, [SWAPPING_2, (swapped(2, 0), ""), (swapped(2, 1), "")], ends=(0, 1)
    ),
    "a swap under way is not steady": Story(
        1, [SWAPPING_2, (swapped(2, 0), "")], ends=(0,), phase="swapping"
    ),
    "shrinking prepares at once; leavers hear the commit alone": Story(
        2,
        [
            SHRINKING,
            (ready(2, 0), "commit 2 after 11 to 0 1"),
            (swapped(2, 1) + lost(1), ""),
            (swapped(2, 0), ""),
        ],
        ends=(0,),
    ),
    "one moves: the survivor hands over, no bridge": Story(
        2,
        [(target(0, 2) + arrived(2), "start 2@2; prepare 2 [0:2 2:2] to 0 2")],
        (0, 1),
        "building",
    ),
    "all move: the oldest bridges": Story(2, [MOVING, (swapped(2, 0, 1, 2, 3), "")], ends=(2, 3)),
    "a suspension is a generation without members": Story(
        2,
        [
            (target(), "prepare 2 [] to 0 1"),
            (ready(2, 0, 1), "commit 2 after 11 to 0 1"),
            (swapped(2, 0, 1) + lost(0, 1), ""),
        ],
        ends=(),
    ),
    "resuming is fresh, with new numbers": Story(
        1,
        [
            (target() + ready(2, 0), "prepare 2 [] to 0; commit 2 after 11 to 0"),
            (swapped(2, 0) + target(0), "start 1@0"),
            (arrived(1) + ready(3, 1), "prepare 3 [1:4] fresh to 1; commit 3 after 0 to 1"),
            (swapped(3, 1), ""),
        ],
        ends=(1,),
    ),
    "a target beyond the virtual nodes is cut": Story(
        0,
        [
            (target(0, 1, 2, 3, 4), "start 0@0; start 1@1; start 2@2; start 3@3; start 4@4"),
            (arrived(0), "stop 4"),
            (arrived(1, 2, 3), "prepare 1 [0:1 1:1 2:1 3:1] fresh to 0 1 2 3"),
        ],
        ends=(),
        phase="building",
    ),
}

CANCELLED = {
    "back to where we are, before anybody arrived": Story(
        1, [GROWING_2, (target(0), "stop 1")], ends=(0,)
    ),
    "a joiner that is still wanted is kept": Story(
        1,
        [
            GROWING_2,
            (target(0, 1, 2), "start 2@2"),
            (arrived(1, 2), "prepare 3 [0:2 1:1 2:1] to 0 1 2"),
        ],
        ends=(0,),
        phase="building",
    ),
    "less than we began to grow to": Story(
        1,
        [
            (target(0, 1, 2) + arrived(1), "start 1@1; start 2@2"),
            (target(0, 1), "stop 2; prepare 3 [0:2 1:2] to 0 1"),
        ],
        ends=(0,),
        phase="building",
    ),
    "a newer target waits for all answers, then cancels": Story(
        1,
        [
            BUILDING_2,
            (target(0), ""),
            (ready(2, 0), ""),
            (ready(2, 1), "cancel 2 to 0 1; stop 1"),
        ],
        ends=(0,),
    ),
    "from building to more: joiners are kept": Story(
        1,
        [BUILDING_2, (target(0, 1, 2), ""), (ready(2, 0, 1), "cancel 2 to 0 1; start 2@2")],
        ends=(0,),
        phase="starting",
    ),
    "there and back while building commits": Story(
        1,
        [BUILDING_2, (target(0) + target(1, 0), ""), (ready(2, 0, 1), "commit 2 after 11 to 0 1")],
        ends=(0,),
        phase="swapping",
    ),
    "a target after the commit waits for the swap": Story(
        1,
        [SWAPPING_2, (target(0), ""), (swapped(2, 0, 1), "prepare 3 [0:4] to 0")],
        ends=(0, 1),
        phase="building",
    ),
    "a group that can't be built is tried again": Story(
        1,
        [
            BUILDING_2,
            (unready(2, 1), ""),
            (ready(2, 0), "cancel 2 to 0 1; prepare 3 [0:2 1:2] to 0 1"),
        ],
        ends=(0,),
        phase="building",
    ),
}

CHURNED = {
    "after a stop new workers wait a little": Story(
        1, [GROWING_2, (target(0, 2), "stop 1"), (after(0.02), "start 2@2")], (0,), "starting"
    ),
    "woken too early it goes on waiting": Story(
        1, [GROWING_2, (target(0, 2), "stop 1"), (after(0.01), "")], (0,), "starting"
    ),
    "the newest target counts when the wait is over": Story(
        1,
        [GROWING_2, (target(0, 2) + target(0, 3), "stop 1"), (after(0.02), "start 2@3")],
        ends=(0,),
        phase="starting",
    ),
    "a second stop in a row waits twice as long": Story(
        1,
        [
            GROWING_2,
            (target(0, 2) + after(0.02), "stop 1; start 2@2"),
            (target(0, 3) + after(0.03), "stop 2"),
            (after(0.01), "start 3@3"),
        ],
        ends=(0,),
        phase="starting",
    ),
    "a second of calm forgets the churn": Story(
        1,
        [
            GROWING_2,
            (target(0, 2) + after(0.02), "stop 1; start 2@2"),
            (after(1), ""),
            (target(0, 3) + after(0.02), "stop 2; start 3@3"),
        ],
        ends=(0,),
        phase="starting",
    ),
    "a shrink does not wait": Story(
        2,
        [(target(0, 1, 2), "start 2@2"), (target(0), "stop 2; prepare 3 [0:4] to 0")],
        ends=(0, 1),
        phase="building",
    ),
}

STALE = {
    "the target we have": Story(2, [(target(0, 1), ""), (target(1, 0), "")], ends=(0, 1)),
    "the target we work on": Story(1, [GROWING_2, (target(0, 1), "")], ends=(0,), phase="starting"),
    "arrived: a repeat": Story(1, [BUILDING_2, (arrived(1), "")], ends=(0,), phase="building"),
    "arrived: a ghost": Story(1, [GROWING_2, (arrived(7), "")], ends=(0,), phase="starting"),
    "ready: a repeat": Story(1, [BUILDING_2, (ready(2, 0, 0), "")], ends=(0,), phase="building"),
    "ready: a ghost": Story(1, [BUILDING_2, (ready(1, 0, 1), "")], ends=(0,), phase="building"),
    "ready and then unready: the first word holds": Story(
        1,
        [BUILDING_2, (ready(2, 0) + unready(2, 0), ""), (ready(2, 1), "commit 2 after 11 to 0 1")],
        ends=(0,),
        phase="swapping",
    ),
    "unready: a ghost": Story(1, [SWAPPING_2, (unready(2, 0), "")], ends=(0,), phase="swapping"),
    "swapped: a repeat": Story(1, [SWAPPING_2, (swapped(2, 0, 0), "")], (0,), "swapping"),
    "swapped: before the commit": Story(1, [BUILDING_2, (swapped(2, 0, 1), "")], (0,), "building"),
    "swapped: a ghost": Story(
        2, [(lost(0), "regroup 2 [1:4] to 1"), (swapped(1, 1), "")], ends=(1,), phase="regrouping"
    ),
    "broken: a repeat does not wait longer": Story(
        2,
        [
            (broken(1, 0) + after(0.4) + broken(1, 1), ""),
            (after(0.1), "regroup 2 [0:2 1:2] to 0 1"),
        ],
        ends=(0, 1),
        phase="regrouping",
    ),
    "broken: a ghost": Story(
        3,
        [(lost(2), "regroup 2 [0:2 1:2] to 0 1"), (broken(1, 0), "")],
        ends=(0, 1),
        phase="regrouping",
    ),
    "lost: a repeat": Story(1, [GROWING_2, (lost(1, 1), "start 2@1")], (0,), "starting"),
    "lost: who was stopped": Story(1, [GROWING_2, (target(0) + lost(1), "stop 1")], ends=(0,)),
    "lost: a leaver, while others still swap": Story(
        4, [HALVING, (swapped(2, 3) + lost(3), "")], ends=(0, 1, 2), phase="swapping"
    ),
    "stepped: a ghost": Story(
        2,
        [([WorkerStepped(9, 99, 1.0)], ""), SHRINKING, (ready(2, 0), "commit 2 after 11 to 0 1")],
        ends=(0, 1),
        phase="swapping",
    ),
    "woken without having asked": Story(2, [(after(5), "")], ends=(0, 1)),
}

ENDED = {
    "the loop ends: members go, and nobody is replaced": Story(
        2, [(ended(0) + lost(0), ""), (ended(1) + lost(1), "")], ends=()
    ),
    "joiners are stopped": Story(1, [GROWING_2, (ended(0), "stop 1"), (lost(0), "")], ends=()),
    "what is uncommitted is cancelled": Story(
        2,
        [
            (target(0, 1, 2) + arrived(2), "start 2@2; prepare 2 [0:2 1:1 2:1] to 0 1 2"),
            (ended(0), "cancel 2 to 1 2; stop 2"),
        ],
        ends=(1,),
    ),
    "committed, but the loop was over before that step": Story(
        1, [SWAPPING_2, (ended(0), "cancel 2 to 1; stop 1")], ends=()
    ),
    "committed, but over: leavers hear of the cancel too": Story(
        2,
        [
            SHRINKING,
            (ready(2, 0), "commit 2 after 11 to 0 1"),
            (ended(0), "cancel 2 to 1"),
        ],
        ends=(1,),
    ),
    "joiners kept while regrouping are stopped": Story(
        3,
        [
            (target(0, 1, 2, 3), "start 3@3"),
            (lost(2), "regroup 3 [0:2 1:2] to 0 1"),
            (ended(0), "stop 3; regroup 4 [1:4] to 1"),
        ],
        ends=(1,),
        phase="regrouping",
    ),
    "joiners kept by a broken group are stopped": Story(
        2,
        [(target(0, 1, 2), "start 2@2"), (broken(1, 1), ""), (ended(0), "stop 2")],
        ends=(1,),
        phase="broken",
    ),
    "swapped and over before the others had swapped": Story(
        1, [SWAPPING_2, (swapped(2, 0) + ended(0), ""), (swapped(2, 1), "")], ends=(1,)
    ),
    "a target changes nothing any more": Story(2, [(ended(0) + target(0, 1, 2), "")], ends=(1,)),
    "who dies before its loop is over leaves the others a step to redo": Story(
        3,
        [
            (ended(0), ""),
            (lost(1), "regroup 2 [2:4] to 2"),
            (swapped(2, 2), ""),
            (ended(2) + lost(2), ""),
        ],
        ends=(),
    ),
    "over before the regroup was heard": Story(
        3,
        [
            (lost(2), "regroup 2 [0:2 1:2] to 0 1"),
            (ended(0), "regroup 3 [1:4] to 1"),
            (swapped(3, 1), ""),
        ],
        ends=(1,),
    ),
    "a joiner's end ends nothing": Story(1, [GROWING_2, (ended(1), "")], (0,), "starting"),
}

BALANCED = {
    "a slow worker gets less": Story(
        2,
        [
            (timed(20, w0=0.3, w1=0.1), ""),
            (after(10.1) + timed(1, w0=0.3), "prepare 2 [0:1 1:3] to 0 1"),
            (ready(2, 0, 1), "commit 2 after 11 to 0 1"),
            (swapped(2, 0, 1) + after(10.1) + timed(1, w0=0.3), ""),
        ],
        ends=(0, 1),
    ),
    "not before there are samples of everybody": Story(
        2,
        [(timed(20, w0=0.3) + timed(19, w1=0.1) + after(10.1) + timed(1, w0=0.3), "")],
        ends=(0, 1),
    ),
    "not sooner than 10 s after a change": Story(
        2, [(timed(20, w0=0.3, w1=0.1) + after(9.9) + timed(1, w0=0.3), "")], ends=(0, 1)
    ),
    "not for a small gain": Story(
        2, [(timed(20, w0=0.11, w1=0.1) + after(10.1) + timed(1, w0=0.11), "")], ends=(0, 1)
    ),
    "an outlier is no speed": Story(
        2,
        [(timed(9, w0=5, w1=0.1) + timed(11, w0=0.1, w1=0.1) + after(10.1) + timed(1, w1=0.1), "")],
        ends=(0, 1),
    ),
    "a newcomer counts as average": Story(
        2,
        [
            (timed(20, w0=0.4, w1=0.1), ""),
            (target(0, 1, 2) + arrived(2), "start 2@2; prepare 2 [0:1 1:2 2:1] to 0 1 2"),
        ],
        ends=(0, 1),
        phase="building",
    ),
    "not more often than every 10 s": Story(
        2,
        [
            (timed(20, w0=0.1, w1=0.1) + after(10.1) + timed(1, w0=0.1), ""),
            (timed(20, w0=0.3), ""),
            (after(10.1) + timed(1, w0=0.3), "prepare 2 [0:1 1:3] to 0 1"),
        ],
        ends=(0, 1),
        phase="building",
    ),
    "not when the loop is over": Story(
        4,
        [
            (lost(3), "regroup 2 [0:2 1:1 2:1] to 0 1 2"),
            (ended(0), "regroup 3 [1:2 2:2] to 1 2"),
            (swapped(3, 1, 2) + timed(20, w1=0.3, w2=0.1) + after(10.1) + timed(1, w1=0.3), ""),
        ],
        ends=(1, 2),
    ),
}

STORIES = {**PLANNED, **CANCELLED, **CHURNED, **STALE, **ENDED, **BALANCED}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_story(story: Story) -> None:
    Stage(story.members).tell(story)


def test_a_storm_starts_few_workers_and_ends_at_the_last_target() -> None:
    stage = Stage(1)
    said = [stage.play([After(0.01), TargetSet((0, 1 + i % 3))]) for i in range(100)]
    said.append(stage.play(after(0.5)))
    starts = re.findall(r"start \d+@(\d+)", " ".join(said))
    assert 5 <= len(starts) <= 10
    assert int(starts[-1]) == 1 + 99 % 3
    assert len(starts) - " ".join(said).count("stop") == 1


def test_however_long_a_storm_lasts_a_start_waits_half_a_second_at_most() -> None:
    stage = Stage(1)
    waits_s = set()
    for i in range(2000):
        stage.play([After(0.01), TargetSet((0, 1 + i % 3))])
        if stage.coordinator.wake_at_s is not None:
            waits_s.add(round(stage.coordinator.wake_at_s - stage.now_s, 6))
    assert max(waits_s) == 0.5


def test_a_start_that_came_another_way_needs_no_waking() -> None:
    stage = Stage(1)
    stage.play(target(0, 1, 2) + target(0, 2, 3))
    wishes_s = [stage.coordinator.wake_at_s]
    stage.now_s += 0.02
    assert stage.play(arrived(2)) == "start 3@3"
    wishes_s.append(stage.coordinator.wake_at_s)
    assert wishes_s == [stage.now_s, None]


def test_a_commit_names_the_step_after_the_highest_reported() -> None:
    stage = Stage(2)
    stage.play([WorkerStepped(0, 41, None), WorkerStepped(1, 40, None)])
    assert stage.play(target(0) + ready(2, 0)).endswith("commit 2 after 42 to 0 1")
