"""Carries out the server's orders: runs jobs, assigns slots to them, reports what happens.

Everything here runs in the agent's event loop. Job runners and job hosts have other threads, and
post what they report to this loop.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import Concatenate, Final, ParamSpec, assert_never

import structlog

from coddl.agent.job_environments import Environments
from coddl.agent.job_runner import JobRun, JobRunner, RunnerFactory
from coddl.agent.lease_clock import SYSTEM_CLOCK, NodeClock
from coddl.agent.logs import OURS, LogSpool
from coddl.agent.orphans import OrphanProcesses
from coddl.agent.parking import ParkedJobs, ParkingLot
from coddl.agent.reconcile import (
    AppliedOrder,
    DeclineRun,
    MarkNodesLost,
    Overstays,
    ReleaseRun,
    ResizeRun,
    RunAction,
    StartRun,
    StopRun,
    granted_slots,
    reconcile,
)
from coddl.agent.run_reporter import Fact, ReportSink
from coddl.agent.slot_table import AgentBridge, Held, SlotTable, WorkerHosts
from coddl.agent.turns import NodeTurns, SlotUsers
from coddl.api.wire import Holding, LogLine, Peer, RunProgress
from coddl.core.pool import orders as told
from coddl.core.pool.orders import Orders
from coddl.core.pool.records import Device, RunEnded, RunId, Trouble
from coddl.core.speed.inspection import LinkClass, LinkSpeed
from coddl.runtime.supervisor.slots import HostAddress, Parked
from coddl.runtime.wire import Message

NOTHING: Final = Orders(0, {}, (), {})
SAVING_S: Final = 600.0  # what a job that is saving its state may take beyond its time
AGAIN_S: Final = 1.0  # between looks at one that is

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node's name, address, devices and memory."""

    name: str
    address: HostAddress  # of its own job host server
    devices: tuple[Device, ...]
    parking_bytes: int = 0  # of host memory that parked jobs may use; 0: none is parked
    resident_bytes: int | None = None  # of a GPU's, that jobs which take turns may use together
    links: Mapping[LinkClass, LinkSpeed] = field(default_factory=dict)  # as they were inspected


@dataclass(slots=True, eq=False)
class _LedRun:
    """A run that is led here."""

    runner: JobRunner
    applied: AppliedOrder


P = ParamSpec("P")


def _in_loop(
    method: "Callable[Concatenate[NodeAgent, P], None]",
) -> "Callable[Concatenate[NodeAgent, P], None]":
    """Have a method run in the agent's event loop, from whatever thread it is called."""

    @wraps(method)
    def post(self: "NodeAgent", /, *args: P.args, **kwargs: P.kwargs) -> None:
        self._loop.call_soon_threadsafe(partial(method, self, *args, **kwargs))

    return post


