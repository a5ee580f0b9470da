"""Watches who lives on which slot of a pool, from the outside, for as long as a test runs."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LOOK_EVERY_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Sitter:
    """A process of a job, as it has presented itself (`scripts/spot`)."""

    pid: int
    started: str  # the kernel's ticks: the number alone may be another's tomorrow
    job: int
    attempt: int
    slots: tuple[int, ...]

    @property
    def lives(self) -> bool:
        """Tell whether it still does; a zombie does not."""
        try:
            words = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return False
        return words[0] not in (b"Z", b"X") and words[19].decode() == self.started

    @property
    def is_active(self) -> bool:
        """Tell whether it may use its slots: it lives, and is not parked."""
        return not is_parked(self.pid) and self.lives  # in this order: it may end in between


def is_parked(pid: int) -> bool:
    """Tell whether a worker waits without its slot, by the name of its process."""
    try:
        return Path(f"/proc/{pid}/comm").read_text() == "coddl-parked\n"
    except OSError:
        return False


class Observer:
    """Looks around all the time; `check` raises if two jobs ever were on one slot."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.looks = 0
        self._read = 0
        self._sitters: list[Sitter] = []
        self.crowded: list[str] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="observer", daemon=True)
        self._thread.start()

    def sitters(self, job: int | None = None) -> list[Sitter]:
        """Give who lives now, of one job or of all."""
        with self._lock:
            self._sitters += self._newcomers()
            self._sitters = [each for each in self._sitters if each.lives]
            return [each for each in self._sitters if job in (None, each.job)]

    def check(self) -> None:
        """Raise if a slot has had processes of two jobs, or two of one, at once."""
        met = self._text("meetings")
        assert not met, f"two processes on one slot:\n{met}"
        assert not self.crowded, "\n".join(self.crowded)
        assert self.looks, "nobody has looked"

    def seen(self) -> list[Sitter]:
        """Give everybody who ever sat down."""
        return list(_read(self._text("processes")))

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            self.look()

    def look(self) -> None:
        """Look once."""
        owners: dict[int, Sitter] = {}
        for each in [each for each in self.sitters() if each.is_active]:
            for slot in each.slots:
                other = owners.setdefault(slot, each)
                if other.job != each.job and other.is_active and each.is_active:
                    self.crowded.append(f"slot {slot} has two owners: {other} and {each}")
        self.looks += 1

    def _newcomers(self) -> Iterator[Sitter]:
        text = self._text("processes")
        whole = text[: text.rfind("\n") + 1]
        yield from _read(whole[self._read :])
        self._read = len(whole)

    def _text(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""


def _read(text: str) -> Iterator[Sitter]:
    for line in text.splitlines():
        about = json.loads(line)
        yield Sitter(**{**about, "slots": tuple(about["slots"])})
