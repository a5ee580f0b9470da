"""Whose jobs folder it is: of this pool, of another, of one whose journal was lost."""

import contextlib
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coddl.api import jobsfolder, wire
from coddl.api.jobsfolder import JobsFolder
from coddl.core.errors import UserError
from coddl.core.pool.nodes import NodeState
from coddl.core.pool.records import Device
from coddl.core.pool.state import Pool
from coddl.server.agent_sessions import AgentSession
from coddl.server.journal import Journal
from coddl.server.server import Server
from coddl.server.store import RecordJob, StoredRecord
from coddl.server.store_memory import MemoryStore
from coddl.server.store_sql import SqlStore, sqlite_url
from tests.server.harness import LivePool, ManualClock, eventually
from tests.server.test_agent_sessions import DeafSocket
from tests.server.test_process import start as start  # a fixture

# As a version wrote them that gave pools and jobs no ids.
OLDER_NOTES = {"schema": "2", "version": "0.1.0"}
OLDER_JOB = (
    '{"job":1,"spec":{"name":"old","launch":{"argv":["train.py"],"python":"","env":{},"code":"",'
    '"folder":".","precheck":[],"grace_s":30.0,"checkpoint_every_s":60.0},"user":"u",'
    '"tier":"elastic","gpus_min":1,"gpus_max":1,"priority":0,"group":"","weight":1.0,"step_s":{},'
    '"max_failures":0}}'
)


def older_journal(path: Path) -> None:
    """Write the journal of a pool that has one job."""
    path.parent.mkdir(parents=True, exist_ok=True)
    store = SqlStore(sqlite_url(path))
    store.note(OLDER_NOTES)
    store.append([StoredRecord(1, 1.0, "JobSubmitted", OLDER_JOB)], [RecordJob(1, 1)], [])
    store.close()


def test_a_pool_keeps_its_id_and_no_two_have_the_same() -> None:
    store = MemoryStore()
    assert Journal(store).pool_id == Journal(store).pool_id != Journal(MemoryStore()).pool_id


def test_a_job_has_an_id_that_no_other_pools_job_has(live: LivePool) -> None:
    for _ in range(2):
        live.submit()
    ids = {job.spec.uid for job in live.in_loop(lambda: dict(live.server.pool.jobs)).values()}
    assert len(ids) == 2
    assert "" not in ids


FOLDERS = {
    "an empty one": (JobsFolder("/j", "x", "", 0), True),
    "one that is empty by now": (JobsFolder("/j", "x", "another", 0), True),
    "one of a lost journal": (JobsFolder("/j", "x", "", 3), False),
    "another pool's": (JobsFolder("/j", "x", "another", 3), False),
}


@pytest.mark.parametrize(("found", "may_join"), FOLDERS.values(), ids=FOLDERS.keys())
def test_a_node_joins_a_new_pool_only_with_a_folder_that_holds_no_jobs_of_others(
    found: JobsFolder, *, may_join: bool, live: LivePool
) -> None:
    agent = live.agent()
    agent.hello(jobs=found)
    if may_join:
        assert agent.expect(wire.Welcome).pool == live.server.pool_id
    else:
        refused = agent.expect(wire.Refused)
        assert refused.what == "the jobs folder /j can't be used"
        assert "contains 3 jobs" in refused.because
        assert "move /j away" in refused.try_


def test_a_pool_that_has_had_jobs_knows_its_folder_with_a_mark_or_without(live: LivePool) -> None:
    live.submit()
    for name, pool in (("n1", ""), ("n2", live.server.pool_id)):
        agent = live.agent(name)
        agent.hello(jobs=JobsFolder("/j", "", pool, 3))
        agent.expect(wire.Welcome)


def test_an_empty_journal_beside_what_jobs_have_left_is_an_error(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "state" / "jobs" / "1" / "checkpoints").mkdir(parents=True)
    server = start()
    assert server.process.wait() == 2
    said = server.errors.read_text()
    assert f"error: the jobs folder {tmp_path}/state/jobs can't be used" in said
    assert "because it contains 1 job, and the journal of this pool has none" in said
    assert "try     restore their journal if it was lost; or move" in said


def test_a_state_folder_of_a_version_without_marks_comes_up(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "state" / "jobs" / "1" / "checkpoints").mkdir(parents=True)
    older_journal(tmp_path / "state" / "journal.db")
    server = start().serves()
    assert server.client.get("/api/v1/jobs/old").json()["id"] == 1


def test_what_is_made_is_found_and_the_first_mark_stays(tmp_path: Path) -> None:
    made = jobsfolder.make(tmp_path / "jobs", "n1", "b1")
    assert (made.pool, made.jobs, made.nodes) == ("", 0, {"n1": "b1"})
    again = jobsfolder.make(tmp_path / "jobs", "n2", "b2")
    assert (again.id, again.nodes) == (made.id, {"n1": "b1", "n2": "b2"})
    jobsfolder.claim(tmp_path / "jobs", "p1")
    (tmp_path / "jobs" / "12").mkdir()
    found = jobsfolder.look(tmp_path / "jobs")
    assert (found.id, found.pool, found.jobs) == (made.id, "p1", 1)


