"""Placement by profile: who is gathered, who waits for it, and who fills gaps."""

from dataclasses import replace

import numpy as np
import pytest

from coddl.core.errors import UserError
from coddl.core.placement.tiresias import fitted_limit
from coddl.core.registry import placement_from, policy_from
from coddl.core.scheduler import Scheduler
from tests.core.places import Case, Row, pictured

SKEWED, EVEN = 0.72, 0.11  # VGG19 and ResNet-50

CASES = {
    "a skewed job takes the node that it fills best": Case(
        (4, 3, 2), [Row(2, skew=SKEWED)], [{2: 2}]
    ),
    "or the fewest nodes": Case((2, 2, 4, 4), [Row(8, skew=SKEWED)], [{2: 4, 3: 4}]),
    "or waits": Case(
        (4, 4), [Row(3, {0: 2, 1: 1}, skew=EVEN), Row(4, skew=SKEWED)], [{0: 2, 1: 1}, {}]
    ),
    "an even one does not": Case(
        (4, 4), [Row(3, {0: 2, 1: 1}, skew=EVEN), Row(4, skew=EVEN)], [{0: 2, 1: 1}, {0: 2, 1: 2}]
    ),
    "an even job fills gaps, the smallest first": Case(
        (4, 4, 4),
        [Row(5, {0: 3, 1: 2}, skew=EVEN), Row(3, skew=EVEN)],
        [{0: 3, 1: 2}, {0: 1, 1: 2}],
    ),
    "a gap that holds it all is better": Case(
        (4, 4, 4), [Row(5, {0: 3, 1: 2}, skew=EVEN), Row(2, skew=EVEN)], [{0: 3, 1: 2}, {1: 2}]
    ),
    "without gaps it begins a node": Case((4, 4), [Row(2, skew=EVEN)], [{0: 2}]),
    "skewed jobs choose before even ones": Case(
        (4, 4), [Row(5, skew=EVEN), Row(3, skew=SKEWED)], [{0: 1, 1: 4}, {0: 3}]
    ),
    "who keeps its share stays, spread or not": Case(
        (4, 4), [Row(2, {0: 1, 1: 1}, skew=SKEWED)], [{0: 1, 1: 1}]
    ),
    "a skewed job grows where it is": Case((4, 4), [Row(4, {0: 3}, skew=SKEWED)], [{0: 4}]),
    "and on to as few nodes as there could be": Case(
        (4, 4), [Row(6, {0: 3}, skew=SKEWED)], [{0: 4, 1: 2}]
    ),
    "or stays as it is": Case(
        (4, 4), [Row(1, {0: 1}, skew=EVEN), Row(4, {0: 3}, skew=SKEWED)], [{0: 1}, {0: 3}]
    ),
    "a job that can't span has one node": Case(
        (4, 4),
        [Row(3, {0: 2, 1: 1}, skew=EVEN), Row(3, spans=False, skew=EVEN)],
        [{0: 2, 1: 1}, {1: 3}],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_jobs_are_placed(case: Case) -> None:
    snapshot, allocation = pictured(case)
    placed = placement_from("tiresias")(snapshot, allocation)
    assert [placed.slots.row(row) for row in range(len(case.rows))] == case.want


def test_who_waits_for_few_nodes_is_told_and_others_go_on() -> None:
    case = Case(
        (4, 4), [Row(5, {0: 3, 1: 2}, skew=EVEN), Row(3, skew=SKEWED), Row(1, skew=EVEN)], []
    )
    snapshot, _ = pictured(case)
    plan = Scheduler(policy_from("srsf"), placement=placement_from("tiresias")).decide(snapshot)
    assert plan.shares.tolist() == [5, 0, 1]
    why = plan.waiting(1)
    assert why is not None
    assert why.code == "Topology"


def test_the_limit_says_who_is_skewed() -> None:
    case = Case((4, 4), [Row(3, {0: 2, 1: 1}, skew=EVEN), Row(4, skew=SKEWED)], [])
    snapshot, allocation = pictured(case)
    placed = placement_from("tiresias:pack_limit=0.8")(snapshot, allocation)
    assert placed.shares.tolist() == [3, 4]
    assert placement_from("tiresias")(snapshot, allocation).shares.tolist() == [3, 0]
    with pytest.raises(UserError, match="from 0 to 1"):
        placement_from("tiresias:pack_limit=5")


# Skew of each job's model and the factor of a second node to it; the limit, nearest to 0.4.
FITS = {
    "between those that suffer apart and those that do not": (
        [(0.5, 1.0), (0.7, 1.2), (0.1, 1.0)], 0.6,
    ),
    "where it is, if it parts them": ([(0.1, 1.0), (0.7, 1.2)], 0.4),
    "so that fewest are mistaken": (
        [(0.1, 1.2), (0.5, 1.0), (0.5, 1.0), (0.7, 1.2)], 0.6,
    ),
    "below all of them": ([(0.2, 1.2), (0.7, 1.2)], 0.1),
    "at the largest, if nobody suffers": ([(0.2, 1.0), (0.7, 1.04)], 0.7),
    "where it is, if nobody tells": ([], 0.4),
}  # fmt: skip


@pytest.mark.parametrize(("models", "want"), FITS.values(), ids=FITS.keys())
def test_the_limit_is_fitted(models: list[tuple[float, float]], want: float) -> None:
    # Jobs of one GPU lie on one node whatever happens: they tell nothing.
    rows = [Row(2, skew=skew) for skew, _ in models] + [Row(1, skew=0.3)]
    snapshot, allocation = pictured(Case((4, 4), rows, []))
    nodes = np.ones((len(rows), 3, 3))
    nodes[:-1, 2, 2] = [factor for _, factor in models]
    places = snapshot.speeds.places._replace(nodes=nodes)
    snapshot = replace(snapshot, speeds=replace(snapshot.speeds, known_places=places))
    assert fitted_limit(snapshot, allocation.gpus, 0.4) == pytest.approx(want)


def test_what_the_fewest_nodes_cost_is_not_for_want_of_gathering() -> None:
    """Six GPUs lie on two nodes at least, and a third one costs no more than that."""
    snapshot, allocation = pictured(Case((4, 2, 2), [Row(6, skew=0.9)], []))
    nodes = np.array([[[1.0, 1.0, 1.5, 1.5]]])
    places = snapshot.speeds.places._replace(nodes=nodes)
    snapshot = replace(snapshot, speeds=replace(snapshot.speeds, known_places=places))
    assert fitted_limit(snapshot, allocation.gpus, 0.4) == 0.9


def test_a_fitted_limit_says_who_is_skewed() -> None:
    case = Case((4, 4), [Row(3, {0: 2, 1: 1}, skew=EVEN), Row(4, skew=SKEWED)], [])
    snapshot, allocation = pictured(case)  # nodes make no difference: nobody waits for them
    placed = placement_from("tiresias:fit=true")(snapshot, allocation)
    assert placed.shares.tolist() == [3, 4]
