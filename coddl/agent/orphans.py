"""Orphan processes of an earlier agent on this machine: found, killed, waited for.

The kernel ends our children with us, but not what a user's program has started itself. So each
process that leads a session for us is written down; and whatever runs a program of its own carries
a mark in its environment. Both are looked for when an agent starts, before it says hello.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

MARK: Final = "CODDL_AGENT"  # environment variable
LOOK_EVERY_S: Final = 0.05
PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """A process of this machine; the number alone may be another's tomorrow."""

    pid: int
    parent: int
    session: int
    started: int  # in the kernel's ticks since it booted
    is_zombie: bool

    @property
    def name(self) -> tuple[int, int]:
        """Tell it from any other, while the machine is up."""
        return self.pid, self.started

    def kill(self) -> None:
        """Kill it, if it is still there."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)


def process(pid: int) -> Process | None:
    """Look a process up; None if there is none."""
    try:
        words = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return Process(pid, int(words[1]), int(words[3]), int(words[19]), words[0] in b"ZX")


def processes() -> Iterator[Process]:
    """Give all that run and are this user's."""
    for entry in os.scandir(PROC):
        with contextlib.suppress(OSError):
            if not entry.name.isdigit() or entry.stat().st_uid != os.getuid():
                continue
            found = process(int(entry.name))
            if found is not None and not found.is_zombie:
                yield found


def below(pid: int) -> dict[int, list[Process]]:
    """Give all that a process has started, and what they have started, by their parents."""
    children: dict[int, list[Process]] = {}
    for each in processes():
        children.setdefault(each.parent, []).append(each)
    found: dict[int, list[Process]] = {}
    look = [pid]
    while look:
        parent = look.pop()
        if parent in children:
            found[parent] = children[parent]
            look += [each.pid for each in children[parent]]
    return found


def started_with(variables: Mapping[str, str]) -> Iterator[Process]:
    """Give those that were started with these variables."""
    wanted = {f"{name}={value}".encode() for name, value in variables.items()}
    for each in processes():
        with contextlib.suppress(OSError):
            if wanted <= {*(PROC / str(each.pid) / "environ").read_bytes().split(b"\0")}:
                yield each


def mark_of(folder: Path) -> str:
    """Name an agent's place: the same for every agent process that ever uses the folder."""
    return blake2b(os.fsencode(folder.resolve()), digest_size=8).hexdigest()


class OrphanProcesses:
    """Records the session leaders of a folder's agent on disk, and kills what is left of them."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "processes"
        self._mark = mark_of(folder)
        self._noted: tuple[tuple[int, int], ...] = ()

    def note(self, pids: Iterable[int]) -> None:
        """Record the session leaders of now."""
        found = (process(pid) for pid in sorted(set(pids)))
        now = tuple(each.name for each in found if each is not None)
        if now == self._noted:
            return
        self._noted = now
        lines = [f"{_machine()}\n", *(f"{pid} {started}\n" for pid, started in now)]
        temporary = self._path.with_suffix(".tmp")
        with contextlib.suppress(OSError):  # a full disk: the marks are still there
            temporary.write_text("".join(lines))
            temporary.replace(self._path)

    def end(self, on_wait: Callable[[int], None] = lambda _count: None) -> int:
        """Kill all that an earlier agent left, and wait until it is gone; give how many.

        `on_wait` is told every few seconds how many are still there: a process that hangs in the
        kernel can't be killed, and its device is not free.
        """
        killed: set[tuple[int, int]] = set()
        told_s = time.monotonic()
        while left := self.left():
            for each in left:
                killed.add(each.name)
                each.kill()
            if time.monotonic() - told_s > 5:
                told_s = time.monotonic()
                on_wait(len(left))
            time.sleep(LOOK_EVERY_S)
        self._path.unlink(missing_ok=True)
        return len(killed)

    def left(self) -> list[Process]:
        """Find what runs of the jobs of this folder's agents."""
        leaders = self._recorded()
        found = {each.name: each for each in started_with({MARK: self._mark})}
        for each in processes():
            # While a session has members, the kernel gives its number to no other.
            started = leaders.get(each.session)
            leader = each if each.pid == each.session else process(each.session)
            if started is not None and (leader is None or leader.started == started):
                found[each.name] = each
        return [each for each in found.values() if each.pid != os.getpid()]

    def _recorded(self) -> dict[int, int]:
        try:
            machine, *lines = self._path.read_text().splitlines()
            pairs = [line.split() for line in lines]
            found = {int(pid): int(started) for pid, started in pairs}
        except (OSError, ValueError):
            return {}
        return found if machine == _machine() else {}


def _machine() -> str:
    """Name this boot of the machine."""
    with contextlib.suppress(OSError):
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    return "unknown"
