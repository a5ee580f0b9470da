"""`coddl replay` against a pool that answers as a test wants it to; whole ones are in tests/e2e."""

import json
from pathlib import Path

import pytest

from coddl.api.emulation import INTERPRETER
from tests.cli.conftest import Coddl
from tests.cli.recorded import JOB, NODE, NOW_S
from tests.cli.stub_pool import StubPool

pytestmark = pytest.mark.usefixtures("work_folder")

JOBS = "submitted_s,model,iterations,gpus_requested\n0,net,300,2\n20,net,200,1\n40,net,100,1\n"
STEP_S = "model,global_batch,gpus,step_s\nnet,64,1,1.0\nnet,64,2,0.6\n"
REAL = {**NODE, "python": "3.12"}
EMULATED = {**NODE, "python": INTERPRETER}
FAST = 1e5  # so that a trace is over at once


@pytest.fixture
def trace(work_folder: Path) -> Path:
    (work_folder / "step_times.csv").write_text(STEP_S)
    (work_folder / "jobs.csv").write_text(JOBS)
    return work_folder / "jobs.csv"


def has_nodes(pool: StubPool, *nodes: object) -> None:
    pool.will("GET", "/nodes", {"items": nodes, "next": None})


REFUSED = {
    "a pool of real nodes, and nothing to run": (
        (REAL,),
        (),
        "the trace can't be replayed",
        "the pool is not emulated, and what its jobs are to run is not given",
        '--script "train.py --steps {iterations}"; or coddl up --emulate 16x4',
    ),
    "a pool that has no nodes yet": (
        (),
        (),
        "the trace can't be replayed",
        "the pool has no nodes that are known to be emulated, and what its jobs are to run is not "
        "given",
        '--script "train.py --steps {iterations}"; or coddl up --emulate 16x4',
    ),
    "no job is left": (
        (EMULATED,),
        ("--from", "3"),
        "--from 3 leaves no jobs",
        "there are 3 jobs",
        "--from 2 submits the last one",
    ),
    "a script for emulated nodes": (
        (EMULATED,),
        ("--script", "train.py"),
        "--script train.py can't be used",
        "the nodes of the pool are emulated, and run no scripts",
        "coddl replay without it",
    ),
    "words that stand for nothing": (
        (REAL,),
        ("--script", "train.py --epochs {epochs}"),
        "--script train.py --epochs {epochs} can't be used",
        "'epochs' stands for nothing",
        "words with {model}, {iterations}, {gpus}",
    ),
}


@pytest.mark.parametrize(
    ("nodes", "words", "what", "because", "try_"), REFUSED.values(), ids=REFUSED.keys()
)
def test_what_cannot_be_replayed_is_refused_before_anything_is_sent(
    coddl: Coddl, pool: StubPool, trace: Path, nodes: tuple[object, ...], *,
    words: tuple[str, ...], what: str, because: str, try_: str,
) -> None:  # fmt: skip
    has_nodes(pool, *nodes)
    done = coddl("replay", trace, "--policy", "fifo", *words)
    assert done.err == f"error: {what}\n  because {because}\n  try     {try_}\n"
    assert (done.code, done.out) == (2, "")
    assert {asked.method for asked in pool.asked} == {"GET"}, "not even the policy is changed"


def is_emulated(pool: StubPool) -> None:
    """Take three jobs, the last of which fails."""
    has_nodes(pool, EMULATED)
    pool.will("GET", "/pool", {"now_s": NOW_S, "time_scale": FAST})
    jobs = [
        {**JOB, "id": number, "name": f"net-{number}", "state": state, "submitted_s": NOW_S}
        | {"ended_s": NOW_S + 60.0, "jct_s": 60.0, "started_s": NOW_S, "resizes": 0, "restarts": 0}
        for number, state in ((1, "SUCCEEDED"), (2, "SUCCEEDED"), (3, "FAILED"))
    ]
    pool.will("POST", "/jobs", *jobs)
    none: dict[str, object] = {"items": [], "next": None}
    pool.will("GET", "/jobs", none, {"items": jobs, "next": None})


def test_jobs_are_submitted_with_their_speeds_and_counted(
    coddl: Coddl, pool: StubPool, trace: Path
) -> None:
    is_emulated(pool)
    done = coddl("replay", trace)
    assert done.code == 0
    assert done.out.startswith("3 jobs submitted, 2 finished, 1 failed or cancelled")
    first, second, _ = (asked.json() for asked in pool.saw("POST", "/jobs"))
    assert (first["name"], first["gpus"]) == ("net-0", {"min": 1, "max": 2, "requested": 2})
    assert first["step_s"] == {"1": 1.0, "2": 0.6}
    assert second["gpus"] == {"min": 1, "max": 2, "requested": 1}
    assert second["args"] == ["--model", "net", "--iterations", "200.0"]


def test_a_replay_goes_on_where_it_was_broken_off(
    coddl: Coddl, pool: StubPool, trace: Path
) -> None:
    is_emulated(pool)
    done = coddl("replay", trace, "--from", 1, "--gpus", "request", "--no-curves", "--json")
    told = json.loads(done.out)
    assert [job["name"] for job in map(lambda asked: asked.json(), pool.saw("POST", "/jobs"))] == [
        "net-1", "net-2",
    ]  # fmt: skip
    assert all(
        (asked.json()["gpus"], "step_s" in asked.json()) == ("1..1", False)
        for asked in pool.saw("POST", "/jobs")
    )
    assert [job["row"] for job in told["jobs"]] == [1, 2]