SEEN = {
    "the later one sees the earlier": ({}, {"n1": "boot-1", "n2": "boot-2"}, True),
    "the later one had looked too early": ({"n1": "boot-1", "n2": "boot-2"}, {}, True),
    "a copy, with what the earlier one left before": ({"n1": "boot-1"}, {"n1": "boot-0"}, False),
}


@pytest.mark.parametrize(("first", "second", "may_join"), SEEN.values(), ids=SEEN.keys())
def test_nodes_share_a_folder_only_if_one_sees_the_other_there(
    first: dict[str, str], second: dict[str, str], *, may_join: bool, live: LivePool
) -> None:
    one, other = live.agent("n1", boot="boot-1"), live.agent("n2", boot="boot-2")
    one.hello(jobs=JobsFolder("/j", "x", "", 0, first))
    one.expect(wire.Welcome)
    other.hello(jobs=JobsFolder("/j", "x", "", 0, second))
    if may_join:
        other.expect(wire.Welcome)
    else:
        assert "is a copy of the one of node n1" in other.expect(wire.Refused).because
    one.hello(jobs=JobsFolder("/j", "x", "", 0, first))  # it only was away
    one.expect(wire.Welcome)


AGAIN = {
    "both are there": ({"n1": "boot-3", "n2": "boot-4"}, {"n1": "boot-3", "n2": "boot-4"}, True),
    "the later one sees the earlier": ({"n2": "boot-2"}, {"n1": "boot-3"}, True),
    "the later one had looked too early": ({"n2": "boot-4"}, {"n1": "boot-1"}, True),
    "one has a copy by now": ({"n2": "boot-2"}, {"n1": "boot-1"}, False),
}


@pytest.mark.parametrize(("first", "second", "may_join"), AGAIN.values(), ids=AGAIN.keys())
def test_agents_that_are_started_anew_at_once_still_share_their_folder(
    first: dict[str, str], second: dict[str, str], *, may_join: bool, live: LivePool
) -> None:
    marks = {"n1": "boot-1", "n2": "boot-2"}
    for name, boot in marks.items():
        agent = live.agent(name, boot=boot)
        agent.hello(jobs=JobsFolder("/j", "x", "", 0, marks))
        agent.expect(wire.Welcome)
        agent.close()
    eventually(lambda: all(live.node(name)["state"] == "SILENT" for name in marks), "their ends")
    one, other = live.agent("n1", boot="boot-3"), live.agent("n2", boot="boot-4")
    one.hello(jobs=JobsFolder("/j", "x", "", 0, first))
    one.expect(wire.Welcome)
    other.hello(jobs=JobsFolder("/j", "x", "", 0, second))
    other.expect(wire.Welcome if may_join else wire.Refused)


def hello(node: str, boot: str, seen: dict[str, str]) -> wire.Hello:
    return wire.Hello(
        protocol=wire.PROTOCOL,
        version="0",
        node=node,
        boot=boot,
        host="h",
        port=1,
        peer_token="t",
        devices=(Device(0, "cpu"),),
        jobs=JobsFolder("/j", "x", "", 0, seen),
    )


@pytest.mark.parametrize("seen", ["boot-3", "boot-1"])
def test_a_hello_counts_before_it_is_in_the_journal(seen: str, tmp_path: Path) -> None:
    server = Server(Journal(MemoryStore()), tmp_path, ManualClock())
    pool = Pool(nodes={"n1": NodeState("n1", "boot-1", "h", (), folder="x")})
    first = AgentSession(server, DeafSocket(hello("n1", "boot-3", {})), server.sessions)
    first.hello = hello("n1", "boot-3", {})
    server.sessions.enter(first)
    second = hello("n2", "boot-4", {"n1": seen})
    with contextlib.nullcontext() if seen == "boot-3" else pytest.raises(UserError, match="copy"):
        server.sessions.check_shared(second, pool)


def test_a_job_does_not_span_nodes_with_folders_of_their_own(live: LivePool) -> None:
    for name in ("n1", "n2"):
        agent = live.agent(name)
        agent.hello(jobs=JobsFolder("/j", f"of-{name}", "", 0))
        agent.expect(wire.Welcome)
    for gpus, gets in ((4, 0), (2, 2)):
        request = {"script": "train.py", "gpus": gpus}
        answer = live.api("POST", "/jobs?dry_run=true", request)
        assert answer.json()["job"]["gpus"] == gets, answer.text


def test_a_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(_file: int, _how: int) -> None:
        raise OSError(37, os.strerror(37))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(UserError, match="No locks available") as caught:
        jobsfolder.make(tmp_path / "jobs", "n1", "b1")
    assert "rpc.statd" in caught.value.try_
