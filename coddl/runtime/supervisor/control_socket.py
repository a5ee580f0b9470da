"""The local socket on which a running job is resized, suspended, resumed and watched.

JSON lines. A request is `{"do": "resize", "workers": 4}`; its answer has `"ok": true` and more, or
`"error"` with what, because and try. It may come late: a resize is answered when it serves.
`watch` is answered with every event of the job until either side hangs up.
"""

import contextlib
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor.jobdir import socket_folder
from coddl.runtime.supervisor.loop import Channel, Loop, SupervisorLoop
from coddl.runtime.wire import Lines, Message, encoded

PATH_BYTES_MAX: Final = 107  # what the kernel allows for the address of a Unix socket

STATUS_WITHIN_S: Final = 5.0  # a job that runs answers at once

Answer = Callable[[Message], None]


class ControlSocket:
    """Listens under a job's name, which is this process's alone until it ends."""

    def __init__(self, name: str, handle: Callable[[Message, Answer], None]) -> None:
        self._handle = handle
        folder = socket_folder()
        self.path = folder / f"{name}.sock"
        if len(os.fsencode(self.path)) > PATH_BYTES_MAX:
            raise TrainingError(f'"{name}" is too long a name', f"{self.path}", "--name train")
        self._lock_path = folder / f"{name}.lock"
        self._lock = _locked(self._lock_path, name)
        self._channels: set[Channel] = set()
        self._watchers: list[Channel] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self.path.unlink(missing_ok=True)  # left by a supervisor that was killed
        self._listener.bind(str(self.path))
        self._listener.listen(16)
        self._listener.setblocking(False)

    def serve(self, loop: SupervisorLoop) -> None:
        """Take requests from now on."""
        assert isinstance(loop, Loop), "requests are read from descriptors"
        self._loop = loop
        loop.watch(self._listener, self._accept)

    def broadcast(self, event: Message) -> None:
        """Send an event to all that watch."""
        for channel in list(self._watchers):
            channel.send(event)

    def close(self) -> None:
        """Give the name free."""
        for channel in list(self._channels):
            channel.close()
        self._listener.close()
        self.path.unlink(missing_ok=True)
        self._lock_path.unlink(missing_ok=True)
        os.close(self._lock)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            peer, _ = self._listener.accept()
            channel = Channel(
                self._loop, peer, lambda request: self._on(request, channel), lambda: drop()
            )
            self._channels.add(channel)

            def drop() -> None:
                self._channels.discard(channel)
                if channel in self._watchers:
                    self._watchers.remove(channel)

    def _on(self, request: Message, channel: Channel) -> None:
        if request.get("do") == "watch":
            self._watchers.append(channel)
        else:
            self._handle(request, channel.send)


def _locked(path: Path, name: str) -> int:
    """Take the lock that says a job of this name runs; the kernel drops it when we end."""
    while True:
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise TrainingError(
                f'a job named "{name}" is running already',
                f"another coddl run holds {path}",
                f"--name {name}-2, or coddl ls --local",
            ) from None
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(lock).st_ino:
                return lock
        os.close(lock)  # its last holder has just removed it: that lock keeps no process out


def running() -> list[str]:
    """Name the jobs that run on this machine, in order."""
    return sorted(path.stem for path in socket_folder().glob("*.sock") if _answers(path))


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def asked(name: str, request: Message) -> Message:
    """Ask a running job and wait for its answer; raise if there is none or it refuses."""
    for answer in conversation(name, request):
        if "error" in answer:
            raise TrainingError(*(answer["error"][part] for part in ("what", "because", "try")))
        return answer
    raise TrainingError(
        f"{name} gave no answer",
        "it has ended, or is stopped (by Ctrl-Z?)",
        "coddl ls --local, or look at its terminal",
    )


def conversation(name: str, request: Message) -> Iterator[Message]:
    """Send one request and give all that comes back until the job hangs up."""
    with socket.socket(socket.AF_UNIX) as peer:
        if request["do"] == "status":
            peer.settimeout(STATUS_WITHIN_S)
        try:
            peer.connect(str(socket_folder() / f"{name}.sock"))
        except OSError:
            jobs = running()
            raise TrainingError(
                f'there is no job named "{name}" on this machine',
                f"running: {', '.join(jobs)}" if jobs else "no job is running here",
                f"{jobs[0]}" if len(jobs) == 1 else "coddl ls --local",
            ) from None
        lines = Lines()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
            peer.sendall(encoded(request))
            while data := peer.recv(1 << 16):
                yield from lines.feed(data)
