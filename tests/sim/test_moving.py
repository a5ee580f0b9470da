"""What it costs to get to another node, and who gets there."""

import json
from pathlib import Path

import numpy as np
import pytest

from coddl.core.cluster import Cluster, Node
from coddl.core.errors import UserError
from coddl.core.slots import Slots
from coddl.sim.api import reconfigure_from
from coddl.sim.moving import LastNodes, move_pauses
from coddl.sim.world import Reconfigure

STORY = {  # where a job sits on nodes with two islands each, and whether it has left a node
    "it starts": ({0: 1}, False),
    "it moves within its node": ({1: 1}, False),
    "it grows there": ({0: 2, 1: 1}, False),
    "it waits": ({}, False),
    "it comes back": ({0: 1}, False),
    "it waits again": ({}, False),
    "it goes on elsewhere": ({2: 1}, True),
    "it stays": ({2: 1}, False),
    "it grows onto another node": ({2: 1, 4: 1}, True),
    "it shrinks": ({4: 1}, False),
}


def test_a_job_leaves_a_node_for_one_it_was_not_on_when_it_last_ran() -> None:
    nodes = tuple(Node(f"{at}", 4, island_gpus=2) for at in range(3))
    columns, last = Cluster(nodes).columns, LastNodes(8, 3)
    for what, (seat, left) in STORY.items():
        found = last.left(columns, np.array([2, 5]), Slots.of([{0: 1}, seat]))
        assert found.tolist() == [False, left], what


def test_a_move_takes_longer_with_more_gpus() -> None:
    assert move_pauses((1.5, 36.5), np.array([1, 2, 8, 15])).tolist() == [1.5, 6.5, 36.5, 71.5]


def test_a_user_says_what_moves_cost() -> None:
    assert reconfigure_from("stall:0.1") == Reconfigure("stall", 0.0, 0.1)
    moves = Reconfigure("stall", pause_s=0.1, move_s=(1.5, 35.0))
    assert reconfigure_from("stall:0.1,1.5,35") == moves
    bad = {"stall:0.1,1.5": "1 or 3", "stall:1,2,-1": "1 or 3", "serial:1,2,3": "1"}
    for spec, wanted in bad.items():
        with pytest.raises(UserError, match=f"is not {wanted} number"):
            reconfigure_from(spec)


def test_what_a_pool_has_measured_is_read(tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps({"items": [], "switch_s": 0.21, "reconfigure": "stall:0.21"}))
    assert reconfigure_from(str(costs)) == Reconfigure("stall", 0.0, 0.21)
    costs.write_text(json.dumps({"items": [], "switch_s": None, "reconfigure": None}))
    with pytest.raises(UserError, match="contains no costs"):
        reconfigure_from(str(costs))
    for text in ("", "[]", "{}"):
        costs.write_text(text)
        with pytest.raises(UserError, match="cannot be read"):
            reconfigure_from(str(costs))
    with pytest.raises(UserError, match="cannot be read"):
        reconfigure_from(str(tmp_path / "none.json"))
