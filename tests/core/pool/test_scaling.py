"""Nodes that an engine brings and takes away."""

import pytest

from coddl.core.node_count import NodeBounds
from coddl.core.pool import records as r
from coddl.core.pool.errors import Infeasible
from coddl.core.pool.scaling import EngineOrders, Release, orders_of
from tests.core.pool.story import Story

BOUNDS = NodeBounds(least=0, most=3, gpus=2, start_s=10.0, idle_s=60.0)


class Scaled(Story):
    """A pool with an engine that has brought nothing yet."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[str, r.ReportedNode] = {}
        self.orders = EngineOrders(0, ())

    def tell(self, after_s: float = 0.0) -> EngineOrders:
        """Let the engine report; obey what it is told but for joining."""
        self.now_s += after_s
        report = r.EngineReported("ray", BOUNDS, tuple(self.nodes.values()))
        self.happen(report)
        self.orders = orders_of(self.pool, report)
        for _ in range(self.orders.acquire):
            name = f"ray-{len(self.pool.engine.acquired) + len(self.nodes) + 1}"
            self.nodes[name] = r.ReportedNode(name, "starting")
        for release in self.orders.release:
            del self.nodes[release.node]
        return self.orders

    def bring(self) -> None:
        """Let all nodes that were asked for join."""
        for name, node in self.nodes.items():
            if node.state == "starting":
                self.nodes[name] = r.ReportedNode(name, "up")
                self.join(name, BOUNDS.gpus)

    def leave(self, name: str) -> None:
        """Let a node's agent end, with nothing left there."""
        self.happen(r.NodeSilent(name, "1"))
        self.happen(r.NodeLost(name, "1", "its agent ended"))


def trained(scaled: Scaled) -> int:
    job = scaled.submit(1, 6)
    assert scaled.tell().acquire == 1
    scaled.tell()
    scaled.bring()
    scaled.train(job)
    return job


def test_nothing_is_asked_for_without_work() -> None:
    scaled = Scaled()
    assert scaled.tell() == EngineOrders(0, ())
    assert scaled.pool.engine.wanted == 0


def test_a_job_that_waits_has_a_node_brought_and_says_so() -> None:
    scaled = Scaled()
    job = scaled.submit(1, 6)
    assert scaled.tell().acquire == 1
    assert scaled.tell().acquire == 0, "it is on its way"
    assert scaled.pool.engine.wanted_because == f"job {job} can use 1 GPU"
    scaled.bring()
    assert scaled.job(job).granted


def test_a_job_that_scales_has_more_nodes_brought_within_bounds() -> None:
    scaled = Scaled()
    job = trained(scaled)
    assert scaled.tell().acquire == 2
    scaled.tell()
    scaled.bring()
    scaled.catch_up()
    assert scaled.shares() == {job: 6}


def test_a_job_that_is_soon_over_has_no_node_brought() -> None:
    scaled = Scaled()
    job = trained(scaled)
    gpus = len(scaled.job(job).granted)
    scaled.happen(r.RunProgressed(job, scaled.job(job).attempt, 99, gpus, 0.5, 9))
    assert scaled.tell().acquire == 0


def test_idle_nodes_are_drained_and_given_back_for_good() -> None:
    scaled = Scaled()
    job = trained(scaled)
    (node,) = scaled.nodes
    scaled.happen(r.JobCancelled(job, "ada"))
    scaled.catch_up()
    assert scaled.tell() == EngineOrders(0, ())
    assert not scaled.pool.nodes[node].is_drained
    assert scaled.tell(61.0).release == (Release(node, 30.0),)
    assert scaled.pool.nodes[node].is_drained
    scaled.leave(node)
    scaled.tell()
    assert not scaled.pool.nodes
    assert not scaled.pool.slots
    assert not scaled.pool.engine.acquired


def test_a_node_that_is_needed_again_is_not_given_back() -> None:
    scaled = Scaled()
    job = trained(scaled)
    (node,) = scaled.nodes
    scaled.happen(r.JobSuspended(job, "ada"))
    scaled.tell()
    scaled.happen(r.EngineReported("ray", BOUNDS, tuple(scaled.nodes.values())))
    scaled.now_s += 61.0
    scaled.happen(r.EngineReported("ray", BOUNDS, tuple(scaled.nodes.values())))
    assert scaled.pool.nodes[node].is_drained, "and not released: the job's processes are there"
    scaled.happen(r.JobResumed(job, "ada"))
    scaled.tell()
    assert not scaled.pool.nodes[node].is_drained


def test_a_node_of_a_job_of_fixed_size_is_not_drained_to_save_it() -> None:
    scaled = Scaled()
    job = scaled.submit(1, 1, "opaque")
    scaled.tell()
    other = scaled.submit(2, 2, "opaque")
    scaled.tell()
    scaled.tell()
    scaled.bring()
    scaled.train(job, other)
    assert len(scaled.nodes) == 2
    scaled.happen(r.JobCancelled(other, "ada"))
    scaled.catch_up()
    scaled.tell()
    (home,) = scaled.pool.nodes_of(scaled.job(job).granted)
    released = scaled.tell(61.0).release
    assert [release.node for release in released] == [n for n in scaled.pool.nodes if n != home]


def test_a_node_that_its_engine_takes_away_is_emptied_in_time() -> None:
    scaled = Scaled()
    job = trained(scaled)
    (node,) = scaled.nodes
    scaled.nodes[node] = r.ReportedNode(node, "up", leaves_in_s=90.0, because="time limit")
    assert scaled.tell().acquire == 3, "it does not count any more"
    assert scaled.pool.nodes[node].leaves_at_s == pytest.approx(scaled.now_s + 90.0)
    before = len(scaled.journal)
    scaled.nodes[node] = r.ReportedNode(node, "up", leaves_in_s=89.0, because="time limit")
    scaled.tell()
    assert not [e for _, _, e in scaled.journal[before:] if isinstance(e, r.NodeDrained)]
    scaled.catch_up()
    assert node not in scaled.pool.nodes_of(scaled.job(job).granted)


