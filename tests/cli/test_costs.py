"""`coddl costs`, against a server that says what it was told to."""

import json

import pytest

from tests.cli.conftest import Coddl
from tests.cli.recorded import JOB, WAITING
from tests.cli.stub_pool import StubPool

pytestmark = pytest.mark.usefixtures("work_folder")

NEVER = {**WAITING, "switch_s": None, "state_bytes": 0}
RESIZED = {**JOB, "switch_s": None, "state_bytes": 0}
SWITCHED = [
    {**JOB, "id": 20 + number, "switch_s": seconds, "state_bytes": 3 << 30}
    for number, seconds in enumerate((0.2, 0.3, 0.7))
]


def test_costs_are_shown_job_by_job_and_for_the_simulator(coddl: Coddl, pool: StubPool) -> None:
    found = {"items": [NEVER, RESIZED, *SWITCHED], "next": None}
    pool.will("GET", "/jobs", found, found)
    header, *rows, last = coddl("costs").out.splitlines()
    assert header.split() == ["ID", "NAME", "MEMORY", "RESIZE", "SWITCH"]
    assert [row.split()[0] for row in rows] == ["12", "20", "21", "22"], "who has never changed"
    assert "3.0 GiB" in rows[1]
    assert rows[1].split()[-2:] == ["0.200", "s"]
    assert last == "in the simulator: --reconfigure stall:0.3"
    told = json.loads(coddl("costs", "-o", "json").out)
    assert (told["switch_s"], told["reconfigure"]) == (0.3, "stall:0.3")
    assert [each["id"] for each in told["items"]] == [12, 20, 21, 22]


def test_without_costs_nothing_is_told(coddl: Coddl, pool: StubPool) -> None:
    pool.will("GET", "/jobs", {"items": [NEVER], "next": None}, {"items": [NEVER], "next": None})
    assert coddl("costs").out.startswith("no job has been resized")
    assert json.loads(coddl("costs", "-o", "json").out)["reconfigure"] is None
