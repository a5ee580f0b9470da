"""A worker host on another node, as its lead sees it: requests and answers go over TCP.

Connects when there is something to say, and again after a connection was lost. What can't be
delivered is answered here, as the worker host would have answered a failure.
"""

import errno
import socket
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from coddl.runtime.supervisor.loop import Channel, Loop, MessageChannel, SupervisorLoop
from coddl.runtime.supervisor.slots import HostAddress
from coddl.runtime.supervisor.worker_host import LOST
from coddl.runtime.wire import Message

CONNECT_WITHIN_S: Final = 5.0
AGAIN_S: Final = 0.25  # between two tries to connect
GREETED_WITHIN_S: Final = 40.0  # longer than a node waits to hear of the job
DISMISSED_WITHIN_S: Final = 10.0

KEEPALIVE: Final = (  # a peer that is silently gone is noticed in about 10 s
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 4),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)


def keep_alive(peer: socket.socket) -> None:
    """Have the kernel watch a connection, and send small messages at once."""
    for level, option, value in KEEPALIVE:
        peer.setsockopt(level, option, value)


class DialListener(Protocol):
    """Hears what becomes of a connection to a worker host."""

    def on_connected(self, channel: MessageChannel) -> None: ...
    def on_refused(self, error: str) -> None:
        """Hear that this attempt has failed; another one may do better."""
        ...

    def on_message(self, word: Message) -> None: ...
    def on_hung_up(self) -> None: ...


class Dialing(Protocol):
    """An attempt to connect."""

    def cancel(self) -> None:
        """Give it up; nothing is heard of it any more. Does nothing once connected."""
        ...


Dial = Callable[[HostAddress, DialListener], Dialing]


class TcpDialing:
    """An attempt to connect over TCP."""

    def __init__(self, loop: Loop, address: HostAddress, listener: DialListener) -> None:
        self._loop = loop
        self._listener = listener
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        peer = socket.socket(family, socket.SOCK_STREAM)
        self._peer: socket.socket | None = peer
        peer.setblocking(False)
        try:
            keep_alive(peer)
            code = peer.connect_ex((address.host, address.port))
        except OSError as error:  # an unknown name
            code = error.errno or errno.EHOSTUNREACH
        if code in (0, errno.EINPROGRESS):
            loop.watch(peer, self._on_ready, write=True)
        else:
            self._refuse(code)

    def cancel(self) -> None:
        if self._peer is not None:
            self._loop.forget(self._peer)
            self._peer.close()
            self._peer = None

    def _on_ready(self) -> None:
        assert self._peer is not None
        if code := self._peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._refuse(code)
            return
        peer, self._peer, listener = self._peer, None, self._listener
        self._loop.forget(peer)
        channel = Channel(self._loop, peer, listener.on_message, listener.on_hung_up)
        listener.on_connected(channel)

    def _refuse(self, code: int) -> None:
        self.cancel()
        self._listener.on_refused(errno.errorcode.get(code, f"error {code}"))


def tcp_dial(loop: Loop) -> Dial:
    """Connect over TCP, with the descriptors watched by a loop."""
    return partial(TcpDialing, loop)


