"""Inspect the link between nodes: one listens, the others join it, a worker on each exchanges.

JSON lines over TCP. A node says `join` with the code that the listening one has printed; then it
hands requests to its worker, and the answers back, until `end` tells it what was found.
"""

import contextlib
import hmac
import math
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from coddl.agent.inspection.node_inspection import Tell, request_of, swept
from coddl.agent.inspection.sweeps import LinkSweep, SweepExtent, cluster_backend
from coddl.agent.inspection.workers import ANSWER_S, InspectionWorkers, until
from coddl.core.errors import UserError
from coddl.core.speed.inspection import LinkSpeed
from coddl.runtime.supervisor.loop import Channel
from coddl.runtime.wire import Lines, Message

NODES_S: Final = 600.0  # that nodes may take to join
CONNECT_S: Final = 60.0  # that the listening node may take to listen
RETRY_S: Final = 0.5
LINE_BYTES_MAX: Final = 1 << 16
GUESSES_MAX: Final = 100  # wrong codes
GUESTS_MAX: Final = 64  # that have connected and not said their code yet
RELAYED: Final = ("exchange", "send")
ANYWHERE: Final = ("0.0.0.0", "::", "")


@dataclass(frozen=True, slots=True)
class _JoinedNode:
    """A node that has joined; rank 0 is the listening one, which is not among them."""

    name: str
    has_gpu: bool
    channel: Channel


class ClusterListener:
    """The node that others join, and that has all of them measure."""

    def __init__(
        self, workers: InspectionWorkers, listener: socket.socket, code: str, nodes: int, tell: Tell
    ) -> None:
        self._workers = workers
        self._listener = listener
        self._code = code
        self._nodes = nodes
        self._tell = tell
        self._joined: list[_JoinedNode] = []
        self._guests: list[Channel] = []  # whose code is not known yet
        self._guesses = 0  # that were wrong
        self._answers: dict[int, Message] = {}  # to what was asked last, by rank
        self._host = listener.getsockname()[0]
        self._gone = ""  # a node that has left too early
        listener.setblocking(False)
        workers.loop.watch(listener, self._accept)

    @property
    def _is_complete(self) -> bool:
        return len(self._joined) == self._nodes - 1

    def measure(
        self, extent: SweepExtent, *, has_gpu: bool, calls_s: Mapping[str, float]
    ) -> LinkSpeed:
        """Wait for all nodes, measure, and tell them what was found.

        `calls_s` is what a collective costs by itself, by backend, as far as that is known.
        """
        loop = self._workers.loop
        if not until(loop, lambda: self._is_complete or bool(self._gone), NODES_S):
            because = f"{1 + len(self._joined)} of {self._nodes} nodes came in {NODES_S:.0f} s"
            raise UserError("the link between nodes can't be measured", because, "--nodes N")
        try:
            self._check()
            backend, on = cluster_backend([has_gpu, *(each.has_gpu for each in self._joined)])
            sweep = LinkSweep("cluster", tuple(range(self._nodes)), backend, on)
            store = self._workers.store_at(self._host)

            def exchange(do: str, count: int) -> list[list[float]]:
                requests = [
                    request_of(do, sweep, extent, store, rank=rank, world=count)
                    for rank in range(count)
                ]
                return self._exchanged(requests)

            link = swept(sweep, extent, exchange, self._tell, call_s=calls_s.get(backend))
        except UserError as error:
            for each in self._joined:
                each.channel.send({"do": "end", "failed": error.parts()})
            raise
        for each in self._joined:
            each.channel.send({"do": "end", "link": link.as_data()})
        return link

    def close(self) -> None:
        """Listen no more."""
        self._workers.loop.forget(self._listener)
        self._listener.close()
        for channel in [*self._guests, *(each.channel for each in self._joined)]:
            channel.close()

    def _exchanged(self, requests: Sequence[Message]) -> list[list[float]]:
        """Have the first nodes do something together; give their times, by rank.

        The first that fails ends it: those that wait for it would fail later, for lack of it.
        """
        answers: dict[int, Message] = {}
        count = len(requests[0]["sizes"])
        self._answers = answers
        for member, request in zip(self._joined, requests[1:], strict=False):
            member.channel.send(request)
        own = {**requests[0], "host": self._host}
        self._workers.send(0, own, lambda answer: answers.update({0: answer}))

        def is_over() -> bool:
            self._check()
            for rank, answer in answers.items():
                if _times_of(answer, count) is None:
                    name = self._joined[rank - 1].name if rank else "this node"
                    because = answer.get("because", "its answer is no list of times")
                    raise _cannot_exchange(f"{name}: {because}")
            return len(answers) == len(requests)

        if not until(self._workers.loop, is_over, ANSWER_S):
            raise _cannot_exchange(f"nodes have not answered for {ANSWER_S:.0f} s")
        return [_times_of(answers[rank], count) or [] for rank in range(len(requests))]

    def _check(self) -> None:
        self._workers.check()
        if self._gone:
            raise _cannot_exchange(self._gone)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            peer, _ = self._listener.accept()
            host = peer.getsockname()[0]

            def hear(message: Message) -> None:
                self._hear(channel, host, message)

            def lose() -> None:
                self._lose(channel)

            lines = Lines(LINE_BYTES_MAX)
            channel = Channel(self._workers.loop, peer, hear, lose, lines=lines)
            self._guests.append(channel)
            if len(self._guests) > GUESTS_MAX:
                self._guests.pop(0).close()

    def _hear(self, channel: Channel, host: str, message: Message) -> None:
        for rank, each in enumerate(self._joined, start=1):
            if each.channel is channel:
                self._answers[rank] = message
                return
        if message.get("do") != "join" or channel not in self._guests:
            return
        self._guests.remove(channel)
        is_right = hmac.compare_digest(str(message.get("code")).encode(), self._code.encode())
        self._guesses += not is_right
        because = ""
        if self._guesses > GUESSES_MAX:
            because = "the listening node has heard too many wrong codes; start it again"
        elif not is_right:
            because = "its --code is not the one that the listening node has printed"
        elif self._is_complete:
            because = f"all {self._nodes} nodes have joined already"
        if because:
            channel.send({"do": "end", "refused": because})
            channel.close()
            return
        if self._host in ANYWHERE:
            self._host = host  # by which that node has reached this one
        name = str(message.get("node"))[:64]
        self._joined.append(_JoinedNode(name, bool(message.get("gpu")), channel))
        self._tell(f"{name} has joined: {1 + len(self._joined)} of {self._nodes} nodes")

    def _lose(self, channel: Channel) -> None:
        if channel in self._guests:
            self._guests.remove(channel)
        for each in self._joined:
            if each.channel is channel and not self._gone:
                self._gone = f"{each.name} has left"


