"""The supervisor's loop: what can be read, what is due, and what can be written."""

import contextlib
import heapq
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, Protocol

from coddl.runtime.wire import Lines, Message, encoded

PIECE_BYTES: Final = 1 << 16
OUTBOX_BYTES_MAX: Final = 4 << 20  # a peer that reads nothing for so long is not coming back
LINE_BYTES_MAX: Final = 1 << 16
LAST_PIECES_MAX: Final = 32  # a pipe holds less, unless its reader asked for more


class SupervisorLoop(Protocol):
    """What a supervisor's logic uses of its loop: a clock, alarms, and its turn."""

    def now_s(self) -> float:
        """Seconds since some moment, by a clock that is never set."""
        ...

    def alarm(self, name: Hashable, at_s: float, action: Callable[[], None]) -> None:
        """Call `action` when `now_s` shows that; replaces an alarm of the same name."""
        ...

    def silence(self, name: Hashable) -> None:
        """Drop an alarm, if there is one."""
        ...

    def post(self, action: Callable[[], None]) -> None:
        """Call `action` soon; from any thread."""
        ...

    def turn(self) -> None:
        """Wait until something happens and see to it."""
        ...

    def close(self) -> None:
        """Let go of what the loop itself holds."""
        ...


class Loop:
    """Calls back when a descriptor is ready, when a time has come, or when another thread asks."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._alarms: dict[Hashable, tuple[float, Callable[[], None]]] = {}
        self._due: list[tuple[float, int, Hashable]] = []
        self._order = 0
        self._posted: deque[Callable[[], None]] = deque()
        self._wake_out, self._wake_in = socket.socketpair()
        for end in (self._wake_out, self._wake_in):
            end.setblocking(False)
        self.watch(self._wake_out, self._run_posted)

    def watch(
        self, file: int | socket.socket, on_ready: Callable[[], object], *, write: bool = False
    ) -> None:
        """Call `on_ready` whenever the descriptor can be read (or also written)."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0)
        if file in self._selector.get_map():
            self._selector.modify(file, events, on_ready)
        else:
            self._selector.register(file, events, on_ready)

    def forget(self, file: int | socket.socket) -> None:
        """Watch the descriptor no more; must be called before it is closed."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(file)

    def now_s(self) -> float:
        """Give the time of `time.monotonic`."""
        return time.monotonic()

    def alarm(self, name: Hashable, at_s: float, action: Callable[[], None]) -> None:
        """Call `action` at that time (of `now_s`); replaces an alarm of the same name."""
        self._alarms[name] = (at_s, action)
        self._order += 1
        heapq.heappush(self._due, (at_s, self._order, name))

    def silence(self, name: Hashable) -> None:
        """Drop an alarm, if there is one."""
        self._alarms.pop(name, None)

    def post(self, action: Callable[[], None]) -> None:
        """Have the loop call `action`; from any thread, or from a signal handler."""
        self._posted.append(action)
        with contextlib.suppress(OSError):  # full: it will wake up anyway; closed: it is over
            self._wake_in.send(b"!")

    def turn(self) -> None:
        """Wait until something happens and see to it."""
        timeout_s = max(0.0, self._due[0][0] - self.now_s()) if self._due else None
        watched = self._selector.get_map()
        for key, _ in self._selector.select(timeout_s):
            now = watched.get(key.fd)  # an earlier callback may have closed it
            if now is not None and now.fileobj == key.fileobj:
                now.data()
        while self._due and self._due[0][0] <= self.now_s():
            at_s, _, name = heapq.heappop(self._due)
            if name in self._alarms and self._alarms[name][0] == at_s:
                self._alarms.pop(name)[1]()

    def close(self) -> None:
        """Let go of what the loop itself holds."""
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    def _run_posted(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_out.recv(4096)
        while self._posted:
            self._posted.popleft()()


class MessageChannel(Protocol):
    """Sends messages to one peer; its messages go to the owner of the channel."""

    is_open: bool
    lines: Lines  # that come from the peer

    def hand_over(
        self, on_message: Callable[[Message], None], on_hung_up: Callable[[], None]
    ) -> None:
        """Have another part of the program hear the peer from now on."""
        ...

    def send(self, message: Message) -> None:
        """Send now, or as soon as the peer reads; silently nothing if it is gone."""
        ...

    def close(self) -> None:
        """Hang up; what the peer has not read yet is lost."""
        ...


class Channel:
    """Messages to and from one peer over a stream socket; never waits for it.

    `on_hung_up` is called when the peer closes its end, not when we do.
    """

    def __init__(
        self,
        loop: Loop,
        peer: socket.socket,
        on_message: Callable[[Message], None] = lambda _message: None,
        on_hung_up: Callable[[], None] = lambda: None,
        *,
        lines: Lines | None = None,
    ) -> None:
        self._loop = loop
        self._peer = peer
        self._on_message = on_message
        self._on_hung_up = on_hung_up
        self.lines = lines or Lines()
        self._outbox = bytearray()
        self.is_open = True
        peer.setblocking(False)
        loop.watch(peer, self._ready)

    def hand_over(
        self, on_message: Callable[[Message], None], on_hung_up: Callable[[], None]
    ) -> None:
        """Have another part of the program hear the peer from now on."""
        self._on_message, self._on_hung_up = on_message, on_hung_up

    def send(self, message: Message) -> None:
        """Send now, or as soon as the peer reads; silently nothing if it is gone."""
        if not self.is_open:
            return
        self._outbox += encoded(message)
        self._flush()
        if len(self._outbox) > OUTBOX_BYTES_MAX:
            self._lose()

    def drain(self) -> None:
        """Read all that has arrived."""
        while self.is_open and self._read():
            pass

    def close(self) -> None:
        """Hang up; what the peer has not read yet is lost."""
        if self.is_open:
            self.is_open = False
            self._loop.forget(self._peer)
            self._peer.close()

    def _lose(self) -> None:
        self.close()
        self._on_hung_up()

    def _ready(self) -> None:
        self._read()
        if self.is_open and self._outbox:
            self._flush()

    def _read(self) -> bool:
        """Take one piece; tell whether there may be more."""
        try:
            data = self._peer.recv(PIECE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._lose()
            return False
        try:
            messages = list(self.lines.feed(data))
        except ValueError:  # not our protocol: no other peer may suffer from it
            self._lose()
            return False
        for message in messages:
            self._on_message(message)
        return True

    def _flush(self) -> None:
        try:
            sent = self._peer.send(self._outbox)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # it is gone; reading will tell, after its last words
        del self._outbox[:sent]
        self._loop.watch(self._peer, self._ready, write=bool(self._outbox))


class LogPipe:
    """Reads what a process prints, line by line; an unfinished last line counts as one."""

    def __init__(self, loop: Loop, descriptor: int, on_line: Callable[[str], None]) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self._on_line = on_line
        self._rest = b""
        self._is_open = True
        os.set_blocking(descriptor, False)
        loop.watch(descriptor, self._read)

    def finish(self) -> None:
        """Read all there is and close; other writers are not waited for."""
        for _ in range(LAST_PIECES_MAX):
            if not self._is_open or not self._read():
                break
        self._close()

    def _read(self) -> bool:
        try:
            data = os.read(self._descriptor, PIECE_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._close()
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:  # a progress bar that never ends its line
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._tell(line)
        return True

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.forget(self._descriptor)
            os.close(self._descriptor)
            if self._rest:
                self._tell(self._rest)

    def _tell(self, line: bytes) -> None:
        # Of a line that was overwritten by carriage returns, its last state.
        shown = line.rstrip(b"\r").rpartition(b"\r")[2]
        self._on_line(shown.decode(errors="replace"))
