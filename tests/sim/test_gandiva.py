"""Gandiva in virtual time: turns, trials, growth and early feedback."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from coddl.core.cluster import Cluster, Node
from coddl.core.placement.gandiva import GandivaPlacement
from coddl.core.policies.fifo import Fifo
from coddl.core.policies.gandiva.policy import Gandiva
from coddl.core.speed.table import Speeds
from coddl.sim.progress import iterations_at, time_to_iterations
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, run_case
from coddl.sim.world import SHARE, Reconfigure
from coddl.testing.builders import speeds_from
from coddl.traces.gandiva_table import packing_speeds, packing_table
from coddl.traces.generators import poisson
from coddl.traces.trace import Trace, trace_of

LINEAR = speeds_from([[1.0 / gpus for gpus in range(1, 9)]])  # an iteration a GPU-second


def trace(
    jobs: Sequence[tuple[float, float, int]], speeds: Speeds = LINEAR, most: int | None = None
) -> Trace:
    """Jobs (submitted, seconds at the request, GPUs) of the first model."""
    submitted_s, length_s, gpus = map(np.array, zip(*jobs, strict=True))
    zeros = np.zeros(len(jobs), np.int64)
    return trace_of(
        "t",
        speeds,
        submitted_s=submitted_s * 1.0,
        curve=zeros,
        iterations=length_s / speeds.step_s[0, gpus],
        gpus_requested=gpus,
        gpus_max=gpus if most is None else zeros + most,
    )


@pytest.mark.parametrize("cluster", [None, Cluster.of(4, 2), Cluster.of(4, 1)])
def test_six_jobs_on_four_gpus_get_four_sixths_of_one_each(cluster: Cluster | None) -> None:
    case = Case(RunKey("g", 4), Gandiva(), trace([(0.0, 36_000.0, 1)] * 6), cluster=cluster)
    hour = 3600.0
    got = iterations_at(case, [hour])[0]
    # Servers with two GPUs have three jobs each. Of four with one, two have one job, two have two:
    # jobs of one size keep to their servers, and only a departure makes others move.
    want = {4: [hour, hour, *[hour / 2] * 4]}.get(
        0 if cluster is None else len(cluster.nodes), [hour * 4 / 6] * 6
    )
    assert sorted(got, reverse=True) == pytest.approx(want, abs=60.0)
    assert got.sum() == pytest.approx(4 * hour)


def test_a_switch_costs_what_a_change_of_share_does() -> None:
    jobs = trace([(0.0, 600.0, 1)] * 2)
    run = run_case(
        Case(RunKey("g", 1), Gandiva(), jobs, reconfigure=Reconfigure("stall", pause_s=0.1))
    )
    # 20 slices on one GPU, each with a start but for the last, in which a job is alone already.
    assert run.finish_s.max() == pytest.approx(1200.0 + 0.1 * run.reallocations / 2, abs=0.2)
    assert run.reallocations > 30


def test_a_move_costs_more_than_a_switch_though_the_job_was_suspended() -> None:
    jobs = trace([(0.0, 1000.0, 1), (0.0, 90.0, 1), (0.0, 1000.0, 1)])
    switch = Reconfigure("stall", pause_s=0.1, move_s=(1.5, 35.0))
    case = Case(RunKey("g", 2), Gandiva(), jobs, cluster=Cluster.of(2, 1), reconfigure=switch)
    # The third job takes the first one's turn at 60 s. The second ends after 0.1 + 90 s, and the
    # first, which has trained for 59.9 s, goes on in its place.
    assert run_case(case).finish_s == pytest.approx([90.1 + 1.5 + 940.1, 90.1, 60.0 + 0.1 + 1000.0])


def test_a_job_on_slow_gpus_moves_when_faster_ones_are_free() -> None:
    jobs = trace([(0.0, 100.0, 1), (10.0, 200.0, 1)])
    cluster = Cluster((Node("new", 1), Node("old", 1, kind=1)), kinds=("new", "old"))
    places = LINEAR.places._replace(kinds=np.array([[1.0, 5.0]]))
    jobs = replace(jobs, speeds=replace(LINEAR, known_places=places, kinds=cluster.kinds))
    move = Reconfigure("stall", move_s=(2.0, 9.0))
    run = run_case(Case(RunKey("g", 2), Gandiva(), jobs, cluster=cluster, reconfigure=move))
    # In its first 90 s it does a fifth of that.
    assert run.finish_s == pytest.approx([100.0, 100.0 + 2.0 + 200.0 - 18.0])
    assert run.migrations == 1


def test_a_job_of_weight_two_stays_for_two_slices() -> None:
    jobs = replace(trace([(0.0, 3600.0, 1)] * 2), weight=np.array([2.0, 1.0]))
    times_s = [120.0, 180.0, 300.0, 1800.0]
    got = iterations_at(Case(RunKey("g", 1), Gandiva(), jobs), times_s)
    assert got.tolist() == [[120.0, 0.0], [120.0, 60.0], [240.0, 60.0], [1200.0, 600.0]]


def test_jobs_do_not_wait_for_long_jobs_ahead_of_them() -> None:
    jobs = trace([(0.0, 36_000.0, 4), (10.0, 60.0, 4)])
    gandiva = run_case(Case(RunKey("g", 8), Gandiva(), jobs, cluster=Cluster.of(8, 4)))
    assert gandiva.jct_s[1] == pytest.approx(60.0)
    crowded = run_case(Case(RunKey("g", 4), Gandiva(), jobs))
    assert crowded.jct_s[1] <= 180.0  # its turn comes at once, and again after one of the other
    assert run_case(Case(RunKey("f", 4), Fifo(), jobs)).jct_s[1] == pytest.approx(36_050.0)


@pytest.mark.parametrize("row", packing_table(), ids=lambda row: row.model)
def test_packing_stays_only_where_it_pays(row: object) -> None:
    table = packing_table()
    at = table.index(row)  # type: ignore[arg-type]  # one of the table's
    speeds = packing_speeds()
    jobs = replace(trace([(0.0, 3600.0, 1)] * 2, speeds), curve=np.full(2, at))
    jobs = replace(jobs, iterations=3600.0 / speeds.step_s[jobs.curve, 1])
    cluster, place = Cluster.of(1), GandivaPlacement()
    tries = Gandiva(pack_below=1.0)
    run = run_case(Case(RunKey("g", 1), tries, jobs, cluster=cluster, placement=place))
    gain = 7200.0 / run.end_s - 1.0
    if table[at].gain > 0:
        assert gain == pytest.approx(min(1.0, table[at].gain), rel=0.1)
    else:
        assert -0.01 < gain < 0.0  # one slice of trial


def test_a_job_grows_to_the_idle_gpus_of_its_server_and_shrinks_for_others() -> None:
    # Alone on the server, then grown after a minute, then two jobs come.
    jobs = trace([(0.0, 1000.0, 1), (200.0, 100.0, 1), (200.0, 100.0, 1)], most=4)
    run = run_case(Case(RunKey("g", 4), Gandiva(), jobs, keep_events=True))
    assert run.events is not None
    first = (run.events.job == 0) & (run.events.kind == SHARE)
    story = list(zip(run.events.time_s[first], run.events.gpus[first], strict=True))
    assert story[:3] == [(0.0, 1), (60.0, 4), (200.0, 2)]


def test_the_first_iterations_are_timed_through_suspensions_and_slowdowns() -> None:
    jobs = trace([(0.0, 600.0, 1)] * 3)
    case = Case(RunKey("g", 1), Gandiva(), jobs)
    # Turns of 60 s: the first job has done 90 iterations 30 s into its second turn, at 210 s.
    assert time_to_iterations(case, 90.0).tolist() == [210.0, 270.0, 330.0]
    assert time_to_iterations(case, 60.0).tolist() == [60.0, 120.0, 180.0]
    everything = time_to_iterations(case, 1e9)
    assert everything.tolist() == run_case(case).jct_s.tolist()
    slow = LINEAR.places._replace(nodes=np.full((1, 1, 1), 2.0))
    slowed = replace(jobs, speeds=replace(LINEAR, known_places=slow))
    case = Case(
        RunKey("f", 3), Fifo(), slowed, cluster=Cluster.of(3, 1), placement=GandivaPlacement()
    )
    assert time_to_iterations(case, 90.0).tolist() == [180.0] * 3
    assert iterations_at(case, [0.0, 100.0, 1e6]).tolist() == [[0.0] * 3, [50.0] * 3, [600.0] * 3]


NODES = {
    "servers of a size": [Node(f"{i}", 4) for i in range(6)],
    "islands": [Node(f"{i}", 4, island_gpus=2) for i in range(6)],
    "servers of several sizes and kinds": [
        Node(f"{i}", 2 + 2 * (i % 3), kind=i % 2, rack=i // 3) for i in range(6)
    ],
}


@pytest.mark.parametrize("nodes", NODES.values(), ids=NODES.keys())
def test_too_many_jobs_of_all_sizes_come_to_an_end(nodes: list[Node]) -> None:
    # Every decision is checked on the way: no GPU twice, but by pairs; a reason for who waits.
    jobs = poisson(jobs=60, gpus=24, load=2.0, seed=3)
    models = len(jobs.speeds.names)
    rng = np.random.default_rng(1)
    places = jobs.speeds.places._replace(
        busy=rng.random(models), packed=rng.uniform(1.0, 2.5, (models, models))
    )
    jobs = replace(jobs, speeds=replace(jobs.speeds, known_places=places))
    cluster = Cluster(tuple(nodes), kinds=("a", "b") if nodes[1].kind else ("a",))
    run = run_case(Case(RunKey("g", cluster.gpus_total), Gandiva(), jobs, cluster=cluster))
    assert run.finished.all()
    assert run.migrations > 0


def test_the_packing_table_is_the_published_one() -> None:
    table = packing_table()
    published = [412, 260, 46, 39, 17, -16, -13, -11]  # Gandiva, OSDI '18, Table 1
    assert [row.gain_percent for row in table] == published
    assert [100 * row.gain for row in table] == pytest.approx(published, abs=1.0)
