"""One warm interpreter for all jobs of a test process, as an agent has: torch is imported once."""

import atexit
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

from coddl.runtime.supervisor.fork_server_client import ForkedServer, Interpreter
from coddl.runtime.supervisor.loop import Loop
from coddl.runtime.supervisor.warm_interpreters import WarmInterpreters

T = TypeVar("T")


class Warm:
    """Keeps interpreters in a thread of its own, which lives as long as the process."""

    def __init__(self) -> None:
        self._loop = Loop()
        self._warm_interpreters = WarmInterpreters(self._loop)
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="warm", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def fork_for_job(
        self, interpreter: Interpreter, requests: socket.socket, stderr: int
    ) -> ForkedServer:
        """Fork a job's fork server. For any thread."""
        forked_server = self._called(
            lambda: self._warm_interpreters.fork_for_job(interpreter, requests, stderr)
        )
        return _ForkedServer(self, forked_server)

    def close(self) -> None:
        """End what is warm."""
        self._called(self._warm_interpreters.close)
        self._is_over = True
        self._loop.post(lambda: None)
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over:
            self._loop.turn()

    def _called(self, action: Callable[[], T]) -> T:
        """Call something in the thread; give what it gives."""
        results: list[T] = []
        done = threading.Event()

        def call() -> None:
            try:
                results.append(action())
            finally:
                done.set()

        self._loop.post(call)
        done.wait()
        return results[0]


class _ForkedServer:
    """Asks the thread that knows."""

    def __init__(self, warm: Warm, forked_server: ForkedServer) -> None:
        self._warm = warm
        self._forked_server = forked_server

    def release(self) -> None:
        self._warm._called(self._forked_server.release)

    def last_words(self) -> tuple[int, list[str]]:
        return self._warm._called(self._forked_server.last_words)
