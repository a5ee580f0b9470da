"""Steps replayed on arrangements of workers."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coddl.core.cluster import Link, Links
from coddl.core.errors import UserError
from coddl.core.speed.collectives import (
    AllReduce,
    all_reduce_s,
    half_ring_s,
    ring_s,
    served_s,
    tree_s,
)
from coddl.core.speed.estimate import Spread, step_s, sync_s
from coddl.core.speed.inspection import LinkClass, LinkSpeed
from coddl.core.speed.profile import GradientBucket, SliceMemory, SliceTime, TrainingProfile
from coddl.core.speed.replay import Arrangement, BoundBy, StepSetting, replayed

# A gigabyte takes 0.1 s within a node and 1 s between nodes; a message 1 ms and 2 ms; a call 10 ms.
NODE = LinkSpeed(10.0, 1000.0, 10_000.0, "nccl")
CLUSTER = LinkSpeed(1.0, 2000.0, 10_000.0, "nccl")
LINKS: dict[LinkClass, LinkSpeed] = {"node": NODE, "cluster": CLUSTER}
FREE = LinkSpeed(1e9, 0.0, 0.0, "nccl")
# 16 samples: 0.1 + 0.1 x 16 forward, twice that backward; a gigabyte, half of it at half time.
PROFILE = TrainingProfile(
    device="a GPU",
    batch=16,
    slices=(SliceTime(8, 0.9, 1.8), SliceTime(16, 1.7, 3.4)),
    update_s=0.3,
    other_s=0.05,
    data_s=0.0,
    buckets=(GradientBucket(500_000_000, 0.5), GradientBucket(500_000_000, 1.0)),
)


def test_collectives_cost_what_the_formulas_say() -> None:
    assert ring_s(4, 1e9, CLUSTER) == pytest.approx(0.010 + 6 * 0.002 + 1.5 * 1.0)
    assert tree_s(5, 1e9, CLUSTER) == pytest.approx(0.010 + 2 * 3 * 0.002 + 2.0)
    assert half_ring_s(4, 1e9, CLUSTER) == pytest.approx(0.010 + 3 * 0.002 + 0.75)
    assert served_s(4, 2, 1e9, CLUSTER) == pytest.approx(0.010 + 2 * 0.002 + 2 * 2 * 1.0)
    assert served_s(2, 4, 1e9, CLUSTER) == pytest.approx(0.010 + 2 * 0.002 + 2 * 1.0)


def test_one_member_has_nobody_to_talk_to() -> None:
    assert ring_s(1, 1e9, CLUSTER) == tree_s(1, 1e9, CLUSTER) == 0.0
    assert half_ring_s(1, 1e9, CLUSTER) == served_s(1, 1, 1e9, CLUSTER) == 0.0


ALL_REDUCES: dict[str, tuple[AllReduce, tuple[int, ...], float]] = {
    "a ring in a node": ("ring", (4,), 0.010 + 6 * 0.001 + 0.15),
    "a ring over two nodes is as slow as the network": ("ring", (2, 2), 0.010 + 6 * 0.002 + 1.5),
    "a tree over two nodes": ("tree", (2, 2), 0.010 + 4 * 0.002 + 2.0),
    "one copy over the network": (
        "hierarchical",
        (2, 2),
        (0.010 + 2 * 0.001 + 0.1) + (0.010 + 2 * 0.002 + 1.0),
    ),
    "the widest node takes longest": (
        "hierarchical",
        (1, 4),
        (0.010 + 6 * 0.001 + 0.15) + (0.010 + 2 * 0.002 + 1.0),
    ),
    "nodes of one worker": ("hierarchical", (1, 1), 0.010 + 2 * 0.002 + 1.0),
}


@pytest.mark.parametrize(
    ("algorithm", "on_nodes", "want"), ALL_REDUCES.values(), ids=ALL_REDUCES.keys()
)
def test_gradients_are_averaged(
    algorithm: AllReduce, on_nodes: tuple[int, ...], want: float
) -> None:
    assert all_reduce_s(algorithm, on_nodes, 1e9, NODE, CLUSTER) == pytest.approx(want)


class Row(NamedTuple):
    """A step, and what it must take."""

    arrangement: Arrangement
    step_s: float
    bound_by: BoundBy
    setting: StepSetting = StepSetting()
    profile: TrainingProfile = PROFILE


HALF_RING_S = 0.010 + 1 * 0.002 + 0.5 * 0.5  # of a bucket, on two nodes
RING_S = 0.010 + 2 * 0.002 + 0.5  # of a bucket, on two nodes
STRICT = replace(PROFILE, virtual_nodes=4)
MEMORY = (SliceMemory(8, 10_000_000_000), SliceMemory(16, 18_000_000_000))  # 2 GB and 1 a sample
ROWS = {
    "alone: 5.1 s of passes, and the update": Row(Arrangement((1,)), 5.1 + 0.35, "compute"),
    # 2.7 s of passes, of which 1.8 backward; only the second bucket sticks out: 0.062 s.
    "two in a node": Row(Arrangement((2,)), 2.7 + 0.062 + 0.35, "compute"),
    "two on two nodes": Row(Arrangement((1, 1)), 2.7 + RING_S + 0.35, "compute"),
    # Four samples take 1.5 s. A ring: 0.772 s a bucket; hierarchical: 0.062 + 0.514, the cheaper.
    "the cheapest of the all-reduces": Row(
        Arrangement((2, 2)), 0.5 + 0.5 + 2 * 0.576 + 0.35, "compute"
    ),
    "or the one that is named": Row(
        Arrangement((2, 2)), 1.0 + 2 * 0.772 + 0.35, "compute", StepSetting(algorithm="ring")
    ),
    "half the bandwidth for each of two jobs": Row(
        Arrangement((1, 1)),
        2.7 + (0.010 + 2 * 0.002 + 1.0) + 0.35 + (1.014 - 0.9),
        "compute",
        StepSetting(bandwidth={"cluster": 0.5}),
    ),
    "an update in shares, and a gather": Row(
        Arrangement((1, 1)),
        2.7 + HALF_RING_S + 0.15 + (0.010 + 0.002 + 0.5) + 0.05,
        "compute",
        StepSetting(exchange="sharded"),
    ),
    # To one server: 2 x 2 x 0.5 s and 14 ms a bucket, which wait for each other.
    "a parameter server": Row(
        Arrangement((1, 1)),
        0.9 + 0.9 + 2 * (0.010 + 2 * 0.002 + 2.0) + 0.35,
        "exchange",
        StepSetting(exchange="servers"),
    ),
    # Twice as fast: (0.3 + 0.3 b) / 2 = 0.3 + 0.3 (16 - b) at b = 11; 1.8 s, the other 1.8 s.
    "unlike GPUs end together": Row(
        Arrangement((2,), speeds=(2.0, 1.0)), 1.8 + 0.062 + 0.35, "compute"
    ),
    # Two of four virtual nodes take 0.3 + 8 * 0.3 s: slices of strict trainings are whole steps.
    # Three workers are no faster than two, but for the exchange.
    "strict: two workers have two virtual nodes each": Row(
        Arrangement((2,)), 2.7 + 0.062 + 0.35, "compute", profile=STRICT
    ),
    "strict: one of three has two": Row(
        Arrangement((3,)),
        2.7 + (0.010 + 4 * 0.001 + 4 / 3 * 0.05) + 0.35,
        "compute",
        profile=STRICT,
    ),
    # 8 GB hold 6 samples: 8 take two passes of 4, and only the second sends.
    "a slice is split where memory is short": Row(
        Arrangement((2,)),
        3.0 + 0.062 + 0.35,
        "compute",
        StepSetting(device_bytes=8e9),
        replace(PROFILE, memory=MEMORY),
    ),
    "slow links": Row(
        Arrangement((1, 1)),
        0.9 + 0.9 + 2 * 5.014 + 0.35,
        "exchange",
        StepSetting(bandwidth={"cluster": 0.1}),
    ),
    "a slow loader": Row(
        Arrangement((1, 1)),
        10.0 + 2.7 + RING_S + 0.35,
        "data",
        profile=replace(PROFILE, data_s=20.0),
    ),
    "loaders of a node share its cores": Row(
        Arrangement((2,)), 20.0 + 2.7 + 0.062 + 0.35, "data", profile=replace(PROFILE, data_s=20.0)
    ),
    "two on one GPU take turns": Row(
        Arrangement((2,), on_a_gpu=2), 2 * 2.7 + 0.062 + 2 * 0.3 + 0.05, "compute"
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_a_step_takes(row: Row) -> None:
    timeline = replayed(row.profile, row.arrangement, LINKS, row.setting)
    assert timeline.step_s == pytest.approx(row.step_s)
    assert timeline.bound_by == row.bound_by
    assert timeline.samples_per_s == pytest.approx(16 / row.step_s)


def test_the_time_line_tells_what_happens_when() -> None:
    spans = replayed(PROFILE, Arrangement((1, 1)), LINKS).spans
    assert [(each.what, round(each.begin_s, 3), round(each.end_s, 3)) for each in spans] == [
        ("data", 0.0, 0.0),
        ("forward", 0.0, 0.9),
        ("backward", 0.9, 2.7),
        ("exchange", 1.8, 2.314),
        ("exchange", 2.7, 3.214),
        ("update", 3.214, 3.514),
        ("other", 3.514, 3.564),
    ]


def test_gloo_knows_one_all_reduce_the_ring() -> None:
    links: dict[LinkClass, LinkSpeed] = {
        name: replace(link, backend="gloo") for name, link in LINKS.items()
    }
    by_ring = replayed(PROFILE, Arrangement((2, 2)), LINKS, StepSetting(algorithm="ring"))
    assert replayed(PROFILE, Arrangement((2, 2)), links).step_s == by_ring.step_s


def test_a_link_that_nobody_measured_is_named() -> None:
    with pytest.raises(UserError, match="workers of different nodes"):
        replayed(PROFILE, Arrangement((1, 1)), {"node": NODE})
    assert replayed(PROFILE, Arrangement((1,)), {}).step_s == pytest.approx(5.45)


def test_what_never_fits_is_said() -> None:
    profile = replace(PROFILE, memory=MEMORY)
    with pytest.raises(UserError, match=r"over one sample needs more than its 2\.5 GB"):
        replayed(profile, Arrangement((2,)), LINKS, StepSetting(device_bytes=2.5e9))


def test_a_gpu_that_would_begin_too_late_gets_no_samples_and_delays_nobody() -> None:
    timeline = replayed(PROFILE, Arrangement((2,), speeds=(1.0, 0.01)), LINKS)
    assert timeline.samples == (16, 0)
    assert timeline.step_s == pytest.approx(5.1 + 0.062 + 0.35)


@pytest.mark.parametrize(
    ("on_nodes", "want"), [((2,), "2"), ((4, 4), "2x4"), ((2, 1), "2+1"), ((1, 1, 1), "3x1")]
)
def test_an_arrangement_is_written_as_it_is_asked_for(on_nodes: tuple[int, ...], want: str) -> None:
    assert str(Arrangement(on_nodes)) == want


ARRANGEMENTS = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(
    lambda on_nodes: Arrangement(tuple(on_nodes))
)
KINDS = st.sampled_from(
    [StepSetting(), StepSetting(exchange="sharded"), StepSetting(exchange="servers")]
)
PROFILES = st.builds(
    lambda ready, sizes, data_s, nodes: replace(
        PROFILE,
        batch=64,
        data_s=data_s,
        virtual_nodes=nodes,
        buckets=tuple(map(GradientBucket, sizes, sorted(ready))),
    ),
    st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3),
    st.lists(st.integers(1, 10**9), min_size=3, max_size=3),
    st.floats(0.0, 5.0),
    st.sampled_from([None, 8]),
)


@given(PROFILES, ARRANGEMENTS, KINDS, st.floats(0.05, 1.0))
def test_more_bandwidth_is_never_slower(
    profile: TrainingProfile, arrangement: Arrangement, setting: StepSetting, part: float
) -> None:
    crowded = replace(setting, bandwidth={"node": part, "cluster": part})
    whole_s = replayed(profile, arrangement, LINKS, setting).step_s
    assert whole_s <= replayed(profile, arrangement, LINKS, crowded).step_s + 1e-9


@given(PROFILES, ARRANGEMENTS, KINDS)
def test_a_step_is_as_long_as_each_of_its_bounds(
    profile: TrainingProfile, arrangement: Arrangement, setting: StepSetting
) -> None:
    timeline = replayed(profile, arrangement, LINKS, setting)
    bounds = (timeline.compute_s, timeline.total_s("exchange", "gather"), timeline.total_s("data"))
    assert timeline.step_s >= max(bounds) - 1e-9
    assert sum(timeline.samples) >= profile.batch
    begins = [span.begin_s for span in timeline.spans if span.what == "exchange"]
    assert begins == sorted(begins)


@given(PROFILES)
def test_one_worker_computes_and_sends_nothing(profile: TrainingProfile) -> None:
    timeline = replayed(profile, Arrangement((1,)), {})
    assert timeline.step_s == pytest.approx(timeline.compute_s + profile.data_s)
    assert not timeline.total_s("exchange")


@given(PROFILES, st.integers(2, 8))
def test_it_is_the_closed_form_of_the_simulator(profile: TrainingProfile, gpus: int) -> None:
    """`estimate.step_s` counts what is ready from the start of the step, and has no calls."""
    profile = replace(profile, virtual_nodes=None, batch=8 * gpus, data_s=0.0)
    timeline = replayed(profile, Arrangement((gpus,)), {"node": LinkSpeed(5.0, 100.0, 0.0, "gloo")})
    compute = 0.9 + 1.8
    ready = np.array([(0.9 + 1.8 * each.ready) / compute for each in profile.buckets])
    sizes = np.array([float(each.bytes_) for each in profile.buckets])
    sync = sync_s(Spread(gpus), sizes, Links(island=Link(5.0, 100.0)))
    want = float(step_s(np.array(compute), ready, sync))
    assert timeline.step_s == pytest.approx(want + 0.35)


def test_the_part_of_a_step_that_follows_the_links() -> None:
    """Alone nothing does, hidden exchanges don't, and a chain of buckets does as a whole."""
    assert replayed(PROFILE, Arrangement((1,)), LINKS).exchange_part == 0.0
    one = replayed(PROFILE, Arrangement((1, 1)), LINKS)
    assert one.exchange_part == pytest.approx(RING_S / one.step_s)
    both = replayed(PROFILE, Arrangement((1, 1)), LINKS, StepSetting(bandwidth={"cluster": 0.1}))
    assert both.exchange_part == pytest.approx(2 * 5.014 / both.step_s)
    early = replace(PROFILE, buckets=(GradientBucket(1, 0.01),))
    assert replayed(early, Arrangement((1, 1)), LINKS).exchange_part == 0.0
    sharded = replayed(early, Arrangement((1, 1)), LINKS, StepSetting(exchange="sharded"))
    assert sharded.exchange_part == pytest.approx(0.012 / sharded.step_s)