def expire(scaled: Scaled, node: str, in_s: float) -> None:
    scaled.nodes[node] = r.ReportedNode(node, "up", expires_in_s=in_s)


def test_a_node_that_expires_is_used_until_another_one_has_come() -> None:
    scaled = Scaled()
    job = scaled.submit(1, 2)
    scaled.tell()
    scaled.tell()
    scaled.bring()
    scaled.train(job)
    (node,) = scaled.nodes
    expire(scaled, node, 900.0)
    assert scaled.tell().acquire == 1, "it does not count any more"
    scaled.tell(1.0)
    assert not scaled.pool.nodes[node].is_drained
    assert scaled.pool.nodes_of(scaled.job(job).granted) == (node,)
    scaled.bring()
    scaled.tell()
    assert scaled.pool.nodes[node].leaves_at_s == pytest.approx(scaled.now_s + 900.0)
    scaled.catch_up()
    assert node not in scaled.pool.nodes_of(scaled.job(job).granted)
    assert scaled.tell().release == (Release(node, 30.0),)
    assert scaled.tell().acquire == 0


def test_a_node_that_expires_is_left_at_last_though_no_other_has_come() -> None:
    scaled = Scaled()
    job = trained(scaled)
    (node,) = scaled.nodes
    expire(scaled, node, 900.0)
    scaled.tell()
    scaled.nodes[node] = r.ReportedNode(node, "up", leaves_in_s=120.0, because="time limit")
    scaled.tell(780.0)
    assert scaled.pool.nodes[node].leaves_at_s == pytest.approx(scaled.now_s + 120.0)
    scaled.catch_up()
    assert not scaled.job(job).granted, "it is saved, and waits for another one"


def test_a_job_of_fixed_size_uses_the_rest_of_a_nodes_time() -> None:
    scaled = Scaled()
    job = scaled.submit(2, 2, "opaque")
    scaled.tell()
    scaled.tell()
    scaled.bring()
    scaled.train(job)
    (node,) = scaled.nodes
    expire(scaled, node, 900.0)
    scaled.tell()
    scaled.bring()
    scaled.tell()
    assert not scaled.pool.nodes[node].is_drained


def test_a_node_that_expires_and_is_not_needed_is_given_back() -> None:
    scaled = Scaled()
    job = trained(scaled)
    (node,) = scaled.nodes
    scaled.happen(r.JobCancelled(job, "ada"))
    scaled.catch_up()
    scaled.tell()
    expire(scaled, node, 900.0)
    assert scaled.tell() == EngineOrders(0, (Release(node, 30.0),))


def test_a_node_that_an_operator_empties_by_a_deadline_is_given_back() -> None:
    scaled = Scaled()
    job = trained(scaled)
    (node,) = scaled.nodes
    scaled.happen(r.NodeDrained(node, "ops"))
    scaled.catch_up()
    assert not scaled.tell().release, "it may be used again"
    scaled.happen(r.NodeDrained(node, "ops", 90.0))
    scaled.catch_up()
    assert scaled.tell().release == (Release(node, 30.0),)
    assert node not in scaled.pool.nodes_of(scaled.job(job).granted)


def test_a_node_whose_processes_have_ended_for_sure_is_not_waited_for() -> None:
    scaled = Scaled()
    job = trained(scaled)
    (node,) = scaled.nodes
    gone = r.EngineReported("ray", BOUNDS, (), ended=(node, "never-heard-of"))
    scaled.happen(gone)
    assert scaled.pool.nodes[node].is_up, "its agent still speaks: it says goodbye itself"
    scaled.happen(r.NodeSilent(node, "1"))
    scaled.happen(gone)
    assert node not in scaled.pool.nodes
    assert not scaled.job(job).granted


def test_a_node_with_live_processes_is_not_taken_for_gone_before_its_lease_is() -> None:
    scaled = Scaled()
    job = trained(scaled)
    (node,) = scaled.nodes
    del scaled.nodes[node]
    scaled.happen(r.NodeSilent(node, "1"))
    scaled.tell()
    assert scaled.job(job).granted
    scaled.happen(r.NodeLost(node, "1", "its lease expired"))
    scaled.tell()
    assert node not in scaled.pool.nodes


def test_a_node_that_its_engine_lost_track_of_is_left_while_its_agent_is_there() -> None:
    scaled = Scaled()
    job = trained(scaled)
    (node,) = scaled.nodes
    del scaled.nodes[node]
    before = len(scaled.journal)
    scaled.tell()
    scaled.tell(5.0)
    drained = [e for _, _, e in scaled.journal[before:] if isinstance(e, r.NodeDrained)]
    assert drained == [r.NodeDrained(node, "ray", 30.0, "ray no longer has it")], "once"
    scaled.bring()
    scaled.catch_up()
    assert node not in scaled.pool.nodes_of(scaled.job(job).granted)
    assert node in scaled.pool.nodes, "its agent lives"
    scaled.happen(r.NodeSilent(node, "1"))
    scaled.tell()
    assert node not in scaled.pool.nodes


def test_a_job_that_no_number_of_nodes_can_hold_is_refused() -> None:
    scaled = Scaled()
    scaled.tell()
    with pytest.raises(Infeasible, match="the pool has at most 6, on 3 nodes of 2"):
        scaled.submit(7, 8)
    with pytest.raises(Infeasible, match="at most 2, on a node"):
        scaled.submit(3, 3, "opaque")
    scaled.submit(6, 8)
