"""Records go in and come out as they were; the pool is their fold, with a snapshot or without."""

import base64
import json
import zlib
from pathlib import Path
from typing import get_args

import pytest

from coddl import __version__
from coddl.core.pool import records as r
from coddl.core.pool.control import ControlPlane
from coddl.core.pool.decision import POOL_STABILITY
from coddl.core.pool.records import kind_of
from coddl.core.pool.state import Pool
from coddl.server.compaction import Compactor
from coddl.server.errors import JournalUnreadable, PoolTaken
from coddl.server.folding import KINDS, record_of
from coddl.server.journal import QUIET, SCHEMA, Journal, jobs_of
from coddl.server.locking import ServerLock
from coddl.server.snapshots import LAYOUT, decoded_snapshot
from coddl.server.store import JournalStore, StoredRecord, StoredSnapshot
from coddl.server.store_memory import MemoryStore
from coddl.server.store_sql import SqlStore, sqlite_url
from tests.server.records import CPU, ONE_OF_EACH, spec


def test_there_is_a_record_of_each_kind_to_test_with() -> None:
    assert {type(record) for record in ONE_OF_EACH} == set(get_args(r.Record))


@pytest.mark.parametrize("record", ONE_OF_EACH, ids=lambda record: type(record).__name__)
def test_a_record_is_read_back_as_what_it_was(record: r.Record) -> None:
    store = MemoryStore()
    Journal(store).append([record], [], 12.5)
    assert [record_of(line) for line in store.lines(0, 10)] == [record]
    is_event = kind_of(type(record)) not in QUIET
    assert Journal(store).read(0, 10) == [(1, 12.5, record)] * is_event
    assert Journal(store).newest(10) == [(1, 12.5, record)] * is_event


def test_what_an_older_version_has_not_written_is_unknown() -> None:
    store = MemoryStore()
    body = '{"job":1,"attempt":1,"virtual_nodes":8,"steps":100,"global_batch":64}'
    store.append([StoredRecord(1, 0.0, "RunPrepared", body)], [], [])
    assert Journal(store).read(0, 1)[0].record == r.RunPrepared(1, 1, 8, 100, 64, 0, 0, None)


def test_a_run_of_an_older_version_has_parked_nothing() -> None:
    store = MemoryStore()
    body = '{"job":1,"attempt":1,"outcome":"retired","step":7}'
    store.append([StoredRecord(1, 0.0, "RunEnded", body)], [], [])
    assert Journal(store).read(0, 1)[0].record == r.RunEnded(1, 1, "retired", 7)


def test_a_job_of_an_older_version_has_as_many_workers_as_virtual_nodes() -> None:
    store = MemoryStore()
    busy_pool(Journal(store), jobs=1)
    body = '{"job":1,"attempt":1,"virtual_nodes":8,"steps":100,"global_batch":64}'
    store.append([StoredRecord(store.last_seq() + 1, 9.0, "RunPrepared", body)], [], [])
    job = Journal(store).fold().pool.jobs[1]
    assert (job.gpus_useful, job.virtual_nodes, job.workers_max) == (8, 8, None)


CONCERNED = {
    r.JobSubmitted: [1],
    r.NodeLost: [],
    r.Decided: [1, 2],
    r.DecisionFailed: [1, 2],
    r.Aimed: [1],
    r.SlotFreed: [1],
}


@pytest.mark.parametrize("kind", CONCERNED, ids=lambda kind: kind.__name__)
def test_a_record_concerns_jobs(kind: type[r.Record]) -> None:
    record = next(each for each in ONE_OF_EACH if type(each) is kind)
    assert list(jobs_of(record)) == CONCERNED[kind]


def busy_pool(journal: Journal, jobs: int = 5) -> Pool:
    """Submit jobs to a pool of two devices, and write all of it down."""
    control = ControlPlane(Pool(), POOL_STABILITY)
    events: list[r.Event] = [r.NodeJoined("n1", "boot", "here", CPU)]
    events += [r.JobSubmitted(job, spec(f"j{job}")) for job in range(1, jobs + 1)]
    for at_s, event in enumerate(events):
        journal.append(control.handle(event, float(at_s)).records, [], float(at_s))
    return control.pool


def save_snapshot(store: JournalStore) -> None:
    """Store a snapshot, as a server does now and then, and remove nothing."""
    Compactor(store, lambda _jobs: None, keep_jobs=1000, keep_events_s=1e9).run(0.0)


