"""Speeds with parameter servers: the cost model, its fit, and what a place is worth."""

import numpy as np
import pytest

from coddl.core.cluster import Cluster
from coddl.core.errors import UserError
from coddl.core.parameter_server.assignment import assign_parameters
from coddl.core.parameter_server.costs import (
    Mode,
    Point,
    ServerCosts,
    TaskCounts,
    costs_of_curve,
    fit_costs,
    remote_parts,
    server_slowdowns,
    servers_of,
    with_servers,
)
from coddl.core.slots import Slots
from coddl.core.speed.nnls import nnls
from coddl.core.speed.table import interpolated
from coddl.testing import twin

PLACES = ((1, 1), (2, 1), (1, 4), (4, 4), (8, 2), (3, 7), (10, 10), (5, 2))  # servers, workers
THETA = {
    "sync": (0.02, 0.3, 0.5, 0.01, 0.03),
    "sync with free connections": (0.02, 0.3, 0.5, 0.0, 0.0),
    "async": (1.5, 0.5, 0.01, 0.03),
    "async that waits for nothing": (1.5, 0.0, 0.0, 0.0),
}


def step_s(costs: ServerCosts, servers: int, workers: int) -> float:
    return float(costs.step_s(np.array([servers]), np.array([workers]))[0])


@pytest.mark.parametrize("theta", THETA.values(), ids=THETA.keys())
def test_eight_points_without_noise_give_the_costs_back(theta: tuple[float, ...]) -> None:
    mode: Mode = "async" if len(theta) == 4 else "sync"
    truth = ServerCosts(theta, mode, batch=128.0)
    points = [Point(p, w, step_s(truth, p, w)) for p, w in PLACES]
    assert fit_costs(points, mode, 128.0).theta == pytest.approx(theta, abs=1e-9)


def test_a_step_is_the_sum_of_its_terms() -> None:
    sync = ServerCosts((0.5, 1.0, 2.0, 0.1, 0.2), "sync", batch=8.0)
    assert step_s(sync, 4, 2) == pytest.approx(0.5 * 8 / 2 + 1.0 + 2.0 * 2 / 4 + 0.1 * 2 + 0.2 * 4)
    by_itself = ServerCosts((1.0, 2.0, 0.1, 0.2), "async")
    assert step_s(by_itself, 4, 2) == pytest.approx((1.0 + 2.0 * 2 / 4 + 0.1 * 2 + 0.2 * 4) / 2)


NNLS = {
    "what is above zero is as in plain least squares": ([[1, 0], [0, 1]], [2, 3], [2, 3]),
    "what would be negative is zero": ([[1, 0], [0, 1]], [2, -3], [2, 0]),
    "the others make up for it": ([[1, 1], [0, 1], [1, 0]], [1, -1, 1], [1, 0]),
    "nothing helps": ([[1], [1]], [-1, -2], [0]),
    "columns that are alike share": ([[1, 1], [2, 2]], [3, 6], [1.5, 1.5]),
    "also if one is longer": ([[1, 2], [2, 4]], [3, 6], [1.5, 0.75]),
}  # fmt: skip


@pytest.mark.parametrize(("terms", "target", "want"), NNLS.values(), ids=NNLS.keys())
def test_least_squares_without_negative_terms(
    terms: list[list[float]], target: list[float], want: list[float]
) -> None:
    found = nnls(np.array(terms, float), np.array(target, float))
    assert found == pytest.approx(want, abs=1e-12)


def test_no_point_nearby_fits_better() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        terms, target = rng.normal(size=(9, 4)), rng.normal(size=9)
        found = nnls(terms, target)
        assert (found >= 0).all()
        best = np.linalg.norm(terms @ found - target)
        for _ in range(20):
            near = np.maximum(0.0, found + rng.normal(scale=0.01, size=4))
            assert np.linalg.norm(terms @ near - target) >= best - 1e-12


def test_a_measured_point_stands_before_the_fit() -> None:
    costs = ServerCosts((1.0, 0.0, 1.0, 0.0, 0.0))
    table = servers_of([costs], 4, [[Point(servers=2, workers=3, step_s=0.25)]])
    assert table.step_s[0, 3, 2] == 0.25
    assert table.transfer_s[0, 3, 2] == 0.25  # no more than the whole step
    assert table.step_s[0, 3, 3] == pytest.approx(1 / 3 + 1)
    assert np.isinf(table.step_s[0, 0, 1])
    assert np.isinf(table.step_s[0, 1, 0])


def test_a_curve_is_met_with_as_many_servers_as_workers() -> None:
    curve = [6.0 / w + 0.5 + 0.02 * w for w in range(1, 9)]
    costs = costs_of_curve(curve)
    assert costs.theta == pytest.approx((6.0, 0.25, 0.25, 0.01, 0.01))
    assert [step_s(costs, w, w) for w in range(1, 9)] == pytest.approx(curve)
    alone = costs_of_curve(curve, "async")
    assert step_s(alone, 1, 1) == pytest.approx(curve[0])


