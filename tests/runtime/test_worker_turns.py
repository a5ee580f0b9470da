"""What a worker does between its turns, at whatever instant its supervisor speaks."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

from coddl.runtime.errors import TrainingError
from coddl.runtime.wire import Lines, Message, encoded
from tests.runtime.harness import wait_until

torch = pytest.importorskip("torch")

from coddl.runtime.worker import offload  # noqa: E402
from coddl.runtime.worker.handover import Handover  # noqa: E402
from coddl.runtime.worker.offload import Offload  # noqa: E402
from coddl.runtime.worker.pass_stats import PassStats  # noqa: E402
from coddl.runtime.worker.supervisor_link import SupervisorLink  # noqa: E402
from coddl.runtime.worker.turns import WorkerTurns  # noqa: E402

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class State:
    """A training state of one tensor."""

    def __init__(self, device: str) -> None:
        self.weight = torch.arange(4.0 * (1 << 20), device=device)

    def tree(self) -> dict[str, Any]:
        return {"weight": self.weight}

    def on_device(self) -> list[Any]:
        return [self.weight]

    @property
    def is_out(self) -> bool:
        return not self.weight.untyped_storage().nbytes()


class Left(Exception):
    """The worker was to end."""


class Worker:
    """A worker that comes to an update boundary when a test says so."""

    def __init__(self, stash: Path, device: str = "cpu") -> None:
        self._theirs, self._ours = socket.socketpair()
        self._ours.settimeout(60)
        self.link = SupervisorLink(self._theirs, worker=0, host="127.0.0.1")
        self.state = State(device)
        self.handover = Handover(
            self.state,  # type: ignore[arg-type]
            torch.device(device),
            stash,
            host="",
            describe=lambda: {"step": 7},
        )
        self.pass_stats = PassStats(self.link, traced=False)
        self.turns = WorkerTurns(
            self.link, self.handover, self.pass_stats, step=lambda: 7, leave=self._leave
        )
        self.has_left = False
        self._lines, self._heard = Lines(), list[Message]()
        self._thread: threading.Thread | None = None

    def _leave(self) -> NoReturn:
        self.has_left = True
        raise Left

    def say(self, do: str, **more: Any) -> None:
        self._ours.sendall(encoded({"do": do, **more}))

    def end_turn(self, *, resident: bool) -> None:
        self.say("end turn", resident=resident)
        wait_until(lambda: self.link.turn_end is resident or self.link.awaits_turn, "the word")

    def come_to_boundary(self) -> None:
        def take() -> None:
            with suppress(Left):
                self.turns.take()

        self._thread = threading.Thread(target=take)
        self._thread.start()

    def heard(self) -> Message:
        """Give the next word of the worker."""
        while not self._heard:
            self._heard += self._lines.feed(self._ours.recv(1 << 16))
        return self._heard.pop(0)

    def trains_on(self) -> None:
        assert self._thread is not None
        self._thread.join(60)
        assert not self._thread.is_alive()

    def close(self) -> None:
        self._ours.close()
        wait_until(lambda: self.link.stop, "the end of the line")
        if self._thread is not None:
            self._thread.join(60)
        self._theirs.close()
        self.handover._stash.close()


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Worker]]:
    # These are threads of the tests' own process, which keeps its name.
    monkeypatch.setattr("coddl.runtime.worker.turns.named", lambda _name: nullcontext())
    workers: list[Worker] = []

    def make(device: str = "cpu") -> Worker:
        workers.append(Worker(tmp_path, device))
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()


@pytest.fixture
def worker(begin: Callable[..., Worker]) -> Worker:
    return begin()


def test_a_worker_that_was_told_nothing_does_not_wait(worker: Worker) -> None:
    worker.come_to_boundary()
    worker.trains_on()


def test_a_resident_worker_keeps_its_tensors_and_moves_out_when_told(worker: Worker) -> None:
    worker.end_turn(resident=True)
    worker.come_to_boundary()
    told = worker.heard()
    assert (told["is"], told["resident"], told["image"], told["step"]) == (
        "turn ended", True, None, 7,
    )  # fmt: skip
    assert not worker.state.is_out
    worker.say("end turn", resident=False)
    told = worker.heard()
    assert (told["resident"], worker.state.is_out) == (False, True)
    assert Path(told["image"]).stat().st_size <= told["bytes"]
    worker.say("begin turn")
    assert worker.heard()["is"] == "turn begun"
    worker.trains_on()
    assert torch.equal(worker.state.weight, torch.arange(4.0 * (1 << 20)))


def test_every_end_is_answered(worker: Worker) -> None:
    worker.end_turn(resident=False)
    worker.come_to_boundary()
    first = worker.heard()
    for resident in (False, True):  # where it is, it stays
        worker.say("end turn", resident=resident)
        told = worker.heard()
        assert (told["is"], told["resident"]) == ("turn ended", False)
        assert told["image"] == first["image"]


def test_a_turn_that_begins_before_the_boundary_never_ended(worker: Worker) -> None:
    worker.end_turn(resident=False)
    worker.say("begin turn")
    assert worker.heard() == {"is": "turn begun", "seconds": 0.0}
    worker.come_to_boundary()
    worker.trains_on()


def test_words_that_come_together_leave_the_last_one(worker: Worker) -> None:
    worker.end_turn(resident=True)
    worker.come_to_boundary()
    worker.heard()
    with worker.link.changed:  # so that it hears of both at once
        worker.say("begin turn")
        worker.say("end turn", resident=False)
    told = worker.heard()
    if told["is"] == "turn begun":  # or it was faster: then it ends at the next boundary
        worker.trains_on()
        wait_until(lambda: worker.link.turn_end is False, "the word")
        worker.come_to_boundary()
        told = worker.heard()
    assert (told["is"], told["resident"]) == ("turn ended", False)


@pytest.mark.parametrize("resident", [True, False])
def test_a_stop_ends_a_worker_that_waits(worker: Worker, resident: bool) -> None:
    worker.end_turn(resident=resident)
    worker.come_to_boundary()
    worker.heard()
    worker.say("stop")
    worker.trains_on()
    assert worker.has_left


def test_a_lost_supervisor_ends_a_worker_that_waits(worker: Worker) -> None:
    worker.end_turn(resident=True)
    worker.come_to_boundary()
    worker.heard()
    worker.close()
    assert worker.has_left


def test_a_worker_that_finds_no_room_stays_where_it_is(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*, writes: bool) -> NoReturn:  # noqa: ARG001 - as the real one
        raise TrainingError("no room", "it is full", "another folder")

    monkeypatch.setattr(worker.handover, "park", refuse)
    worker.end_turn(resident=False)
    worker.come_to_boundary()
    assert worker.heard() == {
        "is": "problem", "what": "no room", "because": "it is full", "try": "another folder",
    }  # fmt: skip
    told = worker.heard()
    assert (told["is"], told["resident"], worker.state.is_out) == ("turn ended", True, False)


def test_a_worker_that_finds_no_room_on_its_device_waits_and_tries_again(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill, tries = offload._fill, list[int]()

    def refuse_once(moved: Any) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        fill(moved)

    monkeypatch.setattr(offload, "_fill", refuse_once)
    worker.end_turn(resident=False)
    worker.come_to_boundary()
    first = worker.heard()
    assert not first["crowded"]
    worker.say("begin turn")
    told = worker.heard()
    assert (told["is"], told["crowded"], told["resident"]) == ("turn ended", True, False)
    assert (told["image"], worker.state.is_out) == (first["image"], True)
    assert worker.link.awaits_turn
    worker.say("begin turn")
    assert worker.heard()["is"] == "turn begun"
    worker.trains_on()
    assert torch.equal(worker.state.weight, torch.arange(4.0 * (1 << 20)))


def test_what_a_worker_keeps_on_its_device_is_told_once(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Offload, "_emptied", lambda _: 300 << 20)
    for words in (["problem", "turn ended"], ["turn ended"]):
        worker.end_turn(resident=False)
        worker.come_to_boundary()
        told = [worker.heard() for _ in words]
        assert [each["is"] for each in told] == words
        if len(told) > 1:
            assert "300 MiB" in told[0]["because"]
        worker.say("begin turn")
        assert worker.heard()["is"] == "turn begun"
        worker.trains_on()


def test_a_capture_that_is_due_is_what_moves_out(worker: Worker) -> None:
    worker.say("capture")
    worker.end_turn(resident=False)
    worker.come_to_boundary()
    worker.heard()
    assert not worker.link.capture


def test_a_worker_that_was_parked_forgets_that_its_turn_was_to_end(worker: Worker) -> None:
    worker.end_turn(resident=False)
    worker.say("unpark")
    wait_until(lambda: worker.link.unpark, "the word")
    worker.come_to_boundary()
    worker.trains_on()


def test_the_wait_is_left_out_of_what_a_worker_reports(worker: Worker) -> None:
    start_s = time.monotonic()
    worker.pass_stats._since_s = start_s
    worker.end_turn(resident=True)
    worker.come_to_boundary()
    worker.heard()
    ended_s = time.monotonic()
    wait_until(lambda: time.monotonic() > ended_s + 0.2, "a while")
    waited_s = time.monotonic() - ended_s
    worker.say("begin turn")
    worker.heard()
    worker.trains_on()
    assert time.monotonic() - worker.pass_stats._since_s <= time.monotonic() - start_s - waited_s


@on_gpu
def test_what_stays_on_a_gpu_is_told(begin: Callable[..., Worker]) -> None:
    worker = begin("cuda")
    bytes_ = worker.state.weight.nbytes
    worker.end_turn(resident=True)
    worker.come_to_boundary()
    resident = worker.heard()
    assert resident["device_bytes"] >= bytes_
    worker.say("end turn", resident=False)
    out = worker.heard()
    assert out["device_bytes"] < resident["device_bytes"]
    assert out["peak_bytes"] >= bytes_
    worker.say("begin turn")
    worker.heard()
    worker.trains_on()
    assert torch.equal(worker.state.weight.cpu(), torch.arange(4.0 * (1 << 20)))


def test_a_cpu_has_nothing_allocated() -> None:
    offload = Offload(torch.device("cpu"))
    assert (offload.device_bytes(), offload.peak_bytes()) == (0, 0)