def test_a_restart_folds_the_same_pool() -> None:
    store = MemoryStore()
    pool = busy_pool(Journal(store))
    folded = Journal(store).fold()
    pool.touched.clear()
    folded.pool.touched.clear()
    assert folded.pool == pool
    assert folded.at_s == 5.0
    assert folded.seq == store.last_seq()


def test_a_picture_and_the_tail_give_the_same_pool(tmp_path: Path) -> None:
    store = SqlStore(sqlite_url(tmp_path / "journal.db"))
    journal = Journal(store, snapshot_every=3)
    control = ControlPlane(Pool(), POOL_STABILITY)
    control.take(r.NodeJoined("n1", "boot", "here", CPU), 0.0)
    journal.append(control.conclude(0.0).records, [], 0.0)
    save_snapshot(store)
    journal.note_snapshot(store.last_seq())
    assert not journal.snapshot_is_due()
    journal.append(control.handle(r.JobSubmitted(1, spec()), 1.0).records, [], 1.0)
    assert journal.snapshot_is_due()
    folded = Journal(store).fold().pool
    folded.touched.clear()
    assert folded == control.pool
    store.close()


def of_version(version: str, body: bytes) -> bytes:
    """Give a snapshot as another version might have written it: an empty pool."""
    told = json.loads(zlib.decompress(body).splitlines()[0])
    told["recording"]["pool"] = {}
    return zlib.compress(json.dumps({**told, "version": version, "parts": 0}).encode())


JOURNALS = Path(__file__).parent / "journals"  # as these versions wrote them, with a snapshot


def recorded(name: str) -> tuple[MemoryStore, int]:
    """Give a journal that an older version has written; and the number of its snapshot."""
    told = json.loads((JOURNALS / name).read_text())
    store = MemoryStore()
    lines = [
        StoredRecord(seq, at_s, kind, json.dumps(body)) for seq, at_s, kind, body in told["records"]
    ]
    store.append(lines, [], [])
    store.note({"schema": str(told["schema"]), "version": "0.1.0"})
    snapshot = told["picture"]
    body = base64.b64decode(snapshot["body"])
    store.save_snapshot(StoredSnapshot(snapshot["seq"], told["schema"], body))
    return store, snapshot["seq"]


def test_kinds_keep_the_names_they_were_first_written_under() -> None:
    assert sorted(KINDS) == [
        "Aimed",
        "Decided",
        "DecisionFailed",
        "EngineBounded",
        "JobBounded",
        "JobCancelled",
        "JobHeld",
        "JobPrioritised",
        "JobReleased",
        "JobSubmitted",
        "JobsForgotten",
        "LossMeasured",
        "NodeAcquired",
        "NodeDrained",
        "NodeForgotten",
        "NodeJoined",
        "NodeLeft",
        "NodeLost",
        "NodeUndrained",
        "NodesWanted",
        "ParkingEnded",
        "PolicyChosen",
        "RunChanged",
        "RunEnded",
        "RunPrepared",
        "RunProfiled",
        "RunStalled",
        "RunStepped",
        "RunUnsaved",
        "SliceDidNotFit",
        "SlotFreed",
        "StartOverdue",
    ]
    store = MemoryStore()
    journal = Journal(store)
    journal.append([r.JobSuspended(1, "ann"), r.JobResumed(1, "ann")], [], 0.0)
    assert [line.kind for line in store.lines(0, 9)] == ["JobHeld", "JobReleased"]


@pytest.mark.parametrize("name", ["schema-1.json", "schema-2.json"])
def test_a_journal_of_an_older_version_comes_up(name: str) -> None:
    store, pictured = recorded(name)
    journal = Journal(store)
    folded = journal.fold()
    phases = {job.id: job.phase for job in folded.pool.jobs.values()}
    assert phases == {1: "resizing", 2: "succeeded", 3: "suspended", 4: "cancelled"}
    bert = folded.pool.jobs[1]
    assert (bert.priority, bert.steps, bert.gpus_useful) == (3, 100, 8)
    assert (bert.lead, bert.led_by, len(bert.granted)) == ("a", "a", 2)
    assert 0 < pictured < folded.seq == store.last_seq()
    control = ControlPlane(folded.pool, POOL_STABILITY)
    done = r.RunReported("a", "boot-a", r.RunEnded(1, 1, "succeeded", 100, 0))
    journal.append(control.handle(done, folded.at_s + 1).records, [], folded.at_s + 1)
    save_snapshot(store)
    again = Journal(store).fold()
    assert again.pool.jobs[1].phase == "succeeded"
    assert store.notes()["schema"] == str(SCHEMA)


