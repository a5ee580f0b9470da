"""A crew whose stations a test plays: which of their words count."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor.crew import Crew
from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.ledger import WorkerNotes
from coddl.runtime.supervisor.loop import Loop
from coddl.runtime.supervisor.seats import Seat
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


class Station:
    """Remembers what it is asked."""

    is_closed = True

    def __init__(self, say: Callable[[Message], None]) -> None:
        self.say = say
        self.asked: list[Message] = []

    def do(self, request: Message) -> None:
        self.asked.append(request)

    def close(self) -> None: ...
    def leave(self) -> None: ...


class Stage:
    """Leads a crew, and notes what it hears."""

    def __init__(self, loop: Loop) -> None:
        self.heard: list[str] = []
        self.stations: dict[str, Station] = {}
        self.crew = Crew(loop, JOB, self, home="a", reach=self._reach)

    def _reach(self, node: str, on_word: Callable[[Message], None]) -> Station:
        self.stations[node] = Station(on_word)
        return self.stations[node]

    def tell(self, event: Message) -> None:
        self.heard.append(f"{event['is']}")

    def fail(self, error: TrainingError, code: int) -> None:
        self.heard.append(f"failed {code}: {error}")

    def on_warm(self) -> None: ...

    def on_store(self) -> None:
        self.heard.append("store")

    def on_store_lost(self) -> None:
        self.heard.append("store lost")

    def on_word(self, notes: WorkerNotes, message: Message) -> None:
        self.heard.append(f"{notes.number} {message['is']}")

    def on_gone(self, notes: WorkerNotes, code: int, because: str | None) -> None:
        self.heard.append(f"{notes.number} gone {code} {because}")

    def on_saved(self, word: Message) -> None:
        self.heard.append(f"{word['is']}")


@pytest.fixture
def stage() -> Iterator[Stage]:
    with contextlib.closing(Loop()) as loop:
        yield Stage(loop)


def test_only_the_store_asked_for_last_counts(stage: Stage) -> None:
    stage.crew.open()
    stage.crew.restart_together()
    home = stage.stations["a"]
    first, last = (request["store"] for request in home.asked)
    assert first != last
    stage.crew.start(0, Seat(0, "a"), joins=False)
    home.say({"is": "rendezvous", "store": first, "host": "a", "port": 1})
    home.say({"is": "storeless", "store": first, "because": "so"})
    assert stage.heard == []
    assert [request["do"] for request in home.asked] == ["rendezvous"] * 2
    home.say({"is": "rendezvous", "store": last, "host": "a", "port": 2})
    assert stage.heard == ["store"]
    assert home.asked[-1]["env"]["MASTER_PORT"] == "2"
    home.say({"is": "storeless", "store": last, "because": "so"})
    assert stage.heard == ["store", "store lost"]


def test_a_save_that_another_lead_asked_for_is_told_and_not_counted(stage: Stage) -> None:
    stage.crew.station("a")
    saved = {"is": "saved", "step": 5}
    stage.stations["a"].say(saved)
    stage.crew.save("a", "/nowhere/slot-0.img")
    busy = [stage.crew.is_saving]
    stage.stations["a"].say(saved)
    busy.append(stage.crew.is_saving)
    assert busy == [True, False]
    assert stage.heard == ["saved"] * 2
