"""`coddl doctor`, as a user calls it."""

import json
from pathlib import Path

import pytest

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
    assert "because the engines that can be checked are: ray, slurm" in done.err


REFUSED = {
    "a partition of Ray": (["--engine", "ray", "--partition", "gpu"], "--partition", "Slurm alone"),
    "an option of sbatch without an engine": (["--sbatch-arg=--mem=8G"], "--sbatch-arg", "Slurm"),
    "an address of Slurm": (["--engine", "slurm", "--address", "a:1"], "--address", "know their"),
    "a time that is none": (["--engine", "slurm", "--time", "8h"], "--time 8h", "HH:MM:SS"),
    "a word of sbatch": (["--engine", "slurm", "--sbatch-arg", "64G"], "64G", "not one option"),
    "two words of sbatch": (
        ["--engine", "slurm", "--sbatch-arg", "-C a"],
        "-C a",
        "not one option",
    ),
    "what has its own option": (
        ["--engine", "slurm", "--sbatch-arg=--partition=gpu"],
        *("--sbatch-arg --partition=gpu", "coddl has an option --partition"),
    ),
}


@pytest.mark.parametrize(("words", "what", "because"), REFUSED.values(), ids=REFUSED.keys())
def test_options_that_do_not_fit_are_refused(
    coddl: Coddl, words: list[str], what: str, because: str
) -> None:
    done = coddl("doctor", *words)
    assert done.code == 2
    [first, second, *_] = done.err.splitlines()
    assert f"{what} can't be used" in first
    assert because in second