@pytest.mark.parametrize(
    "tear", ["cut", "garbage", "another layout", "another version", "from the future"]
)
def test_a_snapshot_that_cannot_be_read_is_not_needed(tear: str) -> None:
    store = MemoryStore()
    journal = Journal(store)
    pool = busy_pool(journal)
    save_snapshot(store)
    (good,) = store.stored_snapshots()
    bad = {
        "cut": good._replace(body=good.body[: len(good.body) // 2]),
        "garbage": good._replace(body=b"\x00" * 100),
        "another layout": StoredSnapshot(good.seq, LAYOUT + 1, good.body),
        "another version": good._replace(body=of_version("0.0.9", good.body)),
        "from the future": good._replace(seq=good.seq + 5),
    }[tear]
    store.save_snapshot(bad)
    folded = Journal(store).fold()
    folded.pool.touched.clear()
    pool.touched.clear()
    assert folded.pool == pool
    assert folded.seq == store.last_seq()


def test_a_snapshot_of_another_version_is_read_once_the_records_before_it_are_gone() -> None:
    store = MemoryStore()
    pool = busy_pool(Journal(store))
    save_snapshot(store)
    (good,) = store.stored_snapshots()
    head, *parts = zlib.decompress(good.body).splitlines()
    told = json.loads(head) | {"version": "0.0.9"}
    del told["recording"]["pool"]["forgotten"]  # it had not heard of that
    told["recording"]["pool"]["mascot"] = "a yak"  # and this one has not heard of this
    body = zlib.compress(b"\n".join([json.dumps(told).encode(), *parts]))
    store.save_snapshot(StoredSnapshot(good.seq, LAYOUT + 1, body))
    found = decoded_snapshot(body)
    assert found is not None
    assert found.version == "0.0.9"
    store.trim([], good.seq - 1)
    folded = Journal(store).fold()
    pool.touched.clear()
    assert folded.pool == pool


def newer(store: JournalStore) -> None:
    store.note({"schema": str(SCHEMA + 1), "version": "9.8.7"})


def unknown_kind(store: JournalStore) -> None:
    store.note({"schema": str(SCHEMA), "version": "9.8.7"})
    store.append([StoredRecord(1, 0.0, "JobTeleported", "{}")], [], [])


def does_not_follow(store: JournalStore) -> None:
    store.append([StoredRecord(1, 0.0, "JobHeld", '{"job":7,"by":"ann"}')], [], [])


def torn_body(store: JournalStore) -> None:
    store.append([StoredRecord(1, 0.0, "JobHeld", '{"job":')], [], [])


UNREADABLE = {
    "a newer schema": (newer, f"schema {SCHEMA + 1}, not {SCHEMA}; coddl 9.8.7 wrote it"),
    "an unknown kind": (unknown_kind, 'record 1 is a "JobTeleported"'),
    "no job": (
        does_not_follow,
        "record 1 .JobHeld. does not follow from those before it: KeyError",
    ),
    "a torn body": (torn_body, "record 1 .JobHeld.: "),
}


@pytest.mark.parametrize(("spoil", "words"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_cannot_be_read_is_refused_with_the_version_that_wrote_it(
    spoil: object, words: str
) -> None:
    store = MemoryStore()
    assert callable(spoil)
    spoil(store)
    with pytest.raises(JournalUnreadable, match=words) as caught:
        Journal(store).fold()
    assert f"this is coddl {__version__}" in caught.value.because


def test_one_server_has_a_folder_and_the_other_is_told_who(tmp_path: Path) -> None:
    import os

    lock = ServerLock(tmp_path / "server.lock")
    with pytest.raises(PoolTaken, match=f"process {os.getpid()}"):
        ServerLock(tmp_path / "server.lock")
    lock.release()
    ServerLock(tmp_path / "server.lock").release()


def test_a_lock_file_that_a_dead_server_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "server.lock").write_text("4194303\n")
    ServerLock(tmp_path / "server.lock").release()
