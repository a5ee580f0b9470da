"""Stories of a new lead: what it does with those whom an earlier one has left."""

import pytest

from coddl.runtime.supervisor.generations import Event, Survivor, SurvivorsFound
from tests.runtime.stories import (
    VIRTUAL_NODES,
    After,
    Row,
    Stage,
    Story,
    arrived,
    broken,
    ended,
    lost,
    ready,
    swapped,
    target,
)

WITH, WITHOUT = True, False


def found(*survivors: tuple[int, int, bool], newest: int = 3) -> list[Event | After]:
    """Find workers (number, slot, has state) that have heard of generations up to 5."""
    left = tuple(Survivor(worker, slot, 10, has) for worker, slot, has in survivors)
    return [SurvivorsFound(left, 5, newest, VIRTUAL_NODES if left else None)]


TWO: Row = (found((1, 4, WITH), (3, 5, WITH)) + target(4, 5), "regroup 6 [1:2 3:2] to 1 3")

STORIES = {
    "survivors regroup, and are where they shall be": Story(
        0, [TWO, (swapped(6, 1, 3), "")], ends=(1, 3)
    ),
    "then they grow, with numbers above all that were given": Story(
        0,
        [
            (found((1, 4, WITH)) + target(4, 5), "regroup 6 [1:4] to 1"),
            (swapped(6, 1), "start 4@5"),
            (arrived(4), "prepare 7 [1:2 4:2] to 1 4"),
        ],
        ends=(1,),
        phase="building",
    ),
    "or move, if their slots are others' now": Story(
        0,
        [
            (found((1, 4, WITH)) + target(0), "regroup 6 [1:4] to 1"),
            (swapped(6, 1) + arrived(4), "start 4@0; prepare 7 [4:4] bridge 1 4 to 1 4"),
        ],
        ends=(1,),
        phase="building",
    ),
    "one that may have the state is asked too, and an image is at hand": Story(
        0,
        [(found((2, 4, WITHOUT)) + target(4), "regroup 6 [2:4] fresh to 2"), (swapped(6, 2), "")],
        ends=(2,),
    ),
    "a survivor that dies meanwhile leaves the others": Story(
        0, [TWO, (lost(3), "regroup 7 [1:4] to 1"), (swapped(7, 1), "start 4@5")], (1,), "starting"
    ),
    "if all die, it begins from an image": Story(
        0,
        [
            TWO,
            (lost(1), "regroup 7 [3:4] to 3"),
            (lost(3), "start 4@4; start 5@5"),
            (arrived(4, 5), "prepare 8 [4:2 5:2] fresh to 4 5"),
        ],
        ends=(),
        phase="building",
    ),
    "words of the earlier lead's generations are stale": Story(
        0, [TWO, (broken(5, 1) + ready(5, 1, 3) + swapped(5, 1, 3), "")], (1, 3), "regrouping"
    ),
    "a loop that ended unheard is an end": Story(
        0, [TWO, (ended(1, 3), "regroup 7 [3:4] to 3")], ends=()
    ),
    "nobody is left: it begins, with numbers above all that were given": Story(
        0, [(found(newest=7) + target(4), "start 8@4")], ends=(), phase="starting"
    ),
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_story(story: Story) -> None:
    Stage(story.members).tell(story)
