"""A node's side of the jobs that run on it: one thread that hosts stations and hears their leads.

    agent ── Outposts (thread, loop, TCP listener)
               ├─ Nursery           warm interpreters, forked once per job
               └─ Outpost per job   its Station (zygote, workers, images) and the lead's connection

A lead says `lead` with the node's token; ADR 0007 has the messages. Workers outlive their lead's
connection: the next lead, with a higher attempt, finds them.
"""

import contextlib
import hmac
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Final

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor import jobdir
from coddl.runtime.supervisor.loop import Channel, Loop
from coddl.runtime.supervisor.nursery import Nursery
from coddl.runtime.supervisor.outpost import Ground, Outpost
from coddl.runtime.supervisor.remote import keep_alive
from coddl.runtime.supervisor.seats import Holding, Landlord
from coddl.runtime.wire import Lines, Message

ORPHAN_S: Final = 300.0  # how long workers live without a lead
HOME_WAIT_S: Final = 30.0  # how long a lead waits for its job to be known here
HELLO_WAIT_S: Final = 5.0  # how long a connection may be silent before it says who it is
HELLO_BYTES_MAX: Final = 4 << 10  # of whoever has not said who it is
REQUEST_BYTES_MAX: Final = 4 << 20  # of a lead
STRANGERS_MAX: Final = 64  # connections that have not said who they are; the oldest make way
GONE_WAIT_S: Final = 5.0  # how long `close` waits for killed workers


class _Visitor:
    """A connection: first a stranger's, then one that waits for its job, then a lead's."""

    def __init__(self) -> None:
        self.channel: Channel
        self.lines = Lines(HELLO_BYTES_MAX)
        self.job = ""
        self.attempt = 0
        self.adopts = False
        self.outpost: Outpost | None = None
        self.until_s = 0.0  # a lead that waits: how long it may


