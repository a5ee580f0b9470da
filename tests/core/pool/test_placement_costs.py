"""What a pool knows of places: estimated from the models that jobs tell of, when somebody asks."""

import numpy as np
import pytest

from coddl.core.cluster import Cluster, Link, Links, Node
from coddl.core.columns import FloatCube
from coddl.core.pool import records as r
from coddl.core.pool.decision import POOL_STABILITY
from coddl.core.pool.explain import sentence_of
from coddl.core.pool.snapshot import snapshot_of_pool
from coddl.core.registry import placement_from, policy_from
from coddl.core.scheduler import Scheduler
from coddl.core.speed.inspection import LinkClass, LinkSpeed
from coddl.core.speed.places import Places
from coddl.core.speed.profile import GradientBucket, SliceTime, TrainingProfile
from tests.core.pool.story import Story

ONE_TENSOR = (10**9, 10**9)
MANY_TENSORS = (10**9, 10**8)
SITE = Cluster((Node("a", 2), Node("b", 2)), links=Links(rack=Link(1.0, 0.0)))


def test_a_known_model_is_slower_across_nodes_as_the_links_say_and_another_is_not() -> None:
    story = Story(2, 2)
    known, unknown = story.submit(1, 2), story.submit(1, 2)
    story.train(known, gradients=ONE_TENSOR)
    story.train(unknown)
    for gpus, step_s in ((1, 2.0), (2, 1.2)):
        story.happen(r.RunProgressed(known, 1, 10, gpus, step_s, 10))
    places = snapshot_of_pool(story.pool, story.now_s, 1, site=SITE).snapshot.speeds.places
    # Within a node 1 GB is averaged in 1 GB / 20 GB/s and two messages of 5 us, at the end of the
    # backward pass as it is one tensor; so a step of 1.2 s computes for 1.14999 s. Between the two
    # nodes it takes a second.
    want = [1.0, 1.0, (1.14999 + 1.0) / 1.2]
    assert places.nodes[0, 2] == pytest.approx(want)
    assert places.skew.tolist() == [1.0, 0.0]
    assert (places.nodes[1] == 1.0).all()
    assert (places.kinds == 1.0).all()


def test_a_size_beyond_a_jobs_own_costs_what_its_largest_does() -> None:
    story = Story(2, 2)
    small, large = story.submit(1, 2), story.submit(1, 4)
    story.train(small, large, gradients=ONE_TENSOR)
    nodes = snapshot_of_pool(story.pool, story.now_s, 1, site=SITE).snapshot.speeds.places.nodes
    assert nodes.shape == (2, 5, 3)
    assert (nodes[0, 3:] == nodes[0, 2]).all()


@pytest.mark.parametrize(("names", "cpus"), [("ab", 16), ("a", 0)])
def test_cores_count_if_those_of_every_node_are_known(names: str, cpus: int) -> None:
    site = Cluster(tuple(Node(name, 2, cpus=8) for name in names))
    cluster = snapshot_of_pool(Story(2, 2).pool, 0.0, 1, site=site).snapshot.cluster
    assert cluster.columns.node_cpus.sum() == cpus


@pytest.mark.parametrize(("placement", "asks"), [("consolidate", False), ("tiresias", True)])
def test_places_are_worked_out_for_those_who_ask(placement: str, asks: bool) -> None:
    story = Story(2, 2)
    story.train(story.submit(), gradients=ONE_TENSOR)
    snapshot = snapshot_of_pool(story.pool, story.now_s, 1).snapshot
    Scheduler(policy_from(story.pool.policy), POOL_STABILITY, placement_from(placement)).decide(
        snapshot
    )
    assert ("places" in vars(snapshot.speeds)) == asks


GATHERED = {"one tensor": ONE_TENSOR, "many": MANY_TENSORS, "unknown": (0, 0)}


@pytest.mark.parametrize(("name", "gradients"), GATHERED.items())
def test_tiresias_keeps_a_skewed_model_together_and_lets_others_fill_gaps(
    name: str, gradients: tuple[int, int]
) -> None:
    story = Story(2, 2)
    story.happen(r.PolicyChosen(story.pool.policy, "", "tiresias"))
    job, filler = story.submit(1, 2), story.submit(1, tier="opaque")
    story.train(filler)
    story.train(job, gradients=gradients)
    nodes = story.pool.nodes_of(story.job(job).granted)
    if name != "one tensor":
        assert nodes == ("a", "b")
        return
    assert nodes == ("a",)  # it could have had a device of b as well
    story.happen(r.RunEnded(filler, 1, "succeeded"))
    story.catch_up()
    assert story.pool.nodes_of(story.job(job).granted) == ("a",)
    assert story.shares() == {job: 2}


