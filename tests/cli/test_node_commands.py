"""The commands for the nodes of a pool, against a server that says what it was told to."""

import time

import pytest

from tests.cli.conftest import Coddl
from tests.cli.recorded import NODE
from tests.cli.stub_pool import StubPool

pytestmark = pytest.mark.usefixtures("work_folder")


def test_nodes_tell_their_versions_and_where_they_differ(coddl: Coddl, pool: StubPool) -> None:
    node = NODE | {"python": "3.11.7", "torch": "2.13.0", "coddl": ""}
    pool.will("GET", "/nodes", {"items": [node], "problems": ["nodes have different versions"]})
    shown = coddl("nodes", "-o", "wide")
    header, row = (line.split() for line in shown.out.splitlines())
    assert header[6:9] == ["PYTHON", "TORCH", "CODDL"]
    assert row[-4:] == ["3.11.7", "2.13.0", "-", "12"]
    assert shown.err == "note: nodes have different versions\n"
    assert "PYTHON" not in coddl("nodes").out


def test_nodes_are_drained_and_used_again(coddl: Coddl, pool: StubPool) -> None:
    pool.will("GET", "/nodes", {"items": [NODE]})
    assert coddl("nodes").out.splitlines()[1].split()[:2] == ["n1", "UP"]
    pool.will("POST", "/nodes/n1:drain", NODE)
    assert coddl("drain", "n1").out == "n1: drained; moving away: job 12\n"
    pool.will("POST", "/nodes/n1:undrain", NODE)
    assert coddl("drain", "n1", "--undo").out == "n1: no longer drained; it takes jobs again\n"


def test_a_node_is_drained_by_a_deadline(coddl: Coddl, pool: StubPool) -> None:
    leaving = NODE | {"leaves_at_s": time.time() + 89.5}
    pool.will("POST", "/nodes/n1:drain", leaving)
    assert coddl("drain", "n1", "--within", "90s").out == (
        "n1: drained; moving away within 90s: job 12\n"
    )
    assert pool.saw("POST", "/nodes/n1:drain")[-1].parameters == {"within_s": "90"}
    pool.will("GET", "/nodes", {"items": [leaving]})
    assert coddl("nodes").out.splitlines()[-1].startswith("n1: to be empty in 1m2")
    assert "--within soon can't be used" in coddl("drain", "n1", "--within", "soon").err
    assert "--undo" in coddl("drain", "n1", "--within", "9s", "--undo").err


def test_a_lost_node_is_forgotten(coddl: Coddl, pool: StubPool) -> None:
    pool.will("POST", "/nodes/n1:forget", NODE | {"state": "LOST"})
    assert coddl("forget", "n1").out == "n1: forgotten\n"