def join_cluster(
    workers: InspectionWorkers, at: tuple[str, int], code: str, *, node: str, has_gpu: bool
) -> LinkSpeed:
    """Take part in what a listening node measures; give what was found."""
    peer = _connected(at)
    host = peer.getsockname()[0]
    ends: list[dict[str, Any]] = []

    def hear(message: Message) -> None:
        if message.get("do") in RELAYED:
            workers.send(0, {**message, "host": host}, channel.send)
        elif message.get("do") == "end":
            ends.append(message)

    def lose() -> None:
        ends.append({"refused": "the listening node has hung up"})

    workers.wait_warm()
    channel = Channel(workers.loop, peer, hear, lose, lines=Lines(LINE_BYTES_MAX))
    channel.send({"do": "join", "code": code, "node": node, "gpu": has_gpu})

    def is_over() -> bool:
        workers.check()
        return bool(ends)

    if not until(workers.loop, is_over, NODES_S + 2 * ANSWER_S):
        lose()
    channel.close()
    return _link_of(ends[0], at)


def _times_of(answer: Message, count: int) -> list[float] | None:
    """Read what a node has answered, which may be anything; None if it is not one time per size."""
    try:
        times = [float(each) for each in answer["times"]]
    except (KeyError, TypeError, ValueError):
        return None
    is_whole = len(times) == count and all(0.0 < each < math.inf for each in times)
    return times if is_whole else None


def _link_of(end: Message, at: tuple[str, int]) -> LinkSpeed:
    if "failed" in end:
        raise UserError(*(str(end["failed"].get(key)) for key in ("what", "because", "try")))
    try:
        return LinkSpeed.from_data(end["link"])
    except (AttributeError, KeyError, TypeError, ValueError):
        because = str(end.get("refused", "it speaks another language"))
        raise UserError(
            f"this node can't join {at[0]}:{at[1]}",
            because,
            "the command that coddl inspect --listen prints there",
        ) from None


def _connected(at: tuple[str, int]) -> socket.socket:
    """Reach the listening node, which may still be on its way."""
    until_s = time.monotonic() + CONNECT_S
    while True:
        try:
            return socket.create_connection(at, timeout=CONNECT_S)
        except OSError as error:
            if time.monotonic() > until_s or isinstance(error, socket.gaierror):
                because = f"{at[0]}:{at[1]}: {error.strerror or error}"
                try_ = f"coddl inspect --listen {at[0]}:{at[1]} --nodes 2 there"
                raise UserError("the listening node is not reached", because, try_) from None
        time.sleep(RETRY_S)


def listening(host: str, port: int) -> socket.socket:
    """Listen at an address of this machine."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        because = f"{error.strerror or error}"
        try_ = "--listen with an address of this machine and a free port"
        raise UserError(f"--listen {host}:{port} can't be used", because, try_) from None
    listener.listen(64)
    return listener


def _cannot_exchange(because: str) -> UserError:
    try_ = "nodes of one network, with all ports open between them, as jobs need it"
    return UserError("the link between nodes can't be measured", because, try_)