# {node: tasks} of workers and of servers, and the part of the transfer that the slowest has to do.
REMOTE = {
    "all on one node": ({0: 4}, {0: 2}, 0.0),
    "evenly on two nodes": ({0: 2, 1: 2}, {0: 1, 1: 1}, 0.5),
    "workers unevenly": ({0: 3, 1: 1}, {0: 1, 1: 1}, 0.75),
    "servers apart": ({0: 4}, {1: 2}, 1.0),
    "evenly on four nodes": ({0: 1, 1: 1, 2: 1, 3: 1}, {0: 1, 1: 1, 2: 1, 3: 1}, 0.75),
    "more servers than workers": ({0: 1, 1: 1}, {0: 2, 1: 2}, 0.5),
    "nobody": ({}, {}, 1.0),
}


@pytest.mark.parametrize(("workers", "servers", "want"), REMOTE.values(), ids=REMOTE.keys())
def test_the_slowest_task_sets_the_pace(
    workers: dict[int, int], servers: dict[int, int], want: float
) -> None:
    columns = Cluster.of(16, 4).columns
    slots = Slots.of([workers]), Slots.of([servers])
    assert remote_parts(columns, *slots) == pytest.approx([want])
    assert twin(remote_parts)(columns, *slots) == pytest.approx([want])


def test_a_place_saves_transfer_and_nothing_else() -> None:
    model = servers_of([ServerCosts((4.0, 1.0, 1.0, 0.0, 0.0))], 4)
    table_s = np.array([[np.inf, 6.0, 4.0]])  # a table that knows no servers
    tasks = TaskCounts(
        curve=np.zeros(4, np.int64),
        workers=np.array([2, 2, 2, 0]),
        servers=np.array([2, 2, 9, 0]),
        remote=np.array([1.0, 0.5, 1.0, 1.0]),
    )
    full_s, half_s, many_s = 4 / 2 + 1 + 1, 4 / 2 + 1 + 0.5, 4 / 2 + 1 + 2 / 4
    want = [full_s / 4.0, half_s / 4.0, many_s / 4.0, 1.0]
    assert server_slowdowns(model, table_s, tasks) == pytest.approx(want)


# Sizes of blocks, servers, and (block, server, size) of each piece.
PAA = {
    "a block each": ([10, 10], 2, [(0, 0, 10), (1, 1, 10)]),
    "the largest first, then best fit": (
        [3, 6, 4, 5], 2, [(1, 0, 6), (3, 1, 5), (2, 1, 4), (0, 0, 3)],
    ),
    "a large block is cut into shares": ([30], 3, [(0, 0, 10), (0, 1, 10), (0, 2, 10)]),
    "the last piece goes where it fits best": (
        [14, 4, 2], 2, [(0, 0, 10), (0, 1, 4), (1, 1, 4), (2, 1, 2)],
    ),
    "small blocks even out requests": (
        [199, 2, 1], 2, [(0, 0, 101), (0, 1, 98), (1, 1, 2), (2, 0, 1)],
    ),
    "what fits nowhere goes to the emptiest": (
        [6, 6, 6], 2, [(0, 0, 6), (1, 1, 6), (2, 0, 6)],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("sizes", "servers", "want"), PAA.values(), ids=PAA.keys())
def test_parameters_are_dealt_out(
    sizes: list[int], servers: int, want: list[tuple[int, int, int]]
) -> None:
    assert assign_parameters(sizes, servers) == want


def test_no_parameter_is_lost_and_shares_are_even() -> None:
    sizes = [int(size) for size in np.random.default_rng(2).lognormal(8, 2, 160)]
    pieces = assign_parameters(sizes, 8)
    for block, size in enumerate(sizes):
        assert sum(piece.size for piece in pieces if piece.block == block) == size
    held = [sum(piece.size for piece in pieces if piece.server == server) for server in range(8)]
    assert max(held) <= 1.1 * sum(sizes) / 8
    assert len(pieces) <= len(sizes) + 8  # few blocks are cut


def test_a_table_gains_servers_and_keeps_its_bounds() -> None:
    """Of 4/w + 1 the half of 1 is transfer; the other model runs on 2 GPUs, and on no others."""
    curve = [(1, 5.0), (2, 3.0), (3, 4 / 3 + 1), (4, 2.0)]
    speeds = with_servers(interpolated({"a": curve, "b": [(2, 6.0)]}), "sync")
    assert speeds.step_s[0] == pytest.approx([np.inf, 5.0, 3.0, 4 / 3 + 1, 2.0])
    assert speeds.servers.step_s[0, 2] == pytest.approx([np.inf, 3.5, 3.0, 2.5 + 1 / 3, 2.75])
    assert speeds.step_s[1] == pytest.approx([np.inf, np.inf, 6.0, 6.0, 6.0])
    assert (speeds.servers.step_s[1, 2] == speeds.servers.step_s[1, 4]).all()


def test_a_table_too_wide_for_servers_is_refused() -> None:
    wide = interpolated({"wide": [(1, 2.0), (257, 1.0)]})
    with pytest.raises(UserError, match="up to 257 workers"):
        with_servers(wide, "sync")
