"""Agent and server: JSON messages over one WebSocket at `/api/v1/agent`; the agent dials.

| from the agent | when | answer |
|---|---|---|
| `hello` | first; again after every silence | `welcome`, then `orders`; or `refused` and a close |
| | | or `use_store` and a close; the agent says hello anew when it can use that store |
| `beat` | every `beat_every_s` | `renewed`, with the same number |
| `holding` | after every change, for every `orders`, and with every beat | none |
| `report` | a fact that must not be lost; again until it is acknowledged | `ack` |
| `progress`, `logs` | now and then; may be lost | none |
| `leaving` | before it stops | none; jobs are placed elsewhere from here on |
| `leaving`, `within_s` | its machine goes away in that time | `orders` that know it: jobs move, |
| | again after every silence | and the agent works on meanwhile |
| `left` | after all processes of jobs have ended | a close: the node needs no lease any more |

The server sends `orders` whenever they change. Authentication is the HTTP request's: a bearer token
where the server wants one.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from coddl.api.jobsfolder import JobsFolder
from coddl.core.pool.orders import Orders
from coddl.core.pool.records import (
    Device,
    LossMeasured,
    RunChanged,
    RunEnded,
    RunFact,
    RunId,
    RunPrepared,
    RunProfiled,
    RunProgressed,
    RunStalled,
    RunStepped,
    RunUnsaved,
    SliceDidNotFit,
    SlotTurns,
)
from coddl.core.speed.inspection import LinkClass, LinkSpeed

PROTOCOL: Final = 7


class Message(msgspec.Struct, frozen=True, tag_field="is", tag=str.lower, kw_only=True):
    """Anything that is said on the wire."""


class Hello(Message, frozen=True):
    """An agent presents itself."""

    protocol: int
    version: str
    node: str
    boot: str  # names this process; another one: all that ran under the old is gone
    host: str  # by which other nodes reach its workers
    port: int  # of its job host server
    peer_token: str  # what a lead must know to use them; never logged, never stored
    devices: tuple[Device, ...]
    jobs: JobsFolder  # as it was found; the server says whose it is to be
    checkpoints: str = ""  # the URI that it keeps them at, which it can read and write
    python: str = ""  # its version: the interpreter of jobs that name none; empty: an older agent
    torch: str = ""  # the version installed there; empty: none
    parking_bytes: int = 0  # host memory that workers without their GPU may use
    links: dict[LinkClass, LinkSpeed] = {}  # as `coddl inspect` has measured them


class GpuUse(msgspec.Struct, frozen=True, array_like=True):
    """How much a GPU is used, by any process."""

    busy: float  # 0..1: the part of the last moments in which it computed
    memory_bytes: int


class Beat(Message, frozen=True):
    number: int
    gpus: dict[int, GpuUse] = {}  # by index, as far as the driver reports it; none of CPU slots


class Holding(Message, frozen=True):
    """Which slots have live processes, knowing that version of the orders; and which runs it has.

    A run is listed from the orders that name it until its end was acknowledged: one that is missing
    is over, even if the message about its end was lost. None: an older agent, which sends no list.
    Parked workers hold no slot, nor do those that wait for their turn; runs that must
    leave are listed as long as they are there.
    """

    version: int
    slots: dict[int, RunId]
    runs: frozenset[RunId] | None = None
    others: dict[
        int, str
    ] = {}  # by index: other users' processes on a GPU that has no process of a job
    parked: frozenset[int] | None = None  # jobs whose workers are parked; None: not reported
    turns: dict[int, SlotTurns] = {}  # by slot on which runs take turns: how that goes


class Report(Message, frozen=True):
    """One fact of a run; numbers grow within a boot and are never used twice."""

    number: int
    at_s: float  # wall clock of the agent, for people
    prepared: RunPrepared | None = None  # one of these is given
    did_not_fit: SliceDidNotFit | None = None
    profiled: RunProfiled | None = None
    loss: LossMeasured | None = None
    stepped: RunStepped | None = None
    changed: RunChanged | None = None
    stalled: RunStalled | None = None
    unsaved: RunUnsaved | None = None
    ended: RunEnded | None = None

    @property
    def fact(self) -> RunFact:
        """Return the fact that the report carries."""
        fact = self.prepared or self.did_not_fit or self.stepped or self.changed or self.unsaved
        told = fact or self.profiled or self.loss or self.stalled or self.ended
        assert told is not None
        return told


class RunProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How a run is doing: what decisions need, and what people like to see."""

    progressed: RunProgressed
    steps: int | None = None
    samples_per_s: float = 0.0
    still_s: float = 0.0  # for which no step was made; 0: steps come as they should
    saved_step: int | None = None  # of the newest durable checkpoint
    metrics: Mapping[str, float] = {}
    not_finite: tuple[str, ...] = ()  # metrics that were NaN or infinite when last logged


class Progress(Message, frozen=True):
    runs: tuple[RunProgress, ...]


class LogLine(msgspec.Struct, frozen=True, array_like=True):
    """A line that a worker printed, or that the agent says about the job (stream "coddl")."""

    at_s: float
    attempt: int
    worker: int
    rank: int | None
    stream: str  # stdout, stderr, coddl
    text: str


class Leaving(Message, frozen=True):
    """The agent is about to stop: it takes nothing new."""

    within_s: float | None = None  # its machine goes away by then, and it works on; None: it stops


class Left(Message, frozen=True):
    """The agent has ended all processes of jobs, and starts none: its lease is given up."""


class Logs(Message, frozen=True):
    job: int
    lines: tuple[LogLine, ...]


class Welcome(Message, frozen=True):
    version: str
    pool: str  # its id: folders of jobs are marked with it
    lease_s: float
    beat_every_s: float


class UseStore(Message, frozen=True, tag="use_store"):
    """The pool keeps checkpoints at another URI than the agent said, or in jobs folders: empty."""

    checkpoints: str


class Renewed(Message, frozen=True):
    number: int  # of the beat; the lease runs from when that was sent


class Ack(Message, frozen=True):
    number: int  # this report and all before are safe


class Peer(msgspec.Struct, frozen=True):
    """How a lead reaches the job host server of a node."""

    node: str
    host: str
    port: int
    token: str


class NewOrders(Message, frozen=True, tag="orders"):
    orders: Orders
    peers: tuple[Peer, ...]  # of the nodes where jobs it leads have slots, itself included


class Refused(Message, frozen=True):
    what: str
    because: str
    try_: str


FromAgent = Hello | Beat | Holding | Report | Progress | Logs | Leaving | Left
FromServer = Welcome | UseStore | Renewed | Ack | NewOrders | Refused

_encoder = msgspec.json.Encoder()
_from_agent = msgspec.json.Decoder(FromAgent)
_from_server = msgspec.json.Decoder(FromServer)


def encoded(message: FromAgent | FromServer) -> bytes:
    """Return the bytes that carry a message."""
    return _encoder.encode(message)


def from_agent(data: bytes | str) -> FromAgent:
    """Read what an agent said; raises msgspec.ValidationError at anything else."""
    message: FromAgent = _from_agent.decode(data)
    return message


def from_server(data: bytes | str) -> FromServer:
    """Read what the server said; raises msgspec.ValidationError at anything else."""
    message: FromServer = _from_server.decode(data)
    return message
