"""Collectives that peers enter at different times: waiting is no failure, however it ends."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import ErrorType, HashStore, TCPStore

from coddl.runtime.worker import group
from coddl.runtime.worker.group import Group, GroupError, connect


def both(action: Callable[[int], None]) -> None:
    """Do it as rank 0 and as rank 1 at once; raises what either raised."""
    failures: list[Exception] = []

    def act(rank: int) -> None:
        try:
            action(rank)
        except Exception as failure:  # raised below
            failures.append(failure)

    peers = [threading.Thread(target=act, args=(rank,), daemon=True) for rank in (0, 1)]
    for peer in peers:
        peer.start()
    for peer in peers:
        peer.join(60)
    assert not any(peer.is_alive() for peer in peers)
    for failure in failures:
        raise failure


@pytest.fixture
def pair() -> list[Group]:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    made: dict[int, Group] = {}

    def join(rank: int) -> None:
        at = ("127.0.0.1", store.port)
        made[rank] = connect(at, "pair", rank, 2, backend="gloo", host="127.0.0.1")

    both(join)
    return [made[0], made[1]]


def test_a_peer_that_comes_as_a_wait_runs_out_breaks_nothing(
    pair: list[Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    slice_s = 0.001
    monkeypatch.setattr(group, "LOOK_AFTER", timedelta(seconds=slice_s))
    draw = Random(1)

    def sum_often(rank: int) -> None:
        for _ in range(2000):
            if rank == 1:  # about when rank 0's first wait ends
                time.sleep(slice_s + draw.uniform(-3e-4, 3e-4))
            ones = torch.ones(1)
            pair[rank].finish(pair[rank].all_reduce(ones))
            assert ones.item() == 2

    both(sum_often)


def test_a_wait_can_be_given_up(pair: list[Group], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "LOOK_AFTER", timedelta(milliseconds=5))
    looks = iter([True, True, False])
    pair[0].may_wait = lambda: next(looks)
    alone = pair[0].all_reduce(torch.ones(1))
    with pytest.raises(GroupError, match="told to abandon it"):
        pair[0].finish(alone)
    assert next(looks, None) is None
    pair[1].finish(pair[1].all_reduce(torch.ones(1)))  # lets the backend's thread end


class StandIn:
    """What a group asks of NCCL, where there is no GPU."""

    def __init__(self, error: ErrorType = ErrorType.SUCCESS) -> None:
        self.error = error
        self.aborts = 0

    def name(self) -> str:
        return "nccl"

    def get_error(self) -> ErrorType:
        return self.error

    def abort(self) -> None:
        self.aborts += 1


class Ended:
    """A collective that NCCL calls complete, as it does with one that a dead peer broke."""

    def is_completed(self) -> bool:
        return True

    def wait(self) -> None:
        pass


def test_what_nccl_calls_complete_after_a_peer_died_is_broken() -> None:
    work: Any = Ended()
    assert Group(StandIn(), 0, 2, HashStore()).finish(work)
    with pytest.raises(GroupError, match="NCCL says REMOTE_ERROR"):
        Group(StandIn(ErrorType.REMOTE_ERROR), 0, 2, HashStore()).finish(work)


def test_an_aborted_group_is_broken_though_nccl_knows_of_no_error() -> None:
    work: Any = Ended()
    backend = StandIn()
    aborted = Group(backend, 0, 2, HashStore())
    aborted.abort()
    with pytest.raises(GroupError, match="told to abandon it"):
        aborted.finish(work)
    aborted.drop()
    assert backend.aborts == 1


class UnendingWork:
    """A collective whose first waits run out; it keeps how long each was to last."""

    def __init__(self, waits: int) -> None:
        self.looks: list[timedelta] = []
        self._left = waits

    def wait(self, look: timedelta) -> None:
        self.looks.append(look)
        self._left -= 1
        if self._left:
            raise RuntimeError("Timed out waiting")

    def is_completed(self) -> bool:
        return not self._left


def test_a_look_around_that_takes_long_is_taken_seldom(pair: list[Group]) -> None:
    quick, slow = UnendingWork(3), UnendingWork(3)
    look: Any = quick  # Any: stands in for torch's own
    assert pair[0].finish(look)
    assert quick.looks[1] == 2 * group.LOOK_AFTER

    def over_a_long_way() -> bool:
        time.sleep(0.02)
        return False

    look = slow
    assert pair[0].finish(look, over_a_long_way)
    assert slow.looks == [group.LOOK_AFTER, group.LOOK_EVERY, group.LOOK_EVERY]
