"""What `coddl top` shows, as the server answers it: polled, and at once when something happens.

Threads of their own ask; they end with the process. Nothing here knows the screen.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from coddl.cli.following import last_events
from coddl.cli.jobs import jobs_of
from coddl.cli.poolview import Answer
from coddl.core.errors import UserError

if TYPE_CHECKING:
    from coddl.api.client import Client

Connect = Callable[[], "Client"]
Look = TypeVar("Look")

WINDOW_S: Final = 360.0  # of the chart
EVENTS_READ: Final = 200  # at the start
ENDED_SHOWN: Final = 200
LOG_LINES: Final = 200
# Between two looks: a large pool takes longer to answer, and is asked less often.
REST_LEAST_S, REST_MOST_S, REST_FACTOR = 1.0, 15.0, 10.0
GAP_S: Final = 0.3  # the least, however much happens
RETRY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class PoolLook:
    """The pool at one moment. `spans`: who had how many GPUs before; read once per connection."""

    at_s: float
    pool: Answer
    nodes: Sequence[Answer]
    jobs: Sequence[Answer]
    may_change: bool
    spans: Sequence[Answer] | None = None


@dataclass(frozen=True, slots=True)
class JobLook:
    """A job at one moment."""

    at_s: float
    explained: Answer
    log: Sequence[Answer]


class PoolReader:
    """Reads a pool. What stays the same while a connection lasts is asked once."""

    def __init__(self) -> None:
        self.wants_ended = False
        self._client: Client | None = None
        self._may_change = True

    def __call__(self, client: "Client") -> PoolLook:
        spans = None
        if client is not self._client:
            self._may_change = may_change(client)
            spans = spans_of(client, time.time() - WINDOW_S)
        pool, nodes = client.get("/pool"), client.get("/nodes")["items"]
        jobs = shown_jobs(client, self.wants_ended)
        self._client = client
        return PoolLook(time.time(), pool, nodes, jobs, self._may_change, spans)


def shown_jobs(client: "Client", wants_ended: bool) -> Sequence[Answer]:
    """Give the active jobs, and the newest of those that have ended if they are wanted."""
    found = jobs_of(client, all_=False)
    if wants_ended:
        newest = client.get("/jobs", limit=ENDED_SHOWN)["items"]
        by_id = {job["id"]: job for job in [*newest, *found]}
        found = [by_id[number] for number in sorted(by_id)]
    return found


def read_job(client: "Client", job: int) -> JobLook:
    """Give why a job is where it is, and the last lines that it has printed."""
    told = client.get(f"/jobs/{job}/explain")
    return JobLook(time.time(), told, client.get(f"/jobs/{job}/logs", tail=LOG_LINES)["items"])


def may_change(client: "Client") -> bool:
    """Tell whether the token may change something; servers that don't say have no other tokens."""
    access = _if_known(client, "/access")
    return access is None or access["access"] == "full"


def spans_of(client: "Client", since_s: float) -> Sequence[Answer] | None:
    """Give which job held how many GPUs when; None: the server does not tell."""
    timeline = _if_known(client, "/timeline", since_s=since_s)
    return None if timeline is None else list(timeline["spans"])


def _if_known(client: "Client", path: str, **parameters: float) -> Answer | None:
    from coddl.api.client import RequestRefused

    try:
        found: Answer = client.get(path, **parameters)
    except RequestRefused as refused:
        if refused.status != HTTPStatus.NOT_FOUND:
            raise
        return None
    return found


class Poller(Generic[Look]):
    """Reads again and again, in a thread, and tells what it has found, or why it has not.

    After an error it connects anew: the server may be back at another address.
    """

    def __init__(
        self,
        connect: Connect,
        read: Callable[["Client"], Look],
        tell: Callable[[Look | UserError], None],
    ) -> None:
        self._connect = connect
        self._read = read
        self._tell = tell
        self._is_wanted = threading.Event()
        self._is_over = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def poke(self) -> None:
        """Read soon."""
        self._is_wanted.set()

    def stop(self) -> None:
        self._is_over.set()
        self._is_wanted.set()

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                with self._connect() as client:
                    self._poll(client)
            except UserError as error:
                self._say(error)
                self._is_over.wait(RETRY_S)

    def _poll(self, client: "Client") -> None:
        while not self._is_over.is_set():
            begin_s = time.monotonic()
            self._is_wanted.clear()
            self._say(self._read(client))
            took_s = time.monotonic() - begin_s
            self._is_over.wait(max(GAP_S, took_s))
            self._is_wanted.wait(min(max(REST_LEAST_S, REST_FACTOR * took_s), REST_MOST_S))

    def _say(self, found: Look | UserError) -> None:
        if not self._is_over.is_set():
            self._tell(found)


class EventFollower:
    """Tells the latest events of the pool, and those that come, in a thread."""

    def __init__(self, connect: Connect, tell: Callable[[Sequence[Answer]], None]) -> None:
        self._connect = connect
        self._tell = tell
        self._after: int | None = None
        self._is_over = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                with self._connect() as client:
                    self._follow(client)
            except UserError:  # the poller tells why
                self._is_over.wait(RETRY_S)

    def _follow(self, client: "Client") -> None:
        if self._after is None:
            found, self._after = last_events(client, None, EVENTS_READ)
            self._tell(found)
        for said in client.watch("/events", after=self._after, watch=True):
            if self._is_over.is_set():
                return
            self._after = int(said.data["number"])
            self._tell([said.data])
