"""What `coddl top` shows, as the server answers it: polled, and at once when something happens.

Threads of their own ask; they end with the process. Nothing here knows the screen.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from coddl.cli.jobs import jobs_of
from coddl.cli.poolview import Answer
from coddl.core.errors import UserError

if TYPE_CHECKING:
    from coddl.api.client import Client

Connect = Callable[[], "Client"]
Look = TypeVar("Look")

WINDOW_S: Final = 600.0  # of the chart, by the viewer's clock
DECISIONS_READ_FIRST: Final = 1_000  # most change nothing
DECISIONS_READ: Final = 100
DECISIONS_KEPT: Final = 200
ENDED_SHOWN: Final = 200
LOG_LINES: Final = 200
# Between two looks: a large pool takes longer to answer, and is asked less often.
REST_LEAST_S: Final = 1.0
REST_MOST_S: Final = 15.0
REST_FACTOR: Final = 10.0  # times what the last look took
GAP_LEAST_S: Final = 0.3  # however much happens
GAP_FACTOR: Final = 3.0  # times what the last look took
RETRY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class PoolLook:
    """The pool at one moment."""

    pool: Answer
    nodes: Sequence[Answer]
    jobs: Sequence[Answer]
    timeline: Answer
    decisions: Sequence[Answer]  # that changed something or failed, the newest first
    may_change: bool  # the token is for more than reading

    @property
    def at_s(self) -> float:
        """The moment, by the server's clock."""
        return float(self.timeline["until_s"])


@dataclass(frozen=True, slots=True)
class JobLook:
    """A job at one moment."""

    at_s: float
    explained: Answer
    log: Sequence[Answer]


class PoolReader:
    """Reads a pool. What changes seldom is asked when it may have changed."""

    def __init__(self) -> None:
        self.wants_ended = False
        self.is_decided = True  # since the last time that decisions were read
        self._client: Client | None = None
        self._may_change = True
        self._decisions: Sequence[Answer] = ()

    def __call__(self, client: "Client") -> PoolLook:
        if client is not self._client:
            self._may_change = client.get("/access")["access"] == "full"
            self._client, self.is_decided = client, True
            self._decisions = ()
        if self.is_decided:
            self.is_decided = False
            self._decisions = newest_decisions(client, self._decisions)
        pool = client.get("/pool")
        # Clocks may differ: all times that are shown are the pool's.
        since_s = pool["now_s"] - WINDOW_S * pool["time_scale"]
        return PoolLook(
            pool,
            client.get("/nodes")["items"],
            shown_jobs(client, self.wants_ended),
            client.get("/timeline", since_s=since_s),
            self._decisions,
            self._may_change,
        )


def newest_decisions(client: "Client", known: Sequence[Answer]) -> Sequence[Answer]:
    """Return the decisions that changed something or failed, the newest first; some are known."""
    limit = DECISIONS_READ if known else DECISIONS_READ_FIRST
    read = client.get("/decisions", limit=limit)["items"]
    found = [each for each in read if each["changes"] or each["trouble"]]
    older = [each for each in known if each["number"] < read[-1]["number"]] if read else known
    return [*found, *older][:DECISIONS_KEPT]


def shown_jobs(client: "Client", wants_ended: bool) -> Sequence[Answer]:
    """Return the active jobs, and the newest of those that have ended if they are wanted."""
    found = jobs_of(client)
    if wants_ended:
        newest = client.get("/jobs", limit=ENDED_SHOWN)["items"]
        by_id = {job["id"]: job for job in [*newest, *found]}
        found = [by_id[number] for number in sorted(by_id)]
    return found


def read_job(client: "Client", job: int) -> JobLook:
    """Return why a job is where it is, and the last lines that it has printed."""
    told = client.get(f"/jobs/{job}/explain")
    return JobLook(time.time(), told, client.get(f"/jobs/{job}/logs", tail=LOG_LINES)["items"])


class Poller(Generic[Look]):
    """Polls the server in a thread, and posts the answer or the error.

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
            self._is_over.wait(max(GAP_LEAST_S, GAP_FACTOR * took_s))
            self._is_wanted.wait(min(max(REST_LEAST_S, REST_FACTOR * took_s), REST_MOST_S))

    def _say(self, found: Look | UserError) -> None:
        if not self._is_over.is_set():
            self._tell(found)


class EventFollower:
    """Posts each event of the pool as it happens, in a thread."""

    def __init__(self, connect: Connect, tell: Callable[[Answer], None]) -> None:
        self._connect = connect
        self._tell = tell
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
            except UserError:  # a poller reports the reason
                self._is_over.wait(RETRY_S)

    def _follow(self, client: "Client") -> None:
        for said in client.watch("/events", limit=1, watch=True):
            if self._is_over.is_set():
                return
            self._tell(said.data)
