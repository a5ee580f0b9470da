"""Warm interpreters of a node: torch is imported once, and each job's fork server is a fork.

One per kind: jobs share a warm process if they run the same interpreter and agree in whatever
variables count only when an interpreter, or a native library, starts.
"""

import os
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coddl.runtime.supervisor import job_errors
from coddl.runtime.supervisor.fork_server_client import ForkedServer, ForkServerClient, Interpreter
from coddl.runtime.supervisor.loop import Loop
from coddl.runtime.wire import Message

NO_PROGRAM: Final = 127  # as a shell says it
KEPT_MAX: Final = 4  # kinds; the ones used last are kept warm
AT_START: Final = (
    *("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG", "HOME"),
    *("OMP_", "GOMP_", "MKL_", "KMP_", "OPENBLAS_", "CUDA_", "TORCH", "PYTORCH_"),
)
NOT_AT_START: Final = frozenset({"CUDA_VISIBLE_DEVICES"})  # read when CUDA is first touched

Key = tuple[str, tuple[tuple[str, str], ...]]


def key_of(interpreter: Interpreter) -> Key:
    """Tell kinds of interpreters apart: the program, and the variables that count at its start."""
    env = {
        name: value
        for name, value in interpreter.env.items()
        if name.startswith(AT_START) and name not in NOT_AT_START
    }
    if "PYTHONPATH" in env:  # relative entries are resolved when Python starts
        parts = env["PYTHONPATH"].split(os.pathsep)
        env["PYTHONPATH"] = os.pathsep.join(str(interpreter.cwd / part) for part in parts if part)
    return interpreter.python, tuple(sorted(env.items()))


@dataclass(slots=True)
class _WarmInterpreter:
    interpreter: Interpreter
    client: ForkServerClient
    about: Message | None = None  # once it is warm
    code: int | None = None  # once it has ended
    users: int = 0  # fork servers of jobs


@dataclass(frozen=True, slots=True)
class _ForkedServer:
    """Keeps the process it was forked from: another one of its kind may run by now."""

    kind: _WarmInterpreter
    on_lost: Callable[[_WarmInterpreter, int], None]

    def release(self) -> None:
        self.kind.users -= 1

    def last_words(self) -> tuple[int, list[str]]:
        """Tell how the warm process has ended; if it was warm, the fork alone may be gone."""
        kind = self.kind
        if kind.about is not None:
            return -signal.SIGKILL, []
        if kind.code is None:  # it is about to: we were not told yet
            self.on_lost(kind, kind.client.close())
        assert kind.code is not None
        return kind.code, kind.client.last_words


class WarmInterpreters:
    """Keeps interpreters warm; for one thread, which must live as long as what is forked.

    A warm process that dies is started anew when it is next needed.
    """

    def __init__(
        self, loop: Loop, on_warm: Callable[[str, Message], None] = lambda _python, _about: None
    ) -> None:
        self._loop = loop
        self._on_warm = on_warm
        self._kinds: dict[Key, _WarmInterpreter] = {}  # the one used last is last

    def warm(self, python: str, env: Mapping[str, str]) -> None:
        """Start a kind unless it runs; `on_warm` hears of its torch and GPUs, or what is wrong."""
        kind = self._living(Interpreter(python, Path("/"), env))
        if kind.about is not None:
            self._on_warm(python, kind.about)

    def fork_for_job(
        self, interpreter: Interpreter, requests: socket.socket, stderr: int
    ) -> ForkedServer:
        """Fork a job's fork server, as soon as its kind is warm."""
        kind = self._living(interpreter)
        kind.users += 1
        # If the warm process dies first, the descriptor dies with it, and `requests` ends.
        kind.client.fork_for_job(interpreter, requests.fileno(), stderr)
        return _ForkedServer(kind, self._on_lost)

    def close(self) -> None:
        """End every warm process, and with it all that was forked."""
        for kind in self._kinds.values():
            kind.client.close()
        self._kinds.clear()

    def _living(self, interpreter: Interpreter) -> _WarmInterpreter:
        key = key_of(interpreter)
        kind = self._kinds.pop(key, None)
        if kind is not None and kind.code is None and kind.client.has_ended:
            self._on_lost(kind, kind.client.close())  # its forks may be heard of before it
        if kind is None or kind.code is not None:
            self._make_room()
            env = {"PATH": os.environ.get("PATH", os.defpath), **dict(key[1])}
            kind = self._started(Interpreter(key[0], Path("/"), env))
        self._kinds[key] = kind
        return kind

    def _make_room(self) -> None:
        """End the kinds that were not used for longest, if there are many."""
        idle = [key for key, kind in self._kinds.items() if kind.users <= 0]
        for key in idle[: max(0, len(self._kinds) + 1 - KEPT_MAX)]:
            self._kinds.pop(key).client.close()

    def _started(self, interpreter: Interpreter) -> _WarmInterpreter:
        client = ForkServerClient(
            self._loop, interpreter, lambda message: self._hear(kind, message)
        )
        kind = _WarmInterpreter(interpreter, client)
        try:
            client.start()
        except OSError as error:
            client.close()
            client.last_words = [f"{error.strerror}"]
            self._on_lost(kind, NO_PROGRAM)
        return kind

    def _hear(self, kind: _WarmInterpreter, message: Message) -> None:
        if message["is"] == "warm":
            kind.about = {"torch": message["torch"], "gpus": message["gpus"]}
            self._on_warm(kind.interpreter.python, kind.about)
        elif message["is"] == "lost":
            self._on_lost(kind, message["code"])

    def _on_lost(self, kind: _WarmInterpreter, code: int) -> None:
        kind.code = code
        if kind.about is None:
            python = kind.interpreter.python
            error = job_errors.no_workers(python, kind.client.last_words, code)
            self._on_warm(python, {**error.parts()})
