"""How many nodes a pool should have."""

import pytest

from coddl.core.errors import UserError
from coddl.core.node_count import (
    NodeBounds,
    NodeCount,
    emptiest,
    gpus_worth,
    next_count,
    node_range,
    nodes_for,
)

BOUNDS = NodeBounds(least=1, most=4, gpus=2, idle_s=100.0)
PERFECT = {n: 1.0 / n for n in range(1, 9)}
FLAT = dict.fromkeys(range(1, 9), 1.0)
AMDAHL = {n: 0.2 + 0.8 / n for n in range(1, 9)}
TWELVE = {n: -(-12 // n) + 0.001 * n for n in range(1, 13)}  # samples of a batch, dealt to workers


@pytest.mark.parametrize(
    ("step_s", "least", "most", "gpus"),
    [
        *[
            (PERFECT, 1, 8, 8),
            (FLAT, 1, 8, 1),
            (AMDAHL, 1, 8, 6),
            (AMDAHL, 2, 8, 8),
            (FLAT, 3, 3, 3),
        ],
        *[(TWELVE, 1, 11, 6), (TWELVE, 1, 12, 12), (TWELVE, 1, 5, 4)],
    ],
)
def test_a_job_makes_good_use_of_gpus_that_are_half_used_and_add_something(
    step_s: dict[int, float], least: int, most: int, gpus: int
) -> None:
    assert gpus_worth(step_s, least, most) == gpus


def test_nodes_are_whole_and_within_bounds() -> None:
    assert [nodes_for(gpus, BOUNDS) for gpus in (0, 1, 2, 3, 8, 99)] == [1, 1, 1, 2, 4, 4]


def test_nodes_are_asked_for_at_once_and_given_back_without_haste() -> None:
    count = next_count(NodeCount(1), 3, BOUNDS, 0.0)
    assert count == NodeCount(3)
    count = next_count(count, 1, BOUNDS, 10.0)
    assert count.nodes == 3
    count = next_count(count, 2, BOUNDS, 60.0)  # was needed meanwhile
    count = next_count(count, 1, BOUNDS, 109.0)
    assert count.nodes == 3
    count = next_count(count, 1, BOUNDS, 110.0)
    assert count.nodes == 2, "no more than was needed at any moment of the idle time"
    assert next_count(count, 1, BOUNDS, 209.0).nodes == 2
    assert next_count(count, 1, BOUNDS, 210.0).nodes == 1


def test_a_need_that_comes_back_begins_the_idle_time_anew() -> None:
    count = next_count(NodeCount(2), 1, BOUNDS, 0.0)
    count = next_count(count, 2, BOUNDS, 50.0)
    assert count == NodeCount(2)
    assert next_count(next_count(count, 1, BOUNDS, 90.0), 1, BOUNDS, 189.0).nodes == 2


def test_bounds_that_shrink_hold_at_once() -> None:
    assert next_count(NodeCount(9), 4, BOUNDS, 0.0).nodes == 4


def test_a_driver_that_asks_again_when_the_idle_time_is_over_is_not_too_early() -> None:
    since_s, bounds = 0.7, NodeBounds(least=1, most=4, gpus=2, idle_s=0.1)
    assert since_s + bounds.idle_s - since_s < bounds.idle_s, "rounding"
    count = next_count(NodeCount(2), 1, bounds, since_s)
    assert next_count(count, 1, bounds, since_s + bounds.idle_s).nodes == 1


def test_the_emptiest_nodes_go_first_then_by_name() -> None:
    used = {"c": 1, "a": 2, "b": 1, "d": 0}
    assert emptiest(used, 3) == ["d", "b", "c"]
    assert emptiest(used, -1) == []


def test_a_range_of_nodes_is_read_or_refused() -> None:
    assert [node_range(text) for text in ("2..32", "0..8", "4")] == [(2, 32), (0, 8), (4, 4)]
    for text in (
        "",
        "..",
        "3..",
        "..3",
        "5..2",
        "0",
        "0..0",
        "-1..3",
        "1.5",
        "1..2..3",
        "9" * 5000,
    ):
        with pytest.raises(UserError, match="neither a number nor a range"):
            node_range(text)