class RemoteWorkerHost:
    """The worker host of a job on another node.

    Beside a worker host's own words it says: `living` when connected, `gone` when a connection was
    lost, `unreachable` when none could be made, `refused` when the node takes no orders from us.
    """

    def __init__(
        self,
        loop: SupervisorLoop,
        dial: Dial,
        address: HostAddress,
        hello: Message,
        on_word: Callable[[Message], None],
    ) -> None:
        self._loop = loop
        self._dial = dial
        self._address = address
        self._hello = hello  # job, attempt, adopt
        self._say = on_word
        self._waiting: list[Message] = []  # requests, until we are connected
        self._dialing: Dialing | None = None
        self._channel: MessageChannel | None = None
        self._is_greeted = False
        self._give_up_s = 0.0
        self._error = ""
        self.is_closed = True  # nothing is open or under way

    def do(self, request: Message) -> None:
        """Send a request, now or once connected; or answer for the node that can't be reached."""
        if self._is_greeted and self._channel is not None:
            self._channel.send(request)
        else:
            self._waiting.append(request)
            self.open()

    def open(self) -> None:
        """Connect, unless that is under way; `living`, `unreachable` or `refused` follow."""
        if self.is_closed:
            self.is_closed = False
            self._give_up_s = self._loop.now_s() + CONNECT_WITHIN_S
            self._error = "it does not answer"  # unless an attempt says more
            self._loop.alarm((self, "late"), self._give_up_s, lambda: self._fail(self._error))
            self._try()

    def close(self) -> None:
        """End everything there; `is_closed` once that is so, or the node does not answer."""
        self._waiting.clear()
        if self._is_greeted and self._channel is not None:
            self._say = lambda _word: None
            self._channel.send({"do": "dismiss"})
            at_s = self._loop.now_s() + DISMISSED_WITHIN_S
            self._loop.alarm((self, "late"), at_s, self.leave)
        else:
            self.leave()

    def leave(self) -> None:
        """Hang up; the workers there live on."""
        for name in ("late", "again"):
            self._loop.silence((self, name))
        if self._dialing is not None:
            self._dialing.cancel()
            self._dialing = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._is_greeted = False
        self.is_closed = True

    # Connecting.

    def _try(self) -> None:
        self._dialing = self._dial(self._address, self)

    def on_connected(self, channel: MessageChannel) -> None:
        """Say who leads, now that there is a connection."""
        self._dialing, self._channel = None, channel
        at_s = self._loop.now_s() + GREETED_WITHIN_S
        self._loop.alarm((self, "late"), at_s, lambda: self._fail("it does not answer"))
        channel.send({"do": "lead", "token": self._address.token, **self._hello})

    def on_refused(self, error: str) -> None:
        """Try again some time later, unless that would be too late."""
        self._error = error
        at_s = self._loop.now_s() + AGAIN_S
        if at_s < self._give_up_s:
            self._loop.alarm((self, "again"), at_s, self._try)
        else:
            self._fail(self._error)

    def _fail(self, error: str) -> None:
        """Answer, for a node that can't be reached, what was asked of it."""
        self.leave()
        self._adopt_nobody()
        because = f"node {self._address.node} at {self._address.host} can't be reached: {error}"
        waiting, self._waiting = self._waiting, []
        self._say({"is": "unreachable", "because": because})
        self._answer(waiting, because)

    def _answer(self, requests: list[Message], because: str) -> None:
        for request in requests:
            match request["do"]:
                case "start":
                    ended = {"is": "exited", "worker": request["worker"], "code": LOST}
                    self._say({**ended, "because": because})
                case "rendezvous":
                    store = request["store"]
                    self._say({"is": "storeless", "store": store, "because": because})
                case "save":
                    what = f"{request['path']} could not be saved"
                    try_ = "nothing: the next checkpoint is tried as scheduled"
                    self._say({"is": "unsaved", "what": what, "because": because, "try": try_})

    def _adopt_nobody(self) -> None:
        """Keep no workers there from now on: those found were told of, or are given up."""
        self._hello = {**self._hello, "adopt": False}

    # Connected.

    def on_message(self, word: Message) -> None:
        """Pass on what it says; its first word tells whether it follows this lead."""
        if self._is_greeted:
            self._say(word)
            return
        self._adopt_nobody()
        waiting, self._waiting = self._waiting, []
        if word["is"] == "living":
            self._is_greeted = True
            self._loop.silence((self, "late"))
            self._say(word)
            for request in waiting:
                self.do(request)
        else:
            self.leave()
            self._say({**word, "node": self._address.node})
            self._answer(waiting, f"{word.get('because')}")

    def on_hung_up(self) -> None:
        """Tell that the connection has ended."""
        was_greeted = self._is_greeted
        self.leave()
        if was_greeted:
            self._say({"is": "gone", "because": f"node {self._address.node} closed the connection"})
        else:
            self._fail("it closed the connection")
