"""Workers whose hosts are played by a test: which of the hosts' messages count."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.loop import Loop
from coddl.runtime.supervisor.slots import Slot
from coddl.runtime.supervisor.worker_record import WorkerRecord
from coddl.runtime.supervisor.workers import Workers
from coddl.runtime.wire import Message

JOB = Job(
    name="17",
    id="17",
    attempt=3,
    script=Path("train.py"),
    argv=("train.py",),
    cwd=Path("/"),
    env={},
    folder=Path("/nowhere"),
)


class FakeWorkerHost:
    """Keeps what it is asked."""

    is_closed = True

    def __init__(self, say: Callable[[Message], None]) -> None:
        self.say = say
        self.asked: list[Message] = []

    def open(self) -> None: ...

    def do(self, request: Message) -> None:
        self.asked.append(request)

    def close(self) -> None: ...
    def leave(self) -> None: ...


class FakeSupervisor:
    """Leads workers, and keeps what it is told."""

    def __init__(self, loop: Loop) -> None:
        self.heard: list[str] = []
        self.worker_hosts: dict[str, FakeWorkerHost] = {}
        self.workers = Workers(loop, JOB, self, lead_node="a", host_of=self._host_of)

    def _host_of(self, node: str, on_word: Callable[[Message], None]) -> FakeWorkerHost:
        self.worker_hosts[node] = FakeWorkerHost(on_word)
        return self.worker_hosts[node]

    def tell(self, event: Message) -> None:
        self.heard.append(f"{event['is']}")

    def fail(self, error: TrainingError, code: int) -> None:
        self.heard.append(f"failed {code}: {error}")

    def on_warm(self) -> None: ...

    def on_store(self) -> None:
        self.heard.append("store")

    def on_store_lost(self) -> None:
        self.heard.append("store lost")

    def on_word(self, record: WorkerRecord, message: Message) -> None:
        self.heard.append(f"{record.number} {message['is']}")

    def on_gone(self, record: WorkerRecord, code: int, because: str | None) -> None:
        self.heard.append(f"{record.number} gone {code} {because}")

    def on_saved(self, word: Message) -> None:
        self.heard.append(f"{word['is']}")


@pytest.fixture
def supervisor() -> Iterator[FakeSupervisor]:
    with contextlib.closing(Loop()) as loop:
        yield FakeSupervisor(loop)


def test_only_the_store_asked_for_last_counts(supervisor: FakeSupervisor) -> None:
    supervisor.workers.open()
    supervisor.workers.restart_together()
    lead_node = supervisor.worker_hosts["a"]
    first, last = (request["store"] for request in lead_node.asked)
    assert first != last
    supervisor.workers.start(0, Slot(0, "a"), joins=False)
    lead_node.say({"is": "rendezvous", "store": first, "host": "a", "port": 1})
    lead_node.say({"is": "storeless", "store": first, "because": "so"})
    assert supervisor.heard == []
    assert [request["do"] for request in lead_node.asked] == ["rendezvous"] * 2
    lead_node.say({"is": "rendezvous", "store": last, "host": "a", "port": 2})
    assert supervisor.heard == ["store"]
    assert lead_node.asked[-1]["env"]["MASTER_PORT"] == "2"
    lead_node.say({"is": "storeless", "store": last, "because": "so"})
    assert supervisor.heard == ["store", "store lost"]


def test_a_save_that_another_lead_asked_for_is_told_and_not_counted(
    supervisor: FakeSupervisor,
) -> None:
    supervisor.workers.worker_host("a")
    saved = {"is": "saved", "step": 5}
    supervisor.worker_hosts["a"].say(saved)
    supervisor.workers.save("a", "/nowhere/slot-0.img")
    busy = [supervisor.workers.is_saving]
    supervisor.worker_hosts["a"].say(saved)
    busy.append(supervisor.workers.is_saving)
    assert busy == [True, False]
    assert supervisor.heard == ["saved"] * 2
