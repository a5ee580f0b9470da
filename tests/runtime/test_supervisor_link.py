"""What a worker takes from its supervisor's words, whenever they come."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from coddl.runtime.wire import encoded
from tests.runtime.harness import wait_until

pytest.importorskip("torch")

from torch._C._distributed_c10d import TCPStore

from coddl.runtime.worker.supervisor_link import SupervisorLink


class Line:
    """A worker's end, and what its supervisor says at the other one."""

    def __init__(self, worker: int = 0) -> None:
        self._theirs, self._ours = socket.socketpair()
        self.link = SupervisorLink(self._theirs, worker=worker, host="127.0.0.1")

    def say(self, do: str, generation: int, **more: Any) -> None:
        """Say it of a generation of one worker, which needs nobody to build its groups."""
        about = {"do": do, "generation": generation, "members": [0], "counts": [8]}
        self._ours.sendall(encoded({**about, "store": ["", 0], **more}))

    def await_built(self, generation: int) -> None:
        def is_built() -> bool:
            pending = self.link.pending
            return pending is not None and pending[0].number == generation

        wait_until(is_built, f"generation {generation}")

    def close(self) -> None:
        self._ours.close()
        wait_until(lambda: self.link.stop, "the end of the line")
        self._theirs.close()


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.close()


def test_what_is_built_and_committed_is_taken_once(line: Line) -> None:
    line.say("prepare", 2)
    line.await_built(2)
    assert line.link.take_committed() is None
    line.say("commit", 2, step=7)
    wait_until(lambda: line.link.due(7), "the commit")
    assert not line.link.due(6)
    taken = line.link.take_committed()
    assert taken is not None
    assert taken[0].number == 2
    assert line.link.take_committed() is None


def test_what_a_regroup_has_built_is_not_taken_for_what_was_committed(line: Line) -> None:
    line.say("prepare", 2)
    line.await_built(2)
    line.say("commit", 2, step=7)
    wait_until(lambda: line.link.due(7), "the commit")  # and here the worker votes for it
    line.say("regroup", 3)
    line.await_built(3)
    assert line.link.take_committed() is None
    assert line.link.regroup is not None
    line.await_built(3)  # it is still there, for who gives the old group up


def test_a_model_on_the_cpu_is_trained_over_gloo_on_nodes_with_gpus_too(line: Line) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    other, at = Line(worker=1), ["127.0.0.1", store.port]
    try:
        for each in (line, other):
            each.say("prepare", 2, members=[0, 1], counts=[4, 4], store=at, backend="nccl")
        for each in (line, other):
            each.await_built(2)
        group = line.link.pending[1].train  # type: ignore[index]
        assert group is not None
        assert group._backend.name() == "gloo"
        assert not group._polls, "only NCCL's work is looked at"
    finally:
        other.close()
