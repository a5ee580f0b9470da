"""Decisions that take long are made beside the control loop: submits do not wait for them."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from coddl.core.allocation import Allocation
from coddl.core.policies.max_min import MaxMin
from coddl.core.registry import Registry
from coddl.core.snapshot import Snapshot
from coddl.server.store_memory import MemoryStore
from tests.server.harness import LivePool, eventually

SLOW = "mine.py:slow"
DEADLINE_S = 60.0


class Gate:
    """Where decisions wait, and who has made them."""

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.may_go.set()
        self.fails = False
        self.threads: list[str] = []
        self.pool: LivePool | None = None

    def policy(self) -> "Slow":
        return Slow(gate=self)

    def shut(self) -> None:
        """Hold up the next decision, and let the time for it come."""
        assert self.pool is not None
        self.threads.clear()
        self.may_go.clear()
        self.pool.clock.turn(100.0)


@dataclass(frozen=True)
class Slow(MaxMin):
    """A policy that takes a second of the pool's time, and waits at a gate."""

    gate: Gate = field(default_factory=Gate)

    def __call__(self, snapshot: Snapshot) -> Allocation:
        self.gate.threads.append(threading.current_thread().name)
        if self.gate.pool is not None:
            self.gate.pool.clock.now_s += 1.0
        assert self.gate.may_go.wait(DEADLINE_S)
        if self.gate.fails:
            raise RuntimeError("it fails")
        return super().__call__(snapshot)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A pool with a node whose decisions have become slow."""
    gate = Gate()
    registry = Registry({SLOW: gate.policy()})
    with LivePool(tmp_path, registry=registry, lease_s=1e6) as pool:
        pool.joined()
        gate.pool = pool
        answer = pool.api("PUT", "/policy", {"policy": SLOW})
        assert answer.status_code == 200, answer.text
        yield gate
        gate.may_go.set()


def test_a_submit_is_answered_while_a_decision_is_made(gate: Gate) -> None:
    pool = gate.pool
    assert pool is not None
    first = pool.submit(name="first")["id"]
    gate.shut()
    eventually(lambda: gate.threads, "a decision")
    second = pool.submit(name="second")["id"]
    assert pool.job(second)["state"] == "PENDING"
    with ThreadPoolExecutor(1) as executor:
        cancelled = executor.submit(pool.api, "POST", f"/jobs/{first}:cancel")
        third = pool.submit(name="third")["id"]
        assert not cancelled.done(), "it could be about a job that is decided on"
        gate.may_go.set()
        assert cancelled.result(DEADLINE_S).status_code == 202
    assert all(name.startswith("decision") for name in gate.threads)
    pool.clock.turn(100.0)
    eventually(lambda: pool.job(third)["gpus"] or pool.job(third)["code"], "a decision on it")


def test_a_decision_that_fails_in_its_thread_holds_up_nothing(gate: Gate) -> None:
    pool = gate.pool
    assert pool is not None
    pool.submit(name="first")
    gate.fails = True
    gate.shut()
    eventually(lambda: gate.threads, "a decision")
    gate.may_go.set()
    why = eventually(lambda: pool.api("GET", "/policy").json()["trouble"], "the trouble")
    assert "it fails" in str(why)
    assert pool.submit(name="second")


def test_a_decision_is_void_once_the_pool_was_read_from_the_journal(gate: Gate) -> None:
    pool = gate.pool
    assert pool is not None
    pool.submit(name="first")
    gate.shut()
    eventually(lambda: gate.threads, "a decision")
    store = cast(MemoryStore, pool.store)
    store.is_full = True
    answer = pool.api("POST", "/jobs", {"script": "train.py", "name": "refused"})
    assert answer.status_code == 507, answer.text
    store.is_full = False
    gate.may_go.set()
    pool.clock.turn(100.0)
    eventually(lambda: pool.job("first")["gpus"], "a decision on the pool as it is")