def test_a_scattered_job_is_gathered_and_told_what_that_is_worth() -> None:
    story = Story(2, 2)
    story.happen(r.PolicyChosen(story.pool.policy, "", "consolidate:defragment_h=1"))
    job, filler = story.submit(1, 2), story.submit(1, tier="opaque")
    story.train(filler)
    story.train(job, gradients=ONE_TENSOR)
    assert story.pool.nodes_of(story.job(job).granted) == ("a", "b")
    story.happen(r.RunEnded(filler, 1, "succeeded"))
    story.catch_up()
    story.now_s = 3599.0  # a round is held every full hour
    story.happen(r.Woke())
    story.catch_up()
    assert story.pool.nodes_of(story.job(job).granted) == ("a",)
    # A step computes for 0.5 s and averages 1 GB at 5 GB/s, or within a node at 20: 0.7 s or 0.55.
    # 99 steps are left; each saves 0.136 s of the 0.5 s that it is taken to need at best.
    assert "from 2 nodes to 1: steps 1.27x faster, 13 s saved" in story.job(job).reason


def test_a_run_that_tells_more_than_the_last_is_heard() -> None:
    story = Story(2)
    job = story.submit(1, 2)
    story.train(job)  # by an older version
    assert story.job(job).gradient_bytes == 0
    prepared = r.RunPrepared(job, 1, None, 100, 64, *ONE_TENSOR, 8)
    assert prepared in story.happen(prepared).records
    assert story.job(job).gradient_bytes == 10**9
    assert story.happen(prepared).records == ()  # a repeat
    assert sentence_of(prepared) == (
        "job 1 is resizable: up to 8 GPUs, 100 steps, 1,000.00 MB of gradients"
    )


def test_any_size_a_script_tells_can_be_estimated() -> None:
    story = Story(2, 2)
    story.train(story.submit(), gradients=(10**15, 1))
    assert np.isfinite(
        snapshot_of_pool(story.pool, story.now_s, 1).snapshot.speeds.places.nodes
    ).all()


NODE, NETWORK = LinkSpeed(10.0, 0.0, 0.0, "gloo"), LinkSpeed(1.0, 0.0, 0.0, "gloo")


def profiled_nodes(links: dict[LinkClass, LinkSpeed]) -> tuple[FloatCube, Places]:
    """What nodes cost a job, before and after its profile is known."""
    story = Story(2, 2, links=links)
    job = story.submit(1, 2)
    story.train(job, gradients=ONE_TENSOR)
    before = snapshot_of_pool(story.pool, story.now_s, 1, site=SITE).snapshot.speeds.places
    # 1 s for 8 samples; 1 GB of gradients, of which nine tenths are ready when it begins.
    early, late = GradientBucket(9 * 10**8, 0.01), GradientBucket(10**8, 1.0)
    slices = (SliceTime(8, 0.0, 4.0),)
    profile = TrainingProfile("cpu", 8, slices, 0.0, 0.0, 0.0, (early, late))
    story.happen(r.RunProfiled(job, 1, profile))
    after = snapshot_of_pool(story.pool, story.now_s, 1, site=SITE).snapshot.speeds.places
    return before.nodes, after


def test_a_profile_says_what_places_cost_where_links_were_inspected() -> None:
    before, after = profiled_nodes({"node": NODE, "cluster": NETWORK})
    # On a node 2 s and 0.1 GB at 10 GB/s; on two, at 1 GB/s. All else hides behind computing.
    assert after.nodes[0, 2].tolist() == pytest.approx([1.0, 1.0, 2.1 / 2.01])
    assert after.network[0, 2] == pytest.approx(2.2 / 2.1 - 1.0)
    assert after.nodes[0, 2, 2] < before[0, 2, 2]


@pytest.mark.parametrize("links", [{}, {"node": NODE}])
def test_without_links_places_cost_what_is_estimated(links: dict[LinkClass, LinkSpeed]) -> None:
    before, after = profiled_nodes(links)
    assert after.nodes[0, 2].tolist() == pytest.approx(before[0, 2].tolist(), rel=0.2)
    assert after.nodes[0, 2, 2] > 1.2
