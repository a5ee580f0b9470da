"""Plug-ins of a pool on the command line: up loads them, policies lists them, policy names them."""

import json
from pathlib import Path

import pytest

from coddl.cli.pool import words_of_up
from coddl.engines.pool import PoolOptions, PoolProcess
from coddl.engines.sharing_options import SharingOptions
from tests.cli.conftest import Coddl
from tests.cli.stub_pool import StubPool

pytestmark = pytest.mark.usefixtures("work_folder")

PLUGIN = "def mine(snapshot):\n    'Gives all to one.'\n"
OFFERED = {
    "name": "mine.py:Mine",
    "summary": "Gives all to one.",
    "rules": "By turns.",
    "parameters": [{"name": "times", "kind": "a number", "default": "1", "meaning": "how often"}],
}
REFUSED = {
    "a missing file": (("--plugin", "nosuch.py"), "there is no file"),
    "a file that fails": (("--plugin", "fails.py"), "fails.py fails: ZeroDivisionError"),
    "a file that defines nothing": (("--plugin", "empty.py"), "no policy and no placement"),
    "one good file and one bad": (
        ("--plugin", "mine.py", "--plugin", "fails.py"),
        "ZeroDivisionError",
    ),
    "a name that it lacks": (
        ("--plugin", "mine.py", "--policy", "mine.py:nosuch"),
        'plug-in mine.py has no policy "nosuch"',
    ),
    "a name without its file": (
        ("--policy", "mine.py:mine"),
        "the server was started without the plug-in mine.py",
    ),
}


@pytest.mark.parametrize(("words", "because"), REFUSED.values(), ids=REFUSED.keys())
def test_up_refuses_a_plug_in_that_can_not_be_used_and_changes_nothing(
    words: tuple[str, ...], because: str, coddl: Coddl, work_folder: Path, tmp_path: Path
) -> None:
    (work_folder / "mine.py").write_text(PLUGIN)
    (work_folder / "fails.py").write_text("1 / 0")
    (work_folder / "empty.py").write_text("")
    done = coddl("up", "--state-dir", tmp_path / "new", *words)
    assert (done.code, done.out) == (2, "")
    assert because in done.err
    assert "\n  try     " in done.err
    assert not (tmp_path / "new").exists()


def test_the_server_of_a_pool_is_given_its_plug_ins_at_every_start() -> None:
    sharing = SharingOptions(plugins=("/a/one.py", "/b/two.py"), policy="fifo")
    options = PoolOptions(folder=Path("/pool"), sharing=sharing)
    given = "--plugin /a/one.py --plugin /b/two.py"
    assert given in " ".join(words_of_up(options))
    pool = PoolProcess(options)
    assert given in " ".join(pool._server_words())
    again = " ".join(pool._server_words(again_at="http://127.0.0.1:4321"))
    assert given in again
    assert "--policy" not in again


def test_policies_of_the_pools_plug_ins_are_listed(coddl: Coddl, pool: StubPool) -> None:
    pool.will("GET", "/plugins", {"policies": [OFFERED], "placements": []})
    lines = [line.split() for line in coddl("policies").out.splitlines()]
    assert ["mine.py:Mine", "Gives", "all", "to", "one."] in lines
    shown = coddl("policies", "mine.py:Mine:times=3").out
    assert "times=1  how often (a number)" in shown
    assert "By turns." in shown
    assert json.loads(coddl("policies", "mine.py:Mine", "--json").out) == [OFFERED]
    assert "mine.py" not in coddl("placements").out
    unknown = coddl("policies", "other.py:Mine")
    assert (unknown.code, "one of mine.py:Mine" in unknown.err) == (2, True)


def test_policies_are_listed_without_a_pool(coddl: Coddl) -> None:
    assert coddl("policies").err == ""
    away = coddl("policies", "--server", "http://127.0.0.1:9")
    assert (away.code, "afs-l" in away.out) == (0, True)
    assert away.err.startswith("note: policies of the pool's plug-ins are not listed")


def test_a_plug_ins_policy_is_left_to_the_server_to_judge(coddl: Coddl, pool: StubPool) -> None:
    trouble = {"what": "policy mine.py:Mine failed", "because": "KeyError: 7", "try": "another"}
    answer = {"policy": "mine.py:Mine", "placement": "spread", "since_s": 0.0, "by": "ann"}
    pool.will("PUT", "/policy", answer)
    pool.will("GET", "/policy", {**answer, "trouble": trouble})
    assert coddl("policy", "mine.py:Mine").code == 0
    assert pool.saw("PUT", "/policy")[0].json()["policy"] == "mine.py:Mine"
    shown = coddl("policy")
    assert shown.out == "policy mine.py:Mine, placement spread, set by ann\n"
    assert "note: policy mine.py:Mine failed: KeyError: 7; jobs keep what they have" in shown.err
