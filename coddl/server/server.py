"""The server: asyncio around the control loop. One task owns the loop; the others feed it.

Nothing is awaited between an event and the journal: all that has come is handled in one turn, in
this thread. So a reader of the pool sees what the journal has, never more.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import structlog

from coddl.api import rest, wire
from coddl.core.cluster import Cluster
from coddl.core.errors import UserError
from coddl.core.pool.admission import alive
from coddl.core.pool.decision import POOL_STABILITY
from coddl.core.pool.failed_decision import FailedDecision
from coddl.core.pool.job import JobState
from coddl.core.pool.nodes import NodeState
from coddl.core.pool.records import (
    Event,
    JobsForgotten,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    NodeReported,
    NodeSilent,
    PolicyChosen,
    RunEnded,
    RunReported,
    Woke,
)
from coddl.core.pool.state import Pool
from coddl.core.registry import BUILT_IN, Registry
from coddl.core.scheduler import Stability
from coddl.server import views
from coddl.server.agent_sessions import GOING_AWAY, LEASE_OVER, AgentSessions
from coddl.server.clock import Clock
from coddl.server.code_store import CodeStore
from coddl.server.decision_thread import DecisionThread, MadeDecision
from coddl.server.folding import JournalEntry
from coddl.server.history import JobHistory
from coddl.server.job_names import JobNames
from coddl.server.journal import Journal
from coddl.server.logs import LogStore, set_aside
from coddl.server.loop import (
    ControlLoop,
    Events,
    IdempotentRequest,
    LoopRequest,
    Reply,
    RequestBug,
    RequestDone,
    fact,
)
from coddl.server.metric_log import MetricLog
from coddl.server.metrics import ServerMetrics
from coddl.server.node_leases import NodeLeases
from coddl.server.node_warnings import NodeWarnings
from coddl.server.notifier import Notifier
from coddl.server.progress import LatestProgress
from coddl.server.replays import Replays
from coddl.server.retention import Retention
from coddl.server.upkeep import ServerUpkeep, Upkeep, UpkeepFolders
from coddl.server.warm_up import warm_up

BEATS_PER_LEASE: Final = 24
BEAT_EVERY_MAX_S: Final = 5.0
REST_S_MAX: Final = 10.0  # agents try to come back every 5 seconds, at least
RETRY_S: Final = 1.0  # between attempts to write down what must not be lost
# After a turn that takes longer, requests do not wait for conclusions, nor submits for a decision.
SWIFT_S: Final = 0.02
BREATH_S: Final = 0.005  # for answers to leave before conclusions are drawn

log = structlog.get_logger(__name__)


class InternalError(Exception):
    """A request met a bug; the log has its story."""


class Server:
    """A pool that is alive from `running` on; `create_app` shows it to the world."""

    def __init__(
        self,
        journal: Journal,
        folder: Path,
        clock: Clock,
        *,
        stability: Stability = POOL_STABILITY,
        site: Cluster | None = None,
        registry: Registry = BUILT_IN,
        lease_s: float = 120.0,
        checkpoints: str = "",
        replay: Sequence[str] = (),
        retention: Retention = Retention(),  # noqa: B008  # it is frozen
    ) -> None:
        """`replay` is the command that replays the journal; none: it can't be replayed."""
        self.journal = journal
        self.pool_id = journal.pool_id
        self.checkpoints = checkpoints  # the URI where jobs keep them; empty: the jobs folders
        self.clock = clock
        self.lease_s = lease_s
        self.beat_every_s = min(BEAT_EVERY_MAX_S, lease_s / BEATS_PER_LEASE)
        self.started_s = clock.wall_s()
        self.metrics = ServerMetrics()
        self.progress = LatestProgress()
        self.sessions = AgentSessions()
        self.archives = CodeStore(folder / "code")
        self.happened = Notifier()
        # Why the engine does not answer; None: it has not reported yet.
        self.engine_trouble: str | None = None
        self.engine_notes: list[str] = []  # why its nodes leave, or do not come
        self._node_warnings = NodeWarnings(site)
        self.is_closing = False
        self.failure: BaseException | None = None  # of the control loop: the end of all
        self.on_failure: Callable[[], None] = lambda: None
        self.site = site  # what the operator says of the nodes
        self._stability = stability
        self.registry = registry  # what policies and placements there are
        self._loop = ControlLoop(journal, self._stability, self, site, registry)
        self._leases = NodeLeases(lease_s)
        if self.pool.next_job == 1:
            for name in ("logs", "metrics"):
                set_aside(folder / name, folder / f"{name}-before-{self.pool_id}")
        self.logs = LogStore(folder / "logs")
        self.metric_log = MetricLog(folder / "metrics")
        self.replays = Replays(replay, folder)
        self._names = JobNames(self.pool)
        self.history = JobHistory(journal)
        self._printed: dict[int, Notifier] = {}
        folders = UpkeepFolders(folder / "logs", folder / "metrics")
        self.upkeep: ServerUpkeep = Upkeep(self, folders, retention, self._put_from_thread)
        self._queue: deque[LoopRequest] = deque()
        self._news = asyncio.Event()
        self._is_warm = False
        self._first = PolicyChosen(self.pool.policy, "", self.pool.placement)
        self._woken_for_s: float | None = None
        self._wake_at_s = self._loop.control.wake_at_s
        self._took_s = 0.0  # to draw conclusions, the last time
        self._decisions = DecisionThread()
        self._rest_until_s = 0.0
        self._turn_at_s: float | None = None  # when something is left to do
        self._await_agents()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Handle what comes; at the end, close sessions, store a snapshot, release everything."""
        task = asyncio.create_task(self._drive(), name="control loop")
        task.add_done_callback(self._on_drive_end)
        self._threads_loop = asyncio.get_running_loop()
        self.upkeep.start()
        try:
            yield
        finally:
            self.close_lines()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.to_thread(self.upkeep.close)
            self._decisions.close()
            await self.replays.close()
            self.logs.close()
            self.metric_log.close()
            self._loop.close()

    def follow(self, policy: str, placement: str = "") -> None:
        """Set the policy and the placement before the server starts; empty: as they were.

        Raises UserError if there is none such.
        """
        policy, placement = policy or self.pool.policy, placement or self.pool.placement
        if (policy, placement) == (self.pool.policy, self.pool.placement):
            return  # if it is unknown by now, each decision says so, and jobs run on
        self.registry.policy(policy)
        self.registry.placement(placement)
        self._first = PolicyChosen(policy, "the server to start", placement)
        self.put(fact(self._first))

    def close_lines(self) -> None:
        """End what would never end by itself: streams, and the lines to agents."""
        self.is_closing = True
        self.happened.notify()
        for notifier in list(self._printed.values()):
            notifier.notify()
        for session in self.sessions:
            session.drop(GOING_AWAY, "the server ends")

    # What routes and sessions read.

    @property
    def pool(self) -> Pool:
        """The pool as the journal has it; not to be changed."""
        return self._loop.pool

    @property
    def stability(self) -> Stability:
        """How the pool is scheduled, whatever its policy."""
        return self._stability

    @property
    def awaited(self) -> frozenset[str]:
        """Nodes that have not reported since the server was restarted."""
        return self._loop.control.awaited

    def waits_for(self) -> list[str]:
        """Return what is missing before the server decides."""
        return [] if self._is_warm else ["kernels to be compiled"]

    def find(self, job: str) -> JobState:
        """Return a job by number or name, of the history if it has left memory; raises NotFound."""
        return self._names.find(self.pool, job) or self.history.find(job)

    def find_active(self, job: str, wanted: str) -> JobState:
        """Return a job that is `wanted`, for example cancelled; raises Conflict if it has ended."""
        return alive(self.find(job), wanted)

    def job_view(self, job: JobState) -> rest.JobView:
        """Show a job."""
        run, now_s = self.progress.of(job.id), self.clock.wall_s()
        return views.job_view(self.pool, job, run, now_s, self.awaited)

    def node_view(self, node: NodeState) -> rest.NodeView:
        """Show a node."""
        left_s = self._leases.left_s(node.name, self.steady_s())
        session = self.sessions.of(node.name)
        use = session.gpus if session is not None else {}
        return views.node_view(self.pool, node, left_s, use, is_awaited=node.name in self.awaited)

    def engine_view(self) -> rest.EngineView:
        """Show what brings the nodes of the pool."""
        notes, now_s = self.engine_notes, self.clock.wall_s()
        return views.engine_view(self.pool, self.engine_trouble, notes, now_s)

    def printed(self, job: int) -> Notifier:
        """Return the notifier of a job's log lines."""
        return self._printed.setdefault(job, Notifier())

    def steady_s(self) -> float:
        """The clock of leases."""
        return self.clock.steady_s()

    # Requests of routes and sessions.

    def put(self, ask: LoopRequest) -> None:
        """Queue a request for the control loop."""
        self._queue.append(ask)
        self._news.set()

    def _put_from_thread(self, ask: LoopRequest) -> None:
        """Queue a request from another thread."""
        self._threads_loop.call_soon_threadsafe(self.put, ask)

    async def ask(
        self, events: Events, once: IdempotentRequest | None = None, *, submits: bool = False
    ) -> str:
        """Queue events and wait until they are committed; raises UserError, or InternalError."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def reply(reply: Reply) -> None:
            if not future.done():  # the client may have disconnected
                future.set_result(reply)

        self.put(LoopRequest(events, reply, once, submits=submits))
        match await future:
            case RequestDone(response):
                return response
            case UserError() as error:
                raise error
            case RequestBug(error):
                raise InternalError from error

    def renew(self, node: str) -> None:
        """Renew a node's lease."""
        self._leases.renew(node, self.steady_s())

    def hear_progress(self, agent: wire.Hello, runs: Iterable[wire.RunProgress]) -> None:
        """Take in the progress of runs, as reported by an agent."""
        told, now_s = [], self.clock.wall_s()
        for run in runs:
            told.append(report := RunReported(agent.node, agent.boot, run.progressed))
            if self.pool.is_of_lead(report):
                self.progress.hear(run)
                self.metric_log.hear(run, now_s)
        self.put(LoopRequest(lambda _pool: told))

    def hear_logs(self, job: int, lines: tuple[wire.LogLine, ...]) -> None:
        """Keep what a job has printed, if there is room."""
        if job not in self.pool.jobs or not lines:
            return
        try:
            self.logs.append(job, lines)
        except OSError as error:
            log.warning("log_lines_lost", job=job, lines=len(lines), because=str(error))
        if (notifier := self._printed.get(job)) is not None:
            notifier.notify()

    def poke(self) -> None:
        """Look at the clock: it was turned."""
        self._news.set()

    # What the control loop tells.

    def publish(self, entries: Sequence[JournalEntry]) -> None:
        """Publish committed records to streams, logs and metrics."""
        for each in entries:
            if isinstance(each.record, JobSubmitted):
                self._names.add(each.record.job, each.record.spec.name)
            if isinstance(each.record, JobsForgotten):
                self._names.forget(each.record.jobs)
                self.progress.forget(each.record.jobs)
            if isinstance(each.record, NodeJoined):
                self._node_warnings.look_up(self.pool, each.record.node)
            if isinstance(each.record, RunEnded):
                self.metric_log.end(each.record.job)
            self.metrics.observe(each, self.pool)
        if entries:
            self.happened.notify()
            for job, notifier in list(self._printed.items()):
                if job not in self.pool.active:
                    notifier.notify()  # there is no more to come
                    del self._printed[job]

    def tell(self, nodes: frozenset[str]) -> None:
        """Send these nodes their orders."""
        for node in sorted(nodes):  # in the same order whenever the same happens
            if (session := self.sessions.of(node)) is not None:
                session.tell_orders()

    def drop(self, reports: Sequence[RunReported]) -> None:
        """Count reports about runs from nodes other than their leads."""
        for report in reports:
            self.metrics.dropped.inc()
            job, attempt, what = report.fact.job, report.fact.attempt, type(report.fact).__name__
            log.warning("report_dropped", node=report.node, job=job, attempt=attempt, what=what)

    def report_failed(self, failed: FailedDecision) -> None:
        """Count a decision that a plug-in failed to make; log its story where it is news."""
        self.metrics.policy_failures.labels(failed.policy).inc()
        story = failed.error if failed.record is not None else None
        log.error("policy_failed", policy=failed.policy, error=repr(failed.error), exc_info=story)

    def report_bug(self, error: Exception) -> None:
        """Put a bug's story into the log; the pool goes on."""
        self.metrics.bugs.inc()
        log.error("server_bug", error=repr(error), exc_info=error)

    def restore(self) -> list[Event]:
        """Return facts that are not in the journal: silent nodes, held slots, progress of runs."""
        events: list[Event] = [
            NodeSilent(node.name, node.boot)
            for node in self.pool.nodes.values()
            if self.sessions.of(node.name) is None
        ]
        held: list[NodeReported | None] = [session.holding for session in self.sessions]
        events += [holding for holding in held if holding is not None]
        return events + list(self.progress.newest(self.pool))

    # The task that owns the loop.

    async def _drive(self) -> None:
        with contextlib.suppress(UserError):  # the first decision will say so
            await asyncio.to_thread(warm_up, self._first, self._stability, self.registry)
        self._is_warm = True
        # Beats may have waited for the compiler. What we add to a lease, no agent relies on.
        self._leases.renew_all(self.steady_s())
        self._news.set()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience_s()):
                    await self._news.wait()
            self._news.clear()
            self._on_leases()
            self._on_wake()
            self._turn()

    def _turn(self) -> None:
        """Handle all that has come.

        Where decisions take long, what has come is written down and answered first; conclusions
        are drawn after that, and no more often than half of the time. While a decision is made in
        its thread, submits are written down and answered, and all else waits.
        """
        if (made := self._decisions.take()) is not None:
            self._take_decision(made)
        if self._decisions.is_busy:
            self._take_submits()
            return
        is_due = self._turn_at_s is not None and self.steady_s() >= self._turn_at_s
        is_swift = self._took_s < SWIFT_S
        if is_swift and (is_due or self._queue):
            self._take_turn(conclude=True)
        elif is_due:
            self._begin_decision()
        elif self._queue:
            self._take_turn(conclude=False)

    def _take_submits(self) -> None:
        others = [each for each in self._queue if not each.submits]
        if len(others) < len(self._queue):
            self._queue = deque(each for each in self._queue if each.submits)
            self._take_turn(conclude=False)
            self._queue.extend(others)

    def _begin_decision(self) -> None:
        """Have a decision made beside the control loop, if there is one to be made."""
        if self._queue:
            self._take_turn(conclude=False)
            if self._queue:
                return  # the journal is full
        began_s = self.steady_s()
        pending = self._loop.pending_decision(self.clock.wall_s())
        if pending is None:
            self._take_turn(conclude=True)
            return
        self._turn_at_s = None
        self._decisions.begin(self._loop.control, pending, began_s, self._news.set)

    def _take_decision(self, made: MadeDecision) -> None:
        """Put a decision into effect; it is void if the pool was read from the journal since."""
        must_decide = self._turn_at_s is not None  # for jobs that were submitted meanwhile
        if made.control is self._loop.control:
            waiting, self._queue = self._queue, deque()
            self._take_turn(conclude=True, made=made)
            self._queue.extend(waiting)
        if must_decide:
            self._turn_at_s = max(self._turn_at_s or 0.0, self._rest_until_s)

    def _take_turn(self, *, conclude: bool, made: MadeDecision | None = None) -> None:
        asks = list(self._queue)
        self._queue.clear()
        began_s = made.began_s if made is not None else self.steady_s()
        result = made.result if made is not None else None
        turn = self._loop.turn(asks, self.clock.wall_s(), conclude=conclude, made=result)
        ended_s = self.steady_s()
        self.metrics.turn_seconds.observe(ended_s - began_s)
        self._wake_at_s = turn.wake_at_s
        self._queue.extendleft(reversed(turn.again))
        if turn.full is not None:
            self._turn_at_s = ended_s + RETRY_S
            log.error("journal_full", because=turn.full.because, kept=len(turn.again))
            return
        if conclude:
            self._took_s = ended_s - began_s
            self._rest_until_s, self._turn_at_s = ended_s + self._took_s, None
        else:
            self._turn_at_s = max(self._rest_until_s, ended_s + BREATH_S)
        if self.journal.snapshot_is_due():
            self.upkeep.wake()

    def _on_leases(self) -> None:
        for name in self._leases.run_out(self.steady_s()):
            self._leases.end(name)
            node = self.pool.nodes.get(name)
            if node is not None and node.is_up:
                because = f"no contact for {self.lease_s:g} s (its lease expired)"
                log.warning("node_lost", node=name, because=because)
                self.put(fact(NodeLost(name, node.boot, because)))
            if (session := self.sessions.of(name)) is not None:
                session.drop(LEASE_OVER, "the lease has expired")

    def _on_wake(self) -> None:
        """Wake the pool when it asked for it, once for each time it named."""
        at_s = self._wake_at_s
        if at_s is not None and at_s != self._woken_for_s and at_s <= self.clock.wall_s():
            self._woken_for_s = at_s
            self.put(fact(Woke()))

    def _patience_s(self) -> float | None:
        """Return the seconds until the next timer; None if there is none."""
        steady_s = self.steady_s()
        turn_at_s = None if self._decisions.is_busy else self._turn_at_s
        due_s = [end for end in (self._leases.next_end_s(), turn_at_s) if end is not None]
        if self._wake_at_s is not None and self._wake_at_s != self._woken_for_s:
            left_s = (self._wake_at_s - self.clock.wall_s()) / self.clock.scale
            due_s.append(steady_s + left_s)
        return self.clock.patience_s(min(due_s) - steady_s) if due_s else None

    def _await_agents(self) -> None:
        """Give the agents that were there a lease's time to come back.

        Most come back within a few attempts; no job is resized because one agent was slower.
        """
        up = [node.name for node in self.pool.nodes.values() if node.is_up]
        for node in up:
            self.renew(node)
        if up:
            rest_s = min(REST_S_MAX, self.lease_s / 4) * self.clock.scale
            self._loop.control.await_nodes(up, self.clock.wall_s() + rest_s)

    def _on_drive_end(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("the control loop has stopped", exc_info=error)
            self.failure = error
            self.on_failure()
