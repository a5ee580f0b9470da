"""A thread of the server that keeps it small: it compacts the journal and removes what is old.

The control loop never waits for it, but for its commits, which are short. Whatever fails is logged
and tried again later; the pool works on with what it has.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog

from coddl.core.errors import UserError
from coddl.core.pool.forgetting import gone_nodes
from coddl.core.pool.records import JobsForgotten
from coddl.core.pool.state import Pool
from coddl.server.clock import Clock
from coddl.server.code_store import CodeStore
from coddl.server.collector import undisturbed
from coddl.server.compaction import Compactor
from coddl.server.journal import Journal
from coddl.server.loop import Events, LoopRequest, Reply, RequestDone
from coddl.server.metrics import ServerMetrics
from coddl.server.retention import Collected, Retention, collect, job_of

REST_S: Final = 0.001  # between steps of a pass, for others to go on
RETRY_S: Final = 60.0  # after a pass that failed
COLLECT_EVERY_S: Final = 3_600.0
ANSWERS_KEPT_S: Final = 86_400.0
LOOK_S: Final = 0.05

log = structlog.get_logger(__name__)


class UpkeepHost(Protocol):
    """The server, as its upkeep sees it."""

    @property
    def pool(self) -> Pool:
        """The pool as the journal has it; not to be changed."""

    @property
    def journal(self) -> Journal: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def metrics(self) -> ServerMetrics: ...

    @property
    def archives(self) -> CodeStore: ...


class ServerUpkeep(Protocol):
    """Background work that bounds a server's memory and disk use."""

    def start(self) -> None:
        """Begin."""

    def wake(self) -> None:
        """Request a pass soon."""

    def close(self) -> None:
        """End; a pass that is not done is left."""


class _Over(Exception):
    """The server ends; what was begun can be begun again."""


@dataclass(frozen=True, slots=True)
class UpkeepFolders:
    """Where files of jobs are."""

    logs: Path
    metrics: Path


class Upkeep:
    """Owns the thread. `put` hands a request to the control loop, from any thread."""

    def __init__(
        self,
        host: UpkeepHost,
        folders: UpkeepFolders,
        rules: Retention,
        put: Callable[[LoopRequest], None],
    ) -> None:
        self._host, self._folders, self._rules, self._put = host, folders, rules, put
        self._compactor = Compactor(
            host.journal.store,
            self._forget,
            self._rest,
            keep_jobs=rules.jobs,
            keep_events_s=rules.events_s,
        )
        self._is_wanted, self._is_over = threading.Event(), threading.Event()
        self._retry_at_s = 0.0
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Request a pass soon, unless one has just failed."""
        if time.monotonic() >= self._retry_at_s:
            self._is_wanted.set()

    def close(self) -> None:
        """End; a pass that is not done is left."""
        self._is_over.set()
        self._is_wanted.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        collect_at_s = time.monotonic()
        with suppress(_Over):
            while True:
                if self._is_wanted.wait(max(0.0, collect_at_s - time.monotonic())):
                    self._is_wanted.clear()
                    self._attempt("journal_compaction_failed", self._compact)
                if time.monotonic() >= collect_at_s:
                    collect_at_s = time.monotonic() + COLLECT_EVERY_S
                    self._attempt("retention_failed", self.collect)

    def _attempt(self, failed: str, do: Callable[[], None]) -> None:
        if self._is_over.is_set():
            raise _Over
        try:
            do()
        except _Over:
            raise
        except UserError as error:  # a full disk, most of all
            self._retry_at_s = time.monotonic() + RETRY_S
            log.warning(failed, because=error.because)
        except Exception as error:
            self._retry_at_s = time.monotonic() + RETRY_S
            self._host.metrics.bugs.inc()
            log.error(failed, error=repr(error), exc_info=error)

    def _compact(self) -> None:
        began_s = time.monotonic()
        with undisturbed():
            done = self._compactor.run(self._host.clock.wall_s())
        self._host.journal.note_snapshot(done.seq)
        self._host.metrics.retention.compaction_seconds.observe(time.monotonic() - began_s)
        if done.forgotten:
            self._tell("jobs", done.forgotten)
        if done.removed:
            self._tell("events", done.removed)

    def collect(self) -> None:
        """Remove files, nodes and stored answers that are old enough."""
        host, rules, now_s = self._host, self._rules, time.time()
        host.journal.forget_answers(host.clock.wall_s() - ANSWERS_KEPT_S)
        self._ask(lambda pool: tuple(gone_nodes(pool, host.clock.wall_s(), rules.nodes_s)))
        first_unknown = host.pool.next_job  # jobs from there on may come meanwhile
        known = set(list(host.pool.jobs))

        def is_needed(name: str) -> bool:
            number = job_of(name)
            return number is None or number in known or number >= first_unknown

        folders = self._folders
        for what, folder, age_s, most_bytes in (
            ("logs", folders.logs, rules.logs_s, rules.logs_bytes),
            ("metrics", folders.metrics, rules.metrics_s, rules.metrics_bytes),
        ):
            found = collect(folder, is_needed, age_s, most_bytes, now_s=now_s)
            self._note_files(what, found)
            self._rest()
        used = {job.spec.launch.code for job in list(host.pool.jobs.values())}
        code = (rules.code_s, rules.code_bytes)
        self._note_files("code", host.archives.collect(used, *code, now_s=now_s))

    def _note_files(self, what: str, found: Collected) -> None:
        self._host.metrics.retention.note_kept(what, found.left_files, found.left_bytes)
        if found.files:
            self._tell(what, found.files, found.size_bytes)

    def _tell(self, what: str, count: int, size_bytes: int = 0) -> None:
        self._host.metrics.retention.removed.labels(what).inc(count)
        more = {"bytes": size_bytes} if size_bytes else {}
        log.info("retention_removed", what=what, count=count, **more)

    def _forget(self, jobs: Sequence[int]) -> None:
        """Remove jobs that are in the history from the control loop's memory."""
        self._ask(lambda _pool: (JobsForgotten(tuple(jobs)),))

    def _ask(self, events: Events) -> None:
        """Submit events and wait until they are in the journal; raises if they are refused."""
        replies: list[Reply] = []
        self._put(LoopRequest(events, replies.append))
        while not replies:
            if self._is_over.wait(LOOK_S):
                raise _Over
        match replies[0]:
            case RequestDone():
                return
            case UserError() as error:
                raise error
            case bug:
                raise bug.error

    def _rest(self) -> None:
        if self._is_over.wait(REST_S):
            raise _Over
