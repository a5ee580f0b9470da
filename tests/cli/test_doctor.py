"""`coddl doctor`, as a user calls it."""

import json
from pathlib import Path

from coddl import __version__
from tests.cli.conftest import Coddl
from tests.cli.stub_pool import Reply, StubPool, problem


def test_this_machine_is_checked_and_nothing_is_changed(coddl: Coddl, tmp_path: Path) -> None:
    done = coddl("doctor", "-o", "json")
    found = json.loads(done.out)
    assert (done.code, found["ok"]) == (0, True)
    checks = {each["check"]: each for each in found["checks"]}
    assert checks["python"]["state"] == "OK"
    assert checks["server"]["what"] == "no pool is running"
    assert not (tmp_path / "state").exists()


def test_a_server_that_refuses_the_token_fails(coddl: Coddl, pool: StubPool) -> None:
    refusal = problem(401, "the request is refused", "its token is not the server's", "CODDL_TOKEN")
    pool.will("GET", "/nodes", refusal)
    done = coddl("doctor")
    assert done.code == 1
    said = [line.split(maxsplit=2) for line in done.out.splitlines()]
    assert ["FAIL", "server", "the request is refused"] in said
    assert any(words[0] == "because" and "token" in words[2] for words in said)
    assert done.out.splitlines()[-1].endswith("1 FAIL")


def test_a_good_server_is_told_of(coddl: Coddl, pool: StubPool) -> None:
    pool.will("GET", "/nodes", Reply(200, {"items": [{"name": "n1", "is_up": False}]}))
    pool.will("GET", "/pool", Reply(200, {"version": __version__}))
    done = coddl("doctor", "--json")
    found = {each["check"]: each for each in json.loads(done.out)["checks"]}
    assert (done.code, found["server"]["state"]) == (0, "OK")
    assert (found["clock"]["state"], found["nodes"]["state"]) == ("OK", "WARN")
    assert found["nodes"]["try"].startswith("coddl nodes")


def test_an_engine_that_can_not_be_checked_is_refused(coddl: Coddl) -> None:
    done = coddl("doctor", "--engine", "mesos")
    assert done.code == 2
    assert "because the engine that can be checked is: ray" in done.err