class NodeAgent:
    """Runs the jobs of one node; the connection to the server and the lease are not its concern."""

    def __init__(
        self,
        info: NodeInfo,
        environments: Environments,
        bridge: AgentBridge,
        job_hosts: WorkerHosts,
        runner_of: RunnerFactory,
        *,
        sink: ReportSink,
        log_spool: LogSpool,
        orphans: OrphanProcesses,
        clock: NodeClock = SYSTEM_CLOCK,
    ) -> None:
        self._info = info
        self._environments = environments
        self._bridge = bridge
        self._job_hosts = job_hosts
        self._sink = sink
        self._log_spool = log_spool
        self._orphans = orphans
        self._runner_of = runner_of
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._orders = NOTHING
        self._addresses: dict[str, HostAddress] = {}
        self._led: dict[int, _LedRun] = {}  # by job
        self._parting: list[JobRunner] = []  # dropped, and not gone yet
        self._ended: set[RunId] = set()
        self._unsafe: set[RunId] = set()  # ended, and the server has not acknowledged it
        self._untidy: dict[RunId, JobRun] = {}  # over for good, as soon as the server knows it
        self._overstays = Overstays()
        self._workers: Held = {}
        self._version = 0  # of the orders that `_workers` are true with
        self.parked = ParkedJobs(ParkingLot(info.parking_bytes), bridge, job_hosts)
        self._turns = NodeTurns(info.resident_bytes, self._take_turns)
        self._commands: dict[int, tuple[JobRun, int | None]] = {}  # by slot: whose, and its process
        self._others: Mapping[int, str] = {}  # who use our GPUs, by index
        self._is_leaving = False
        self._has_had_jobs = False
        self._idle = asyncio.Event()
        self._idle.set()

    # The server's word.

    def take(self, orders: Orders, peers: Iterable[Peer]) -> None:
        """Do what the orders say; again does no harm."""
        self._orders = orders
        self._has_had_jobs |= bool(orders.jobs)
        self._addresses = {p.node: HostAddress(p.node, p.host, p.port, p.token) for p in peers}
        self._addresses[self._info.name] = self._info.address
        wanted = {RunId(order.job, order.attempt) for order in orders.leads}
        self._ended &= wanted
        self.parked.keep({*orders.parked, *orders.jobs})
        self._environments.failed.clear()  # it may go better this time
        self._prepare_environments()
        self._act()
        self._take_turns()
        self._job_hosts.look_again()  # and `on_holding` is told, with this table

    def look(self) -> None:
        """See to what time brings about."""
        assert self._job_hosts.is_alive, "the thread for worker hosts has ended"
        now_s = self._clock.steady_s()
        for slot in self._overstays.overdue(self._orders.seats, self.holding, now_s):
            log.warning("worker_killed_on_lost_slot", slot=slot, job=self.holding[slot].job)
            self._job_hosts.kill_slot(slot)
        self._tell_holding()

    @property
    def runs(self) -> set[RunId]:
        """The runs of this node: current, ordered, and ended but not acknowledged."""
        running = {runner.run.id for runner in self.runners}
        wanted = {RunId(order.job, order.attempt) for order in self._orders.leads}
        return running | self._unsafe | (set() if self._is_leaving else wanted - self._ended)

    @property
    def holding(self) -> dict[int, RunId]:
        """Tell which slots have processes, and whose."""
        workers = {slot: RunId(int(at.job), at.attempt) for slot, at in self._workers.items()}
        return workers | {slot: run.id for slot, (run, _) in self._commands.items()}

    @property
    def runners(self) -> list[JobRunner]:
        """The job runners of this node."""
        return [led.runner for led in self._led.values()]

    def gpus(self) -> set[str]:
        """Name the GPUs that have processes of jobs. From any thread."""
        orders = [led.applied.order for led in list(self._led.values())]
        found = {s.gpu for order in orders for s in order.seats if s.slot in self._commands}
        found |= {at.gpu for at in [*self._workers.values(), *self.parked.processes]}
        return {gpu for gpu in found if gpu is not None}

    def pids(self) -> dict[int, list[int]]:
        """Give the first processes of each job here."""
        found: dict[int, list[int]] = {}
        for at in self._workers.values():
            if at.pid is not None:
                found.setdefault(int(at.job), []).append(at.pid)
        for run, pid in set(self._commands.values()):
            if pid is not None:
                found.setdefault(run.job, []).append(pid)
        return found

    # The end.

    def leave(self, reason: str) -> None:
        """Suspend every job that this node runs, and start no other."""
        self._is_leaving = True
        self.suspend_all(reason)

    def suspend_all(self, reason: str) -> None:
        """Suspend every job that this node runs: its state is made durable, then it ends."""
        for job, led in self._led.items():
            if not led.applied.order.stop:
                self._stop_run(StopRun(job, "retire", reason), led)
        self._take_turns()

    def end_all(self, trouble: Trouble) -> None:
        """End every process here at once; other nodes may run these jobs from now on.

        A server that has not given us up yet must hear of it: the runs are not runner again.
        """
        self._orders = NOTHING
        for runner in self.runners:
            self._drop(runner.run.job)
            self._report(RunEnded(runner.run.job, runner.run.attempt, "lost", trouble=trouble))
        self._take_turns()
        for run_id in set(self.holding.values()):
            self._job_hosts.kill(str(run_id.job))
        self.parked.end_all(trouble.sentence)
        self._job_hosts.look_again()

    def end(self, job: int, trouble: Trouble) -> None:
        """End a job here for a reason of ours."""
        self._say(job, 0, trouble.sentence)
        if job in self._led:
            self._led[job].runner.fail(trouble)
        else:
            self._job_hosts.kill(str(job))

    @property
    def has_unsaved(self) -> bool:
        """Tell whether a job that was to leave goes on, as its state can't be saved."""
        return any(runner.is_unsaved for runner in self.runners)

    @property
    def is_free(self) -> bool:
        """Tell whether nothing is here and, as the server knows that we leave, nothing comes."""
        has_work = self.runs or self._parting or self.holding or self._orders.seats
        return not has_work and (self._orders.leaves or not self._has_had_jobs)

    async def idle(self) -> None:
        """Wait until no job runner is left."""
        await self._idle.wait()

    # Actions.

    def _act(self) -> None:
        applied = {job: led.applied for job, led in self._led.items()}
        for action in reconcile(self._orders, self._addresses, applied, self._ended):
            self._do(action)
        self._note_idle()

    def _do(self, action: RunAction) -> None:
        match action:
            case StartRun() if self._is_leaving or not self._bridge.is_leased():
                pass  # the server will see that we are gone, or have ended all
            case StartRun(order, addresses):
                self._start_run(order, addresses)
            case ResizeRun(order, addresses):
                self.parked.take(order.job)
                led = self._led[order.job]
                led.applied = AppliedOrder(order, addresses, granted_slots(self._orders, order))
                self._say_others(order)
                led.runner.resize(order.seats, self._with_own(addresses))
            case MarkNodesLost(job, nodes):
                self._led[job].runner.mark_lost(nodes)
            case StopRun(job) if job in self._led:
                self._stop_run(action, self._led[job])
            case StopRun():
                pass  # its environment is not ready: it is stopped when it starts
            case ReleaseRun(job):
                self._drop(job)
                if job not in self._orders.jobs:  # no job runner will adopt its workers here
                    self._job_hosts.kill(str(job))
            case DeclineRun(order):
                outcome: Final = "cancelled" if order.stop == "cancel" else "retired"
                self._report(RunEnded(order.job, order.attempt, outcome))
            case _:
                assert_never(action)

    def _take_turns(self) -> None:
        """Have turns on shared slots begin and end, and let job hosts know who may be at work."""
        takers = {each.run.id: each for each in self.runners}
        takers = {run_id: each for run_id, each in takers.items() if run_id not in self._ended}
        stops = {job: led.applied.order.stop for job, led in self._led.items()}
        leaving = {run_id for run_id in takers if stops[run_id.job] in ("park", "retire")}
        processes = [*self.parked.processes, *self._workers.values()]
        waiting = {int(each.job) for each in processes if each.awaits_turn}
        self._turns.look(self._orders, SlotUsers(self.holding, waiting), takers, leaving)
        owners, sharing = self._turns.owners(self._orders), self._turns.sharing
        table = SlotTable(self._orders.version, owners, sharing)
        if table != self._bridge.table:
            self._bridge.table = table
            self._job_hosts.look_again()
        self.parked.reserve(self._turns.waiting_bytes)

    def _start_run(self, order: told.JobOrder, addresses: Mapping[str, HostAddress]) -> None:
        job = order.job
        if job in self._environments.failed:
            outcome, trouble = self._environments.failed[job]
            refused = outcome == "lost"
            self._report(RunEnded(job, order.attempt, outcome, trouble=trouble, refused=refused))
            return
        if job not in self._environments.ready:
            return  # asked again when it is
        spec = self._orders.jobs[job]
        run = JobRun(
            job=job,
            attempt=order.attempt,
            spec=spec,
            node=self._info.name,
            environment=self._environments.ready[job],
            reason=order.reason,
            adopt=order.adopt or self.parked.take(job),
            precheck=order.precheck,
            limits=order.limits,
        )
        if not run.is_elastic and any(assigned.slot in self.holding for assigned in order.seats):
            return  # asked again when the slots are empty; workers are kept waiting by job hosts
        log.info("run_started", job=job, attempt=order.attempt, slots=[s.slot for s in order.seats])
        runner = self._runner_of(run, self)
        applied = AppliedOrder(order, addresses, granted_slots(self._orders, order))
        self._led[job] = _LedRun(runner, applied)
        self._say_others(order)
        if not run.is_elastic:
            self._occupy(self._commands | {assigned.slot: (run, None) for assigned in order.seats})
        runner.start(order.seats, self._with_own(addresses))

    def _with_own(self, addresses: Mapping[str, HostAddress]) -> dict[str, HostAddress]:
        return {**addresses, self._info.name: self._info.address}

    def _stop_run(self, stop: StopRun, led: _LedRun) -> None:
        led.applied = replace(led.applied, order=replace(led.applied.order, stop=stop.how))
        log.info("run_stopping", job=stop.job, how=stop.how, why=stop.reason)
        if stop.how == "cancel":
            led.runner.cancel()
            return
        park = stop.how == "park" and not self._is_leaving and self.parked.expect(stop.job)
        led.runner.suspend(stop.reason, park=park)
        grace_s = led.runner.run.spec.launch.grace_s
        give_up_s = self._clock.steady_s() + grace_s + SAVING_S
        self._loop.call_later(grace_s, self._force, led, give_up_s)

    def _force(self, led: _LedRun, give_up_s: float, *, has_waited: bool = False) -> None:
        """End a run that was to leave and is still there, unless it is saving its state.

        One that waits for its turn to leave has its time from when that comes.
        """
        run, again = led.runner.run, partial(self._force, led, give_up_s)
        if self._led.get(run.job) is not led or not led.applied.order.stop:
            return  # it has left, or was called back
        if self._turns.is_kept_waiting(run.id):
            self._loop.call_later(AGAIN_S, partial(again, has_waited=True))
        elif has_waited:
            self._loop.call_later(run.spec.launch.grace_s, again)
        elif not led.runner.force(at_all_costs=self._clock.steady_s() > give_up_s):
            self._loop.call_later(AGAIN_S, again)

    def _drop(self, job: int) -> None:
        runner = self._led.pop(job).runner
        log.info("run_dropped", job=job, attempt=runner.run.attempt)
        self._parting.append(runner)
        runner.release()

    def _prepare_environments(self) -> None:
        """Prepare the environments of the jobs that run here, or will."""
        here = {*(run_id.job for run_id in self.holding.values()), *self.parked.jobs}
        self._environments.want(self._orders.jobs, {*here, *self._led})
        self._bridge.environments = {
            str(job): environment for job, environment in self._environments.ready.items()
        }

    def on_environment(self) -> None:
        """Continue with what has waited for an environment."""
        self._prepare_environments()
        self._act()
        self._job_hosts.look_again()

    def _say_others(self, order: told.JobOrder) -> None:
        """Say so if others use a GPU that is given to a job."""
        index_of = {device.gpu: device.index for device in self._info.devices}
        for assigned in order.seats:
            if assigned.gpu in index_of and (who := self._others.get(index_of[assigned.gpu])):
                words = f"GPU {index_of[assigned.gpu]} ({assigned.gpu}) is also used by {who}"
                self._say(order.job, order.attempt, words)

    def _report(self, ended: RunEnded) -> None:
        run_id = RunId(ended.job, ended.attempt)
        self._ended.add(run_id)
        self._unsafe.add(run_id)
        self._sink.report(ended)

    def _say(self, job: int, attempt: int, text: str) -> None:
        log.info("job_message", job=job, text=text)
        self._log_spool.add(job, LogLine(self._clock.wall_s(), attempt, -1, None, OURS, text))

    def _note_idle(self) -> None:
        if self._led or self._parting:
            self._idle.clear()
        else:
            self._idle.set()

    # Words of other threads.

    @_in_loop
    def hear_holding(self, version: int, held: Held, parked: Parked) -> None:
        """Hear of workers here, of the orders' version that is true with, and of parked ones."""
        self._workers, self._version = held, version
        self.parked.note(parked)
        pids = [pid for each in self.pids().values() for pid in each]
        self._orphans.note([*pids, *self.parked.pids])
        self._tell_holding()
        self._act()  # a command may have waited for a slot
        self._take_turns()

    def _tell_holding(self) -> None:
        # A run that is told to leave keeps its slot while it waits for its turn to do so.
        holding = Holding(
            version=self._version,
            slots=self.holding | self._turns.leavers,
            runs=frozenset(self.runs),
            others=dict(self._others),
            parked=self.parked.present,
            turns=self._turns.reports,
        )
        self._sink.hold(holding)

    @_in_loop
    def hear_others(self, others: Mapping[int, str]) -> None:
        """Hear which GPUs that have no job are used by others, and by whom."""
        self._others = others
        for index, who in others.items():
            log.warning("gpu_used_by_others", gpu=index, who=who)
        self._job_hosts.look_again()  # and `on_holding` is told

    @_in_loop
    def on_fact(self, run: JobRun, fact: Fact) -> None:
        """Hear of a run."""
        if not isinstance(fact, RunEnded):
            self._sink.report(fact)
            return
        log.info("run_ended", job=run.job, attempt=run.attempt, outcome=fact.outcome)
        self.parked.park(fact)
        self._report(fact)
        is_final = fact.outcome in ("succeeded", "cancelled") or (
            fact.outcome == "failed" and not run.spec.max_failures
        )
        if is_final:
            self._untidy[run.id] = run

    def on_safe(self, fact: Fact) -> None:
        """Hear that the server knows a fact; only then may the state of a job that is over go."""
        if not isinstance(fact, RunEnded):
            return
        self._unsafe.discard(RunId(fact.job, fact.attempt))
        self.parked.note_known(fact.job)
        if (run := self._untidy.pop(RunId(fact.job, fact.attempt), None)) is not None:
            forget = fact.outcome != "failed"
            self._environments.tidy(run.job, run.spec, run.attempt, forget=forget)

    @_in_loop
    def on_progress(self, run: JobRun, progress: RunProgress) -> None:  # noqa: ARG002 - it is in there
        """Hear how a run is doing."""
        self._sink.progress(progress)

    def on_line(self, run: JobRun, stream: str, text: str) -> None:
        """Keep a line of a run; what a command prints is its only worker's."""
        worker, rank = (-1, None) if stream == OURS else (0, 0)
        self._log_spool.add(
            run.job, LogLine(self._clock.wall_s(), run.attempt, worker, rank, stream, text)
        )

    @_in_loop
    def on_slots(self, run: JobRun, slots: Sequence[int], pid: int | None) -> None:
        """Hear which slots a command holds."""
        others = {s: at for s, at in self._commands.items() if at[0] is not run}
        self._occupy(others | dict.fromkeys(slots, (run, pid)))
        self._job_hosts.look_again()

    def _occupy(self, commands: dict[int, tuple[JobRun, int | None]]) -> None:
        """Take down which slots have commands; no worker starts there."""
        self._commands = commands
        self._bridge.commands = commands.keys()

    @_in_loop
    def on_turn(self, run: JobRun, event: Message) -> None:
        """Hear that a worker's turn has ended, or begun."""
        self._turns.hear(run.id, event)
        self._take_turns()

    @_in_loop
    def on_over(self, run: JobRun) -> None:
        """Hear that a job runner has ended."""
        self._parting = [runner for runner in self._parting if runner.run is not run]
        if (led := self._led.get(run.job)) is not None and led.runner.run is run:
            del self._led[run.job]
            self._ended.add(run.id)
        self._act()
        self._take_turns()
