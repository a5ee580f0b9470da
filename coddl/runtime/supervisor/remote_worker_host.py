"""A worker host on another node, as its lead sees it: requests and answers go over TCP.

Connects when there is something to say, and again after a connection was lost. What can't be
delivered is answered here, as the worker host would have answered a failure.
"""

import errno
import socket
import time
from collections.abc import Callable
from typing import Final

from coddl.runtime.supervisor.loop import Channel, Loop
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


class RemoteWorkerHost:
    """The worker host of a job on another node.

    Beside a worker host's own words it says: `living` when connected, `gone` when a connection was
    lost, `unreachable` when none could be made, `refused` when the node takes no orders from us.
    """

    def __init__(
        self, loop: Loop, address: HostAddress, hello: Message, on_word: Callable[[Message], None]
    ) -> None:
        self._loop = loop
        self._address = address
        self._hello = hello  # job, attempt, adopt
        self._say = on_word
        self._waiting: list[Message] = []  # requests, until we are connected
        self._connecting: socket.socket | None = None
        self._channel: Channel | None = None
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
            self._give_up_s = time.monotonic() + CONNECT_WITHIN_S
            self._error = "it does not answer"  # unless an attempt says more
            self._loop.alarm((self, "late"), self._give_up_s, lambda: self._fail(self._error))
            self._try()

    def close(self) -> None:
        """End everything there; `is_closed` once that is so, or the node does not answer."""
        self._waiting.clear()
        if self._is_greeted and self._channel is not None:
            self._say = lambda _word: None
            self._channel.send({"do": "dismiss"})
            at_s = time.monotonic() + DISMISSED_WITHIN_S
            self._loop.alarm((self, "late"), at_s, self.leave)
        else:
            self.leave()

    def leave(self) -> None:
        """Hang up; the workers there live on."""
        for name in ("late", "again"):
            self._loop.silence((self, name))
        if self._connecting is not None:
            self._loop.forget(self._connecting)
            self._connecting.close()
            self._connecting = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._is_greeted = False
        self.is_closed = True

    # Connecting.

    def _try(self) -> None:
        family = socket.AF_INET6 if ":" in self._address.host else socket.AF_INET
        peer = self._connecting = socket.socket(family, socket.SOCK_STREAM)
        peer.setblocking(False)
        try:
            keep_alive(peer)
            code = peer.connect_ex((self._address.host, self._address.port))
        except OSError as error:  # an unknown name
            code = error.errno or errno.EHOSTUNREACH
        if code in (0, errno.EINPROGRESS):
            self._loop.watch(peer, self._on_connected, write=True)
        else:
            self._try_again(code)

    def _on_connected(self) -> None:
        peer = self._connecting
        assert peer is not None
        if code := peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._try_again(code)
            return
        self._loop.forget(peer)
        self._connecting = None
        self._channel = Channel(self._loop, peer, self._on_message, self._on_hung_up)
        at_s = time.monotonic() + GREETED_WITHIN_S
        self._loop.alarm((self, "late"), at_s, lambda: self._fail("it does not answer"))
        self._channel.send({"do": "lead", "token": self._address.token, **self._hello})

    def _try_again(self, code: int) -> None:
        assert self._connecting is not None
        self._loop.forget(self._connecting)
        self._connecting.close()
        self._connecting = None
        self._error = errno.errorcode.get(code, f"error {code}")
        at_s = time.monotonic() + AGAIN_S
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

    def _on_message(self, word: Message) -> None:
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

    def _on_hung_up(self) -> None:
        was_greeted = self._is_greeted
        self.leave()
        if was_greeted:
            self._say({"is": "gone", "because": f"node {self._address.node} closed the connection"})
        else:
            self._fail("it closed the connection")
