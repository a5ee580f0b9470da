"""Step times on any GPUs, estimated from one."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coddl.core.cluster import Cluster, Link, Links, Node
from coddl.core.speed.estimate import (
    Algorithm,
    Model,
    Spread,
    compute_s,
    estimated_places,
    even_buckets,
    ring_s,
    split_batch,
    step_s,
    sync_s,
    unit_bytes,
)

ONE_GB = np.array([1e9])
# A gigabyte takes 0.1, 0.2, 1 and 10 s; a message within an island 1 ms, on others nothing.
LINKS = Links(Link(10.0, 1000.0), Link(5.0, 0.0), Link(1.0, 0.0), Link(0.1, 0.0))

SYNCS: dict[str, tuple[Algorithm, Spread, float]] = {
    "one GPU has nobody to talk to": ("hierarchical", Spread(1), 0.0),
    "two send all of it once, in two messages": ("hierarchical", Spread(2), 0.1 + 0.002),
    "four send it one and a half times, in six": ("hierarchical", Spread(4), 0.15 + 0.006),
    "two islands of two": ("hierarchical", Spread(4, 2), 0.1 + 0.002 + 0.2),
    "two nodes of two": ("hierarchical", Spread(4, 2, 2), 0.1 + 0.002 + 1.0),
    "two racks of one node": ("hierarchical", Spread(2, 2, 2, 2), 10.0),
    "four nodes in two racks": ("hierarchical", Spread(4, 4, 4, 2), 1.0 + 10.0),
    "flat: as slow as its slowest link": ("flat", Spread(4, 2, 2), 1.5),
    "flat: or as the island, where messages cost most": ("flat", Spread(100, 2), 0.198 + 0.198),
    "flat: in one island as any ring": ("flat", Spread(4), 0.15 + 0.006),
}


@pytest.mark.parametrize(("algorithm", "spread", "want"), SYNCS.values(), ids=SYNCS.keys())
def test_gradients_are_averaged(algorithm: Algorithm, spread: Spread, want: float) -> None:
    assert sync_s(spread, ONE_GB, LINKS, algorithm) == pytest.approx(want)


def test_columns_of_places_are_estimated_at_once() -> None:
    gpus = np.array([[1, 2], [4, 8]])
    got = ring_s(gpus, np.array([1e9, 2e9]), Link(1.0, 0.0))
    want = [[[0.0, 0.0], [1.0, 2.0]], [[1.5, 3.0], [1.75, 3.5]]]
    assert got == pytest.approx(np.array(want))


def replayed_s(compute: float, ready: list[float], sync: list[float]) -> float:
    """Replay bucket by bucket, as the formula is written."""
    end_s = 0.0
    for ready_part, one_s in zip(ready, sync, strict=True):
        end_s = max(ready_part * compute, end_s) + one_s
    return max(compute, end_s)


BUCKETS = st.lists(st.tuples(st.floats(0.05, 1.0), st.floats(0.0, 2.0)), min_size=1, max_size=6)


@given(st.floats(0.01, 5.0), BUCKETS)
def test_the_closed_form_is_the_replay(compute: float, buckets: list[tuple[float, float]]) -> None:
    ready = sorted(part for part, _ in buckets)
    sync = [one_s for _, one_s in buckets]
    got = step_s(np.array(compute), np.array(ready), np.array(sync))
    assert float(got) == pytest.approx(replayed_s(compute, ready, sync))


@given(st.floats(0.01, 5.0), BUCKETS)
def test_the_computation_is_found_again(compute: float, buckets: list[tuple[float, float]]) -> None:
    ready = np.array(sorted(part for part, _ in buckets))
    sync = np.array([one_s for _, one_s in buckets])
    step = step_s(np.array(compute), ready, sync)
    assert float(compute_s(step, ready, sync)) == pytest.approx(compute)


def test_buckets_come_evenly_over_the_backward_pass() -> None:
    buckets = even_buckets(Model(100e6, 0.1))
    assert buckets.size_bytes.tolist() == [25e6] * 4
    assert buckets.ready == pytest.approx([0.5, 2 / 3, 5 / 6, 1.0])


def test_a_tensor_is_sent_whole() -> None:
    assert even_buckets(Model(100e6, 0.8)).size_bytes.tolist() == [100e6]
    assert even_buckets(Model(1e6, 0.1)).size_bytes.tolist() == [1e6]


STEP_S = np.array([[np.inf, 3.0, 2.0, 1.6, 1.0, 0.9, 0.8, 0.7, 0.6]])
HEAVY = Model(400e6, 1.0)  # one bucket: nothing overlaps


class TestEstimatedPlaces:
    def test_the_fewest_nodes_are_the_best_case(self) -> None:
        nodes = estimated_places(STEP_S, [HEAVY], Cluster.of(16, 4)).nodes[0]
        for gpus in range(1, 9):
            assert nodes[gpus, -(-gpus // 4)] == 1.0
            assert (nodes[gpus] >= 1.0).all()

    def test_four_gpus_on_two_nodes_by_hand(self) -> None:
        """In a node the 0.4 GB take 1.5 x 0.02 s and 6 messages of 5 us; over two, 0.02 s and 2
        messages in each, and 0.08 s and 2 messages of 15 us between them.
        """
        nodes = estimated_places(STEP_S, [HEAVY], Cluster.of(16, 4)).nodes[0]
        computing = 1.0 - (0.03 + 30e-6)
        assert nodes[4, 2] == pytest.approx(computing + 0.02 + 10e-6 + 0.08 + 30e-6)

    def test_no_gpu_computes_faster_than_the_first(self) -> None:
        """Averaging 40 GB would take longer than the step: 3 s, and 10 s over two nodes."""
        nodes = estimated_places(STEP_S, [Model(40e9, 1.0)], Cluster.of(16, 4)).nodes[0]
        assert nodes[4, 2] == pytest.approx((0.75 + 2.0 + 8.0) / (0.75 + 3.0), rel=1e-3)

    def test_a_wider_node_takes_the_table_for_its_best(self) -> None:
        nodes = estimated_places(STEP_S, [HEAVY], Cluster.of(16, 8)).nodes[0]
        assert nodes[8, 1] == 1.0
        assert nodes[8, 2] > 1.0

    def test_one_node_one_island_one_rack_make_no_difference(self) -> None:
        places = estimated_places(STEP_S, [HEAVY], Cluster.of(4))
        assert (places.nodes == 1.0).all()
        assert (places.islands[0, [0, 1]] == 1.0).all()

    def test_islands_cost_only_who_would_fit_into_one(self) -> None:
        cluster = Cluster((Node("a", 8, island_gpus=4),))
        islands = estimated_places(STEP_S, [HEAVY], cluster).islands[0]
        assert (islands[2:5] > 1.0).all()
        assert (islands[[0, 1, 5, 6, 7, 8]] == 1.0).all()

    def test_far_racks_and_crowded_cards_cost_who_crosses(self) -> None:
        places = estimated_places(STEP_S, [HEAVY], Cluster.of(16, 4))
        assert (places.racks[0, 2:] > 1.1).all()
        assert (places.network[0, 2:] > 0.01).all()
        assert places.racks[0, 1] == 1.0
        assert places.network[0, 1] == 0.0

    def test_half_the_bandwidth_between_nodes_by_hand(self) -> None:
        places = estimated_places(STEP_S, [HEAVY], Cluster.of(16, 4))
        over_two = float(places.nodes[0, 4, 2])
        assert places.network[0, 4] == pytest.approx(0.08 / over_two)

    def test_a_model_that_hides_its_exchange_does_not_mind(self) -> None:
        """Four buckets of 25 MB are through before the next is ready; only the last sticks out."""
        places = estimated_places(STEP_S, [Model(100e6, 0.1)], Cluster.of(16, 4))
        assert 1.0 < places.nodes[0, 4, 2] < 1.005

    def test_shares_that_a_model_cannot_have_stay_plain(self) -> None:
        step = np.array([[np.inf, np.inf, 2.0, 1.6]])
        places = estimated_places(step, [HEAVY], Cluster.of(16, 4))
        assert (places.nodes[0, :2] == 1.0).all()
        assert np.isfinite(places.nodes).all()


class Split(NamedTuple):
    total: int
    fixed_s: list[float]
    sample_s: list[float]
    want: list[int]


SPLITS = {
    "alike": Split(8, [0.0, 0.0], [1.0, 1.0], [4, 4]),
    "twice as fast, twice as many": Split(9, [0.0, 0.0], [1.0, 2.0], [6, 3]),
    "a late start costs samples": Split(10, [0.0, 2.0], [1.0, 1.0], [6, 4]),
    "who starts too late gets none": Split(4, [0.0, 100.0], [1.0, 1.0], [4, 0]),
    "a rest goes to the first of equals": Split(5, [0.0, 0.0], [1.0, 1.0], [3, 2]),
    "the largest remainder gets it": Split(4, [0.0, 0.0], [1.0, 1.6], [2, 2]),
    "three unlike devices": Split(11, [0.0, 0.0, 0.0], [1.0, 2.0, 3.0], [6, 3, 2]),
    "in any order": Split(11, [0.0, 50.0, 0.0], [3.0, 1.0, 1.0], [3, 0, 8]),
    "nothing to split": Split(0, [0.0, 1.0], [1.0, 1.0], [0, 0]),
}


@pytest.mark.parametrize("case", SPLITS.values(), ids=SPLITS.keys())
def test_unlike_devices_end_a_step_together(case: Split) -> None:
    got = split_batch(case.total, np.array(case.fixed_s), np.array(case.sample_s))
    assert got.tolist() == case.want


@given(
    st.integers(0, 500),
    st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.01, 2.0)), min_size=1, max_size=6),
)
def test_no_sample_is_lost_or_made_up(total: int, devices: list[tuple[float, float]]) -> None:
    fixed_s, sample_s = map(np.array, zip(*devices, strict=True))
    got = split_batch(total, fixed_s, sample_s)
    assert got.sum() == total
    assert (got >= 0).all()


def test_a_unit_outweighs_its_message() -> None:
    """10 us at 10 GB/s are 100 kB on the wire; ten times that."""
    assert unit_bytes(Link(10.0, 10.0)) == pytest.approx(1e6)
