"""The variables a worker finds: tables of slots, of scripts, and of what they tell."""

from pathlib import Path

import pytest

from coddl.runtime.supervisor.environment import (
    RankTable,
    launcher_variables,
    pool_variables,
    without_launcher,
)
from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.scripts import calls_prepare
from coddl.runtime.supervisor.slots import Slot

STORE = ("10.0.0.1", 29500)
SPREAD = [Slot(0, "a", "0"), Slot(4, "b", "1"), Slot(1, "a", "3")]


def job(**fields: object) -> Job:
    about = {"name": "bert", "script": Path("train.py"), "argv": ("train.py",), "cwd": Path("/")}
    about |= {"env": {}, "folder": Path("/jobs/17"), "id": "17"}
    return Job(**{**about, **fields})  # type: ignore[arg-type] # fields of a Job


def variables(job: Job, slot: Slot, ranks: RankTable) -> dict[str, str]:
    return launcher_variables(job, slot, ranks) | pool_variables(job, slot, ranks)


CASES: dict[str, tuple[list[Slot], Slot, dict[str, str]]] = {
    "alone": (
        [Slot(7, "a")],
        Slot(7, "a"),
        {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        | {"NODE_RANK": "0", "GROUP_RANK": "0", "CODDL_NODES": "1", "CODDL_GPUS_PER_NODE": "1"}
        | {"CUDA_VISIBLE_DEVICES": ""},
    ),
    "ranks go node by node, whatever the order of the slots": (
        SPREAD,
        Slot(1, "a", "3"),
        {"RANK": "1", "WORLD_SIZE": "3", "CODDL_NODES": "2", "CODDL_GPUS_PER_NODE": "2,1"},
    ),
    "the one GPU that a worker sees is number LOCAL_RANK of LOCAL_WORLD_SIZE": (
        SPREAD,
        Slot(1, "a", "3"),
        {"CUDA_VISIBLE_DEVICES": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        | {"NODE_RANK": "1", "GROUP_RANK": "1"},
    ),
    "the first node that is named is the first": (
        [Slot(4, "b"), Slot(0, "a")],
        Slot(0, "a"),
        {"RANK": "1", "NODE_RANK": "1", "CODDL_GPUS_PER_NODE": "1"},
    ),
}


@pytest.mark.parametrize(("slots", "slot", "want"), CASES.values(), ids=CASES.keys())
def test_slots_give_the_ranks(slots: list[Slot], slot: Slot, want: dict[str, str]) -> None:
    found = variables(job(), slot, RankTable.of(slots, STORE))
    assert want.items() <= found.items()


JOBS: dict[str, tuple[dict[str, object], int, dict[str, str]]] = {
    "where to meet, and what it is": (
        {},
        0,
        {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "CODDL_JOB_ID": "17"}
        | {"TORCHELASTIC_RUN_ID": "17", "TORCHELASTIC_USE_AGENT_STORE": "True"}
        | {"CODDL_CHECKPOINT_DIR": "/jobs/17", "CODDL_ATTEMPT": "1"},
    ),
    "bounds, and why it runs again": (
        {"workers_min": 2, "workers_max": 8, "attempt": 3, "restart_reason": "preempted"},
        0,
        {"CODDL_MIN_GPUS": "2", "CODDL_MAX_GPUS": "8", "CODDL_ATTEMPT": "3"}
        | {"CODDL_RESTART_REASON": "preempted", "TORCHELASTIC_RESTART_COUNT": "2"},
    ),
    "restarts within an attempt count": (
        {"attempt": 3},
        2,
        {"TORCHELASTIC_RESTART_COUNT": "4"},
    ),
}


@pytest.mark.parametrize(("fields", "restarts", "want"), JOBS.values(), ids=JOBS.keys())
def test_the_job_tells_what_it_may_become(
    fields: dict[str, object], restarts: int, want: dict[str, str]
) -> None:
    found = variables(job(**fields), SPREAD[0], RankTable.of(SPREAD, STORE, restarts))
    assert want.items() <= found.items()


def test_what_a_launcher_has_told_us_is_not_passed_on() -> None:
    told = launcher_variables(job(), SPREAD[0], RankTable.of(SPREAD, STORE))
    assert without_launcher({"HOME": "/root", "RANKING": "1", **told}) == {
        "HOME": "/root",
        "RANKING": "1",
    }


SCRIPTS: dict[str, tuple[dict[str, str], bool]] = {
    "it calls coddl.prepare": ({"train.py": "import coddl\ncoddl.prepare(1)"}, True),
    "by another name": ({"train.py": "import coddl as c\nmodel = c.prepare(1)"}, True),
    "in a function": ({"train.py": "def main():\n  import coddl\n  coddl.prepare(1)"}, True),
    "imported from coddl": ({"train.py": "from coddl import epochs, prepare as go"}, True),
    "with a star": ({"train.py": "from coddl import *\nprepare(1)"}, True),
    "the prepare of another": ({"train.py": "import accelerate as a\na.prepare(1)"}, False),
    "coddl without prepare": ({"train.py": "import coddl\nprint(coddl.__version__)"}, False),
    "only in words": ({"train.py": "# coddl.prepare\nx = 'coddl.prepare(1)'"}, False),
    "in a module beside it": (
        {"train.py": "import loop, os", "loop.py": "import coddl\ncoddl.prepare"},
        True,
    ),
    "in a module that one imports": (
        {"train.py": "from a import x", "a.py": "import b", "b.py": "from coddl import prepare"},
        True,
    ),
    "in a package beside it": (
        {"train.py": "from lib.loop import fit", "lib/loop.py": "from coddl import prepare"},
        True,
    ),
    "by a package's own way": (
        {
            "train.py": "import lib",
            "lib/__init__.py": "from .loop import fit",
            "lib/loop.py": "from coddl import prepare",
        },
        True,
    ),
    "in a module that nobody imports": (
        {"train.py": "import os", "loop.py": "from coddl import prepare"},
        False,
    ),
    "modules that import one another": (
        {"train.py": "import a", "a.py": "import train, a, b", "b.py": "import a"},
        False,
    ),
    "no Python": ({"train.py": "import coddl\ncoddl.prepare(\n  if"}, False),
    "not even text": ({"train.py": "\0coddl.prepare()"}, False),
    "a module beside it is no Python": (
        {"train.py": "import a, b", "a.py": "if", "b.py": "from coddl import prepare"},
        True,
    ),
    "no script at all": ({}, False),
}


@pytest.mark.parametrize(("files", "want"), SCRIPTS.values(), ids=SCRIPTS.keys())
def test_source_tells_who_will_call_prepare(
    tmp_path: Path, files: dict[str, str], want: bool
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert calls_prepare(tmp_path / "train.py") == want
