"""Bad input: one error that says what, because, try; exit code 2; nothing written."""

import gzip
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cli.conftest import Coddl

HEADER = "submitted_s,model,iterations,gpus_requested\n"
GOOD = HEADER + "0,resnet50,100,1\n5,vgg16,100,2\n"
WHOLE_GZ = gzip.compress(("".join([HEADER, *["0,resnet50,100,1\n"] * 500])).encode())

# content of jobs.csv, and what the message must name besides the file
TRACES: Mapping[str, tuple[str | bytes, tuple[str, ...]]] = {
    "a missing column": ("submitted_s,model,iterations\n0,vgg16,5\n", ("gpus_requested",)),
    "a negative time": (GOOD + "-3,vgg16,100,2\n", ("line 4", "-3")),
    "NaN iterations": (GOOD + "9,vgg16,nan,2\n", ("line 4", "nan")),
    "infinite iterations": (GOOD + "9,vgg16,inf,2\n", ("line 4", "inf")),
    "no iterations": (GOOD + "9,vgg16,0,2\n", ("line 4", "0")),
    "fractional GPUs": (GOOD + "9,vgg16,100,1.5\n", ("line 4", "1.5")),
    "no GPUs": (GOOD + "9,vgg16,100,0\n", ("line 4", "0")),
    "an unknown model": (GOOD + "9,bert,100,2\n", ("line 4", "bert")),
    "a short line": (GOOD + "9,vgg16,100\n", ("line 4",)),
    "words for numbers": (GOOD + "soon,vgg16,100,2\n", ("line 4", "soon")),
    "an empty file": ("", ("empty",)),
    "a header only": (HEADER, ("no data",)),
    "a binary file": (bytes(range(256)) * 8, ("jobs.csv",)),
}
OPTIONS = {
    "an unknown policy": (("--policy", "nosuch"), "nosuch"),
    "an unknown parameter": (("--policy", "afs-p:lease=2"), "lease"),
    "a parameter of the wrong type": (("--policy", "afs-p:lease_h=long"), "long"),
    "a policy file that is not there": (("--policy", "no/such.py:mine"), "no/such.py"),
    "no GPUs": (("--gpus", "0"), "--gpus 0"),
    "half a GPU": (("--gpus", "1.5"), "1.5"),
    "GPUs in words": (("--gpus", "many"), "many"),
    "a negative load": (("--load", "-1"), "-1"),
    "no seeds": (("--seeds", "0"), "seeds 0"),
    "an unknown cost": (("--reconfigure", "free:1"), "free"),
    "a cost without numbers": (("--reconfigure", "concurrent:5"), "5"),
    "a job larger than the cluster": (("--gpus", "1"), "line 3 requests 2 GPUs"),
    "a queue that is not there": (("--vc", "vc9"), "vc9"),
    "speeds that are not there": (("--speeds", "nothere.csv"), "nothere.csv"),
    "a profile without a name": (("--profile", "bert.json"), "NAME=FILE"),
    "links that are not there": (("--links", "nothere.json"), "nothere.json"),
    "learning with nodes that come and go": (
        ("--known-speeds", "visited", "--nodes", "1..2"),
        "known_speeds visited",
    ),
    "a cluster of nothing": (("--cluster", "0x4"), "0x4"),
    "a cluster file that is not there": (("--cluster", "no.yaml"), "no.yaml"),
    "GPUs beside a cluster": (("--gpus", "4", "--cluster", "2x4"), "gpus 4"),
    "a range of nodes upside down": (("--nodes", "5..2"), '"5..2" is neither'),
    "nodes without GPUs": (("--nodes", "1..2", "--gpus-per-node", "0"), "gpus_per_node 0"),
    "GPUs of no nodes": (("--gpus-per-node", "8"), "--nodes 2..32 --gpus-per-node 8"),
    "idle time of no nodes": (("--node-idle-s", "300"), "--node-idle-s 300 can't be used"),
    "a start in the past": (("--nodes", "1..2", "--node-start-s", "-5"), "node_start_s -5"),
    "GPUs beside nodes": (("--gpus", "4", "--nodes", "1..2"), "gpus 4"),
    "a cluster beside nodes": (("--cluster", "2x4", "--nodes", "1..2"), "cluster 2x4"),
    "a placement without a cluster": (("--placement", "spread"), "spread"),
    "an unknown placement": (("--cluster", "2x4", "--placement", "far"), '"far"'),
    "an unknown error": (("--error", "luck=1"), "luck=1"),
    "an error beyond all": (("--error", "length=7"), "7"),
    "an unknown failure model": (("--failures", "often"), "often"),
    "a quota for nobody": (("--quotas", "vc9=3"), "a trace with a column vc or queue"),
    "an unknown kind of servers": (("--servers", "often"), "often"),
    "a report nowhere": (("--report", "no/such/folder/r.html"), "no/such/folder"),
    "a report onto a folder": (("--report", "."), "--report ."),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.csv").write_text(GOOD)
    return tmp_path


def check(outcome: tuple[int, str, str], *named: str) -> None:
    code, out, err = outcome
    err = err.removeprefix("compiling code that runs here for the first time (up to 20 s) …\n")
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n  because ") == 1
    assert err.count("\n  try     ") == 1
    assert "Traceback" not in err
    for word in named:
        assert word in err


@pytest.mark.parametrize(("content", "named"), TRACES.values(), ids=TRACES.keys())
def test_a_bad_trace(coddl: Coddl, content: str | bytes, named: tuple[str, ...]) -> None:
    path = Path("jobs.csv")
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    check(coddl("simulate", path, "--report", "r.html", "--jobs-csv", "j.csv"), "jobs.csv", *named)
    assert not Path("r.html").exists()
    assert not Path("j.csv").exists()
    check(coddl("trace", "info", path), "jobs.csv", *named)


def test_a_truncated_gz(coddl: Coddl) -> None:
    Path("jobs.csv.gz").write_bytes(WHOLE_GZ[: len(WHOLE_GZ) // 2])
    check(coddl("simulate", "jobs.csv.gz"), "jobs.csv.gz")


def test_no_such_file(coddl: Coddl) -> None:
    check(coddl("simulate", "nothere.csv"), "nothere.csv")


@pytest.mark.parametrize(("options", "named"), OPTIONS.values(), ids=OPTIONS.keys())
def test_a_bad_option(coddl: Coddl, options: tuple[str, ...], named: str) -> None:
    check(coddl("simulate", "jobs.csv", "--jobs-csv", "j.csv", *options), named)
    assert not Path("j.csv").exists()


def test_a_policy_file_that_fails_names_the_reason(coddl: Coddl) -> None:
    Path("mine.py").write_text("1 / 0\n")
    check(coddl("simulate", "jobs.csv", "--policy", "mine.py:best"), "mine.py", "division by zero")
    Path("mine.py").write_text("def other(snapshot): ...\n")
    check(coddl("simulate", "jobs.csv", "--policy", "mine.py:best"), 'no "best"', "other")


def test_a_policy_that_breaks_its_promise_is_stopped(coddl: Coddl) -> None:
    Path("greedy.py").write_text(
        "from coddl.core.allocation import Allocation\n"
        "def greedy(snapshot):\n    return Allocation(snapshot.jobs.gpus_max * 1000)\n"
    )
    check(coddl("simulate", "jobs.csv", "--policy", "greedy.py:greedy"), "there are 64")


def test_an_unknown_option_is_a_usage_error(coddl: Coddl) -> None:
    check(coddl("simulate", "--polcy", "afs-l"), "--polcy")
    check(coddl("simulate", "--seeds", "many"), "seeds")
    check(coddl("simulat"), "simulat")
