"""A pool that has had many jobs: what it still says of them, and what it removes."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coddl.api import wire
from coddl.core.pool.forgetting import gone_nodes
from coddl.core.pool.nodes import AGENT
from coddl.core.pool.records import NodeDrained, NodeJoined, NodeLost, RunEnded, RunPrepared
from coddl.core.pool.state import Pool
from coddl.server.code_store import CodeStore
from coddl.server.retention import Collected, Retention, collect, job_of
from coddl.server.store_memory import MemoryStore
from coddl.server.upkeep import Upkeep
from tests.server.harness import LivePool, eventually
from tests.server.records import CPU
from tests.server.test_http import check_problem

SMALL = Retention(jobs=2, events_s=0.0)
NAMES = "abcdef"


def small_pool(folder: Path, store: MemoryStore) -> LivePool:
    return LivePool(folder, store, retention=SMALL)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def worn(tmp_path: Path, store: MemoryStore) -> Iterator[LivePool]:
    """A pool whose job 1 has trained, and whose first jobs have left its memory."""
    with small_pool(tmp_path, store) as pool:
        agent = pool.joined()
        pool.submit(name="a", user="ann", gpus=1, env={"KEY": "secret"})
        agent.expect_orders(lambda it: it.orders.leads)
        line = wire.LogLine(at_s=1.0, attempt=1, worker=0, rank=0, stream="stdout", text="step 9")
        agent.say(wire.Logs(job=1, lines=(line,)))
        agent.report(RunPrepared(1, 1, None, 9), RunEnded(1, 1, "succeeded", 9))
        agent.expect_orders(lambda it: not it.orders.leads)
        agent.hold()
        eventually(lambda: not pool.node("n1")["jobs"])
        wear(pool)
        yield pool


def wear(pool: LivePool) -> None:
    """Have five more jobs; afterwards all but the newest have left memory."""
    for name in NAMES[1:]:
        pool.clock.turn(60.0)
        job = pool.submit(name=name, user="ben")["id"]
        pool.api("POST", f"/jobs/{job}:cancel")
    for policy in ("fifo", "srtf"):  # news, so that each pass stores a snapshot
        pool.api("PUT", "/policy", {"policy": policy})
        last = pool.store.last_seq()
        pool.server.upkeep.wake()
        eventually(partial(has_snapshot, pool, last))
    eventually(lambda: pool.store.first_seq() > 1)
    assert len(pool.server.pool.jobs) == SMALL.jobs


def has_snapshot(pool: LivePool, seq: int) -> bool:
    return any(each.seq >= seq for each in pool.store.stored_snapshots())


def collect_now(pool: LivePool) -> None:
    """Remove what is old, as the server does once an hour."""
    assert isinstance(pool.server.upkeep, Upkeep)
    pool.server.upkeep.collect()


def names(answer: Any) -> list[str]:
    return [job["name"] for job in answer.json()["items"]]


def test_all_jobs_are_still_listed_and_in_pages(worn: LivePool) -> None:
    assert names(worn.api("GET", "/jobs")) == list(NAMES[::-1])
    assert names(worn.api("GET", "/jobs", params={"user": "ann"})) == ["a"]
    assert names(worn.api("GET", "/jobs", params={"state": "SUCCEEDED"})) == ["a"]
    assert names(worn.api("GET", "/jobs", params={"name": "b"})) == ["b"]
    assert names(worn.api("GET", "/jobs", params={"active": True})) == []
    found, cursor = list[str](), None
    while not found or cursor is not None:
        asked = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = worn.api("GET", "/jobs", params=asked)
        found, cursor = found + names(page), page.json()["next"]
    assert found == list(NAMES[::-1])
    counts = worn.api("GET", "/pool").json()["jobs"]
    assert counts == {"SUCCEEDED": 1, "CANCELLED": 5}


@pytest.mark.parametrize("asked", ["1", "a"])
def test_a_job_that_has_left_memory_is_described(worn: LivePool, asked: str) -> None:
    job = worn.job(asked)
    assert (job["id"], job["name"], job["state"], job["step"]) == (1, "a", "SUCCEEDED", 9)
    assert job["in_history"]
    assert job["runtime_s"] == 0.0
    told = worn.api("GET", f"/jobs/{asked}/explain").json()
    assert told["sentence"] == "finished"
    assert told["job"] == {**job, "speeds": None}
    assert told["removed"].startswith("events from before ")
    events = worn.api("GET", f"/jobs/{asked}/events").json()
    assert events["removed"] == told["removed"]
    spans = worn.api("GET", f"/jobs/{asked}/timeline").json()["spans"]
    assert [span["name"] for span in spans] in ([], ["a"])
    lines = worn.api("GET", f"/jobs/{asked}/logs").json()
    assert [line["text"] for line in lines["items"]] == ["step 9"]
    assert lines["removed"] == ""


def test_it_cannot_be_changed_as_it_has_ended(worn: LivePool) -> None:
    for answer in (
        worn.api("POST", "/jobs/1:cancel"),
        worn.api("PATCH", "/jobs/1", {"priority": 3}),
    ):
        assert "has ended: SUCCEEDED" in check_problem(answer, 409, "Conflict")["because"]
    check_problem(worn.api("GET", "/jobs/99"), 404, "NotFound")


def test_its_environment_is_not_kept(worn: LivePool, store: MemoryStore) -> None:
    kept = [recorded.spec.launch.env for recorded in worn.server.history.around(0.0, 1e12).values()]
    assert kept
    assert not any(kept)
    assert not any("secret" in line.body for line in store.lines(0, 999))


def test_its_name_is_free_and_its_number_is_not(worn: LivePool) -> None:
    assert worn.submit(name="a")["id"] == 7
    assert worn.job("a")["id"] == 7
    assert worn.job("1")["name"] == "a"


def test_all_of_it_is_the_same_after_a_restart(tmp_path: Path, store: MemoryStore) -> None:
    with small_pool(tmp_path, store) as pool:
        pool.submit(name="a")
        pool.api("POST", "/jobs/1:cancel")
        wear(pool)
        before = pool.api("GET", "/jobs").json()
    with small_pool(tmp_path, store) as again:
        after = again.api("GET", "/jobs").json()
        listed = [{**job, "in_history": False} for job in after["items"]]
        assert listed == [{**job, "in_history": False} for job in before["items"]]
        assert again.submit(name="g")["id"] == 7


def test_what_is_kept_and_removed_is_told_to_prometheus(worn: LivePool) -> None:
    def told(name: str) -> float:
        lines = worn.client.get("/metrics").text.splitlines()
        return float(next(line.split()[-1] for line in lines if line.startswith(name)))

    assert told('coddl_retention_removed_total{what="jobs"}') == 4
    assert told('coddl_retention_removed_total{what="events"}') > 0
    in_memory, in_history = (
        told(f'coddl_retained_jobs{{where="{where}"}}') for where in ("memory", "history")
    )
    assert (in_memory, in_history) == (2, 4)
    assert told('coddl_jobs{queue="default",state="CANCELLED"}') == 5


def test_output_that_was_removed_is_said_to_be(worn: LivePool, tmp_path: Path) -> None:
    os.utime(tmp_path / "logs" / "1.jsonl", (1.0, 1.0))
    collect_now(worn)
    assert worn.api("GET", "/jobs/1/logs").json() == {
        "items": [],
        "removed": "its output was removed, as it ended long ago",
    }


def test_an_answer_is_remembered_for_a_day(live: LivePool) -> None:
    live.api("POST", "/jobs", {"script": "train.py"}, headers={"Idempotency-Key": "k"})
    live.clock.turn(80_000.0)
    collect_now(live)
    assert live.store.answer("k") is not None
    live.clock.turn(10_000.0)
    collect_now(live)
    assert live.store.answer("k") is None


def test_a_node_that_was_lost_long_ago_is_not_listed_any_more(live: LivePool) -> None:
    live.joined("gone").close()
    live.clock.turn(live.server.lease_s + 1.0)
    eventually(lambda: live.node("gone")["state"] == "LOST")
    collect_now(live)
    assert live.node("gone")["state"] == "LOST"
    live.clock.turn(8 * DAY_S)
    collect_now(live)
    assert live.api("GET", "/nodes").json()["items"] == []
    live.joined("gone")
    eventually(lambda: live.node("gone")["state"] == "UP")


# Files.


def file(folder: Path, name: str, age_s: float, size: int = 10) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(b"x" * size)
    os.utime(path, (NOW_S - age_s, NOW_S - age_s))
    return path


NOW_S, DAY_S = 1e9, 86400.0


def test_files_are_removed_by_age_and_by_size_but_not_what_is_needed(tmp_path: Path) -> None:
    ages_s = {"1": 9 * DAY_S, "2": 8 * DAY_S, "3": 3 * DAY_S, "4": 2 * DAY_S, "5": 60.0}
    for job, age_s in ages_s.items():
        file(tmp_path, f"{job}.jsonl", age_s)

    def done(age_s: float, most_bytes: int) -> Collected:
        return collect(tmp_path, lambda name: name == "2.jsonl", age_s, most_bytes, now_s=NOW_S)

    assert done(7 * DAY_S, 1000) == Collected(1, 10, 4, 40)
    assert done(7 * DAY_S, 25) == Collected(2, 20, 2, 20)  # 3 and 4: too many bytes
    assert done(7 * DAY_S, 0) == Collected(0, 0, 2, 20)  # 5 is too young, 2 is needed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2.jsonl", "5.jsonl"]


def test_files_of_jobs_are_known_by_their_names() -> None:
    assert [job_of(name) for name in ("12.jsonl", "12.1.jsonl", "x.jsonl")] == [12, 12, None]


def test_code_is_removed_when_no_job_uses_it(tmp_path: Path) -> None:
    used, old, new = ("a" * 64, "b" * 64, "c" * 64)
    store = CodeStore(tmp_path / "code")
    for name in (used, old):
        file(tmp_path / "code", f"{name}.tar.gz", 9 * DAY_S)
    file(tmp_path / "code", f"{new}.tar.gz", 60.0)
    collected = store.collect({used}, 7 * DAY_S, 1 << 40, now_s=NOW_S)
    assert (collected.files, [store.has(name) for name in (used, old, new)]) == (
        1,
        [True, False, True],
    )


def test_code_that_is_asked_for_is_new_again(tmp_path: Path) -> None:
    store = CodeStore(tmp_path / "code")
    file(tmp_path / "code", f"{'a' * 64}.tar.gz", 9 * DAY_S)
    assert store.claim("a" * 64)
    assert not store.claim("b" * 64)
    assert store.collect((), 7 * DAY_S, 1 << 40, now_s=NOW_S).files == 0


# Nodes.


def test_nodes_that_were_lost_long_ago_are_forgotten_unless_a_user_has_drained_them() -> None:
    pool = Pool()
    for at, node in enumerate(("up", "lost", "drained", "leaving", "new")):
        slots = (2 * at, 2 * at + 1)
        pool.apply(NodeJoined(node, "boot", "host", CPU, slots), 0.0)
    pool.apply(NodeDrained("drained", "ann"), 1.0)
    pool.apply(NodeDrained("leaving", AGENT), 1.0)
    for node, at_s in (("lost", 2.0), ("drained", 2.0), ("leaving", 2.0), ("new", 90.0)):
        pool.apply(NodeLost(node, "boot", "its lease ran out"), at_s)
    assert [each.node for each in gone_nodes(pool, 100.0, 50.0)] == ["lost", "leaving"]
    pool.apply(NodeJoined("lost", "boot-2", "host", CPU, (2, 3)), 95.0)
    assert [each.node for each in gone_nodes(pool, 100.0, 50.0)] == ["leaving"]