class Outposts:
    """Listens for leads from the moment it is made; serves them from `start` to `close`."""

    def __init__(
        self,
        name: str,
        token: str,
        landlord: Landlord,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        orphan_s: float = ORPHAN_S,
    ) -> None:
        """`name` is this agent's own on this machine: it names its jobs' images in memory, and
        those that an earlier process of that name has left there are removed.

        `host` is an address of this node: leads, workers and stores of other nodes connect to it.
        Raises OSError if it can't be listened on.
        """
        self._token = token
        self._landlord = landlord
        self._loop = Loop()
        self._nursery = Nursery(self._loop, landlord.on_warm)
        self._ground = Ground(
            self._loop,
            name,
            host,
            landlord,
            self._nursery,
            is_free=lambda slot: slot not in self._held(),
            on_change=self._on_change,
            orphan_s=orphan_s,
        )
        self._outposts: dict[str, Outpost] = {}
        self._ending: list[Outpost] = []  # whose workers are being killed
        self._attempts: dict[str, int] = {}  # the newest of each job
        self._visitors: list[_Visitor] = []  # who have not come to their outpost yet
        self._reported: Mapping[int, Holding] = {}
        self._is_changing = self._is_closing = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family)
        self._listener.setblocking(False)
        self._port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="outposts", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Where leads connect to: host and port."""
        return self._ground.host, self._port

    @property
    def is_alive(self) -> bool:
        """Tell whether the thread serves."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Serve in a thread of its own."""
        self._thread.start()

    def warm(self, python: str, env: Mapping[str, str]) -> None:
        """Have an interpreter ready before a job asks for it; `on_warm` follows."""
        self._loop.post(lambda: self._nursery.warm(python, env))

    def look_again(self) -> None:
        """Ask the landlord again about what waits for a home or a seat, then tell the holding."""
        self._loop.post(lambda: self._settle(always=True))

    def kill(self, job: str) -> None:
        """Kill all workers of a job here and hang up on its lead. From any thread."""
        self._loop.post(lambda: self._kill(job))

    def kill_slot(self, slot: int) -> None:
        """Kill whatever lives on a slot. From any thread."""
        self._loop.post(lambda: self._kill_slot(slot))

    def close(self) -> None:
        """Kill every worker, end the thread; returns when nothing of it runs any more."""
        self._loop.post(self._begin_closing)
        if self._thread.ident is None:
            self._listener.close()
            self._loop.close()
        else:
            self._thread.join()

    # The thread.

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._loop.close)
            stack.callback(self._listener.close)
            stack.callback(self._nursery.close)
            stack.callback(self._close_all)
            jobdir.drop_stashes(self._ground.name)
            stack.callback(jobdir.drop_stashes, self._ground.name)
            self._loop.watch(self._listener, self._accept)
            while not (self._is_closing and not self._ending):
                self._loop.turn()

    def _begin_closing(self) -> None:
        self._is_closing = True
        self._loop.forget(self._listener)
        for job in list(self._outposts):
            self._kill(job)
        at_s = time.monotonic() + GONE_WAIT_S
        self._loop.alarm("closing", at_s, self._close_all)

    def _close_all(self) -> None:
        for outpost in self._all():
            outpost.close()
        self._outposts.clear()
        self._ending.clear()
        for visitor in self._visitors:
            visitor.channel.close()

    def _all(self) -> Iterator[Outpost]:
        yield from [*self._outposts.values(), *self._ending]

    def _held(self) -> dict[int, Holding]:
        held: dict[int, Holding] = {}
        for outpost in self._all():
            held |= outpost.held
        return held

    def _kill(self, job: str) -> None:
        if (outpost := self._outposts.pop(job, None)) is not None:
            self._ending.append(outpost)
            outpost.end(hang_up=True)

    def _kill_slot(self, slot: int) -> None:
        for outpost in self._all():
            outpost.kill_slot(slot)

    def _on_change(self) -> None:
        """See to what a change brings about, but not in the middle of it."""
        if not self._is_changing:
            self._is_changing = True
            self._loop.post(self._settle)

    def _settle(self, *, always: bool = False) -> None:
        self._is_changing = False
        for outpost in [each for each in self._all() if each.is_gone]:
            outpost.close()
            if outpost in self._ending:
                self._ending.remove(outpost)
            else:
                del self._outposts[outpost.job]
        for visitor in list(self._visitors):
            if visitor.job:
                self._admit(visitor)
        for outpost in self._all():
            outpost.look_again()
        held = self._held()
        if always or held != self._reported:
            self._reported = held
            self._landlord.on_holding(held)

    # Leads.

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            peer, _ = self._listener.accept()
            keep_alive(peer)
            visitor = _Visitor()
            visitor.channel = Channel(
                self._loop,
                peer,
                lambda message: self._on_message(visitor, message),
                lambda: self._on_end(visitor),
                lines=visitor.lines,
            )
            self._visitors.append(visitor)
            at_s = time.monotonic() + HELLO_WAIT_S
            self._loop.alarm(("hello", visitor), at_s, lambda: self._drop(visitor))
            strangers = [each for each in self._visitors if not each.job]
            for each in strangers[:-STRANGERS_MAX]:  # descriptors are for those we know
                self._drop(each)

    def _on_message(self, visitor: _Visitor, message: Message) -> None:
        if visitor.outpost is not None:
            visitor.outpost.take(visitor.channel, message)
        elif not visitor.job:
            self._on_hello(visitor, message)

    def _on_hello(self, visitor: _Visitor, hello: Message) -> None:
        self._loop.silence(("hello", visitor))
        match hello:
            case {"token": str(token), "job": str(job), "attempt": int(attempt)} if (
                hmac.compare_digest(token.encode(errors="replace"), self._token.encode())
                and jobdir.NAME.fullmatch(job)
            ):
                visitor.job, visitor.attempt = job, attempt
                visitor.lines.line_bytes_max = REQUEST_BYTES_MAX
                visitor.adopts = hello.get("adopt") is True
                visitor.until_s = time.monotonic() + HOME_WAIT_S
                self._loop.alarm(("home", visitor), visitor.until_s, lambda: self._admit(visitor))
                self._admit(visitor)
            case _:
                self._refuse(visitor, "token", _wrong_token())

    def _admit(self, visitor: _Visitor) -> None:
        """Bring a lead to its job's outpost: the one that stands, or one of its own."""
        job, attempt = visitor.job, visitor.attempt
        if not visitor.channel.is_open or visitor not in self._visitors:
            return
        if attempt < (newest := self._attempts.get(job, 0)):
            self._refuse(visitor, "attempt", _stale(job, attempt, newest))
            return
        home = self._landlord.home_of(job)
        if home is None:
            if time.monotonic() >= visitor.until_s:
                self._refuse(visitor, "home", _homeless(job))
            return
        self._attempts[job] = attempt
        outpost = self._outposts.get(job)
        if outpost is not None and (
            outpost.is_ending or (attempt > outpost.attempt and not visitor.adopts)
        ):
            self._kill(job)
            outpost = None
        if outpost is None:
            try:
                outpost = self._outposts[job] = Outpost(self._ground, job, attempt, home)
            except (OSError, TrainingError) as error:
                self._refuse(visitor, "home", _unfit(job, error))
                return
        self._visitors.remove(visitor)
        self._loop.silence(("home", visitor))
        visitor.outpost = outpost
        outpost.follow(visitor.channel, attempt)

    def _refuse(self, visitor: _Visitor, why: str, error: TrainingError) -> None:
        visitor.channel.send({"is": "refused", "why": why, **error.parts()})
        self._drop(visitor)

    def _drop(self, visitor: _Visitor) -> None:
        visitor.channel.close()
        self._on_end(visitor)

    def _on_end(self, visitor: _Visitor) -> None:
        for name in ("hello", "home"):
            self._loop.silence((name, visitor))
        if visitor.outpost is not None:
            visitor.outpost.leave(visitor.channel)
        elif visitor in self._visitors:
            self._visitors.remove(visitor)


def _wrong_token() -> TrainingError:
    return TrainingError(
        "this node does not take orders from there",
        "the token is not its own; it has a new one each time its agent starts",
        "the address that the server names now",
    )


def _stale(job: str, attempt: int, newest: int) -> TrainingError:
    return TrainingError(
        f"attempt {attempt} of job {job} is over",
        f"attempt {newest} leads it now",
        "nothing: the newer attempt goes on",
    )


def _unfit(job: str, error: OSError | TrainingError) -> TrainingError:
    return TrainingError(
        f"job {job} can't run on this node",
        error.because if isinstance(error, TrainingError) else f"{error}",
        "another node, or the same in a while",
    )


def _homeless(job: str) -> TrainingError:
    return TrainingError(
        f"job {job} can't run on this node",
        f"its agent did not hear of it within {HOME_WAIT_S:.0f} s",
        "coddl nodes, which shows whether the agent is connected",
    )
