"""The control plane, purely: what happens in, records and orders out. (D1, D3)

    take(event)    checks an event and folds what is new of it; raises for a user's mistake
    conclude()     decides if something calls for it, and puts decisions into effect as far as
                   devices are free; gives all records since the last time, to be journalled before
                   they are published
    note()         gives the records without concluding anything: that is owed then

Between `pending_decision` and `conclude` a driver may make a long decision in another thread, and
take submits.

A driver takes the events of an instant together: a hundred submits make one decision. Effects are
orders: a node whose orders changed is to be instructed (`Pool.orders`). Devices change hands so:

    Decided: job A loses slot 3, B gets it     Aimed(A): its lead and the node of slot 3 get orders
    the worker on slot 3 leaves                the node reports it empty: SlotFreed(3)
                                               Aimed(B): only now may B use it
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import replace
from typing import Final, NamedTuple, assert_never

from coddl.core.cluster import Cluster
from coddl.core.node_count import NodeCount
from coddl.core.pool import records as r
from coddl.core.pool.admission import is_news
from coddl.core.pool.causes import cause_name, request_cause
from coddl.core.pool.decision import POOL_STABILITY
from coddl.core.pool.explain import sentence_of
from coddl.core.pool.failed_decision import RETRY_S, FailedDecision
from coddl.core.pool.forgetting import still_known
from coddl.core.pool.job import JobState, MeasuredSpeed
from coddl.core.pool.known_profiles import knows_profile
from coddl.core.pool.leaving import AGENT, drained_by_notice, due_s, forced_moves, led_from_drained
from coddl.core.pool.nodes import NodeState
from coddl.core.pool.parking import ended_parkings, may_call_back
from coddl.core.pool.pending_decision import Decision, PendingDecision
from coddl.core.pool.scaling import count_after, ended_nodes, news_of, surplus_of
from coddl.core.pool.slot_sharing import (
    are_free,
    freed_slots,
    must_stop_first,
    must_wait,
    note_turns,
)
from coddl.core.pool.starts import start_due_s, start_within_s
from coddl.core.pool.state import Pool
from coddl.core.pool.untying import first_move
from coddl.core.registry import BUILT_IN, Registry
from coddl.core.scheduler import Stability
from coddl.core.speed.profile import SECONDS_MAX, SECONDS_MIN

MEASURED_MIN: Final = 3  # iterations after which a speed counts as measured
SPEED_NEWS: Final = 0.2  # by how much a speed must differ from the one last decided on


class ControlOutput(NamedTuple):
    """What follows from events: records to be journalled, then orders to be sent."""

    records: tuple[r.Record, ...]
    instruct: frozenset[str]  # nodes whose orders are to be sent
    wake_at_s: float | None  # when to send `Woke`, if nothing happens before
    dropped: tuple[r.RunReported, ...] = ()  # not from the run's lead
    failed: FailedDecision | None = None  # by a policy that is not ours


class ControlPlane:
    """Decides for a pool. Not thread-safe; knows no clock."""

    def __init__(
        self,
        pool: Pool,
        stability: Stability = POOL_STABILITY,
        site: Cluster | None = None,
        registry: Registry = BUILT_IN,
    ) -> None:
        self.pool = pool
        self.stability = stability
        self.site = site  # what the operator says of the nodes: racks, islands, links
        self.registry = registry
        self._failed: FailedDecision | None = None
        self._retry_at_s: float | None = None  # a policy has failed: when to ask it again
        self._records: list[r.Record] = []
        self._dropped: list[r.RunReported] = []
        self._why = ""  # to decide anew
        self._hint = ""  # the same, if nothing else happens
        self._due = ""  # the same, if the time for it has come and there is no other cause
        self._awaited: set[str] = set()
        self._rest_until_s = 0.0  # nothing is decided, unless all of them are back
        self._node_count = NodeCount()
        self._is_pending = False  # a decision is being made elsewhere

    def handle(self, event: r.Event, now_s: float) -> ControlOutput:
        """Take in one event and draw the conclusions."""
        self.take(event, now_s)
        return self.conclude(now_s)

    def await_nodes(self, nodes: Collection[str], rest_until_s: float = 0.0) -> None:
        """Let nodes keep what they have until they are back or lost: their runs are unknown.

        Until then they are silent: they get nothing new, and what is led from there stays as it is.
        Most come back at once; until `rest_until_s` nothing is decided without them.
        """
        self._rest_until_s = rest_until_s
        self._awaited = {name for name in nodes if self.pool.nodes[name].is_up}
        for name in self._awaited:
            self.pool.nodes[name].is_silent = True
        self._call("server restarted")

    def reconsider(self, why: str) -> None:
        """Have everything decided anew: what called for it before may have been forgotten."""
        self._call(why)

    @property
    def wake_at_s(self) -> float | None:
        """When to send `Woke`, if nothing happens before."""
        times_s = [start_due_s(self.pool, self.pool.jobs[number]) for number in self.pool.starting]
        times_s += [self._rest_until_s or None, self._decide_at_s, *due_s(self.pool)]
        return min((at_s for at_s in times_s if at_s is not None), default=None)

    @property
    def _decide_at_s(self) -> float | None:
        """When to decide anew, as the last decision asked; as it failed, soon."""
        return self.pool.wake_at_s if self._retry_at_s is None else self._retry_at_s

    @property
    def awaited(self) -> frozenset[str]:
        """Nodes that have not reported since the server was restarted."""
        return frozenset(self._awaited)

    # What happens.

    def take(self, event: r.Event, now_s: float) -> None:
        """Fold what is new of an event; raises UserError, having changed nothing."""
        assert not self._is_pending or isinstance(event, r.JobSubmitted), event
        match event:
            case (
                r.JobSubmitted()
                | r.JobCancelled()
                | r.JobSuspended()
                | r.JobResumed()
                | r.JobBounded()
                | r.JobPrioritised()
                | r.NodeDrained()
                | r.NodeUndrained()
                | r.NodeForgotten()
                | r.PolicyChosen()
            ):
                if is_news(self.pool, event, self.registry):
                    self._add(event, now_s)
                    self._why = self._why or request_cause(self.pool, event)
            case r.JobsForgotten():
                if (known := still_known(self.pool, event)).jobs:
                    self._add(known, now_s)
            case r.NodeJoined():
                self._on_joined(event, now_s)
            case r.NodeReported():
                self._on_reported(event, now_s)
            case r.NodeSilent(node, boot):
                if self._is_current(node, boot):
                    self._on_silent(node)
            case r.NodeNoticed(node):
                if (drained := drained_by_notice(self.pool, event, now_s)) is not None:
                    self._add(drained, now_s)
                    self._call(f"node {node} leaves")
            case r.NodeLost(node, boot):
                if self._is_current(node, boot):
                    self._lose(event, now_s)
            case r.EngineBounded():
                self._add(event, now_s)
                self._call(sentence_of(event))
            case r.EngineReported():
                self._on_engine(event, now_s)
            case r.RunReported():
                self._on_run_reported(event, now_s)
            case r.Woke():
                if self._decide_at_s is not None and now_s >= self._decide_at_s:
                    again = "retry" if self._retry_at_s is not None else self.pool.wake_why
                    self._due = again or "periodic rebalance"
            case _:
                assert_never(event)

    def _name(self, job: int) -> str:
        return cause_name(self.pool, job)

    def _call(self, why: str) -> None:
        """Ask for a decision; the first cause of an instant names it."""
        self._why = self._why or why

    def _call_for_speed(self, why: str) -> None:
        """Ask for a decision, of which something that happens is the better name."""
        self._hint = self._hint or why

    def _add(self, record: r.Record, now_s: float) -> None:
        self.pool.apply(record, now_s)
        self._records.append(record)

    # Nodes.

    def _is_current(self, node: str, boot: str) -> bool:
        place = self.pool.nodes.get(node)
        return place is not None and place.is_up and place.boot == boot

    def _on_joined(self, event: r.NodeJoined, now_s: float) -> None:
        place = self.pool.nodes.get(event.node)
        self._awaited.discard(event.node)
        if self._is_current(event.node, event.boot) and place is not None:
            place.is_silent, place.back_s = False, now_s  # it only was away
            self.pool.touched.add(event.node)
            self._call(f"node {event.node} reconnected")
            return
        if place is not None and place.is_up:
            self._lose(r.NodeLost(event.node, place.boot, "its agent was restarted"), now_s)
        if place is not None and place.drained_by == AGENT:
            self._add(r.NodeUndrained(event.node, AGENT), now_s)  # the new agent had no notice
        known = {} if place is None else {self.pool.slots[s].device.index: s for s in place.slots}
        fresh = self.pool.next_slot
        slots = []
        for device in event.devices:
            slot = known.get(device.index)
            if slot is None:
                slot, fresh = fresh, fresh + 1
            slots.append(slot)
        self._add(replace(event, slots=tuple(slots)), now_s)
        self._call(f"node {event.node} joined")

    def _on_silent(self, node: str) -> None:
        self.pool.nodes[node].is_silent = True
        for number in self.pool.unsettled:
            if node in self.pool.nodes_of(self.pool.jobs[number].target):
                self._call(f"node {node} disconnected")  # what is reserved may be had elsewhere

    def _on_reported(self, event: r.NodeReported, now_s: float) -> None:
        """Conclude from what a node, knowing its newest orders, does not have."""
        if not self._is_current(event.node, event.boot):
            return
        place = self.pool.nodes[event.node]
        self._note_others(place, event.others)
        note_turns(self.pool, place, event.turns)
        if event.version != place.version:
            return  # it does not have the newest orders; it reports again when it has
        for freed in list(freed_slots(self.pool, event)):
            if self.pool.slots[freed.slot].is_stuck:
                self._call(f"a GPU of node {event.node} is free again")  # it was not counted on
            self._add(freed, now_s)
        for ended in ended_parkings(self.pool, event):
            self._add(ended, now_s)
        if event.runs is not None:
            self._compare_runs(place, event.runs, now_s)

    def _compare_runs(self, place: NodeState, runs: Set[r.RunId], now_s: float) -> None:
        """Treat runs as lost that a node should lead and does not list.

        Its report of how they ended will never come: it lists a run until that is acknowledged.
        """
        wanted = {r.RunId(job, self.pool.jobs[job].attempt) for job in place.leads}
        for job, attempt in sorted(wanted - runs):
            because = f"node {place.name} no longer runs it and did not report how it ended"
            trouble = r.Trouble("its run was lost", because, f"coddl logs {job}")
            step = self.pool.jobs[job].step
            self._on_run(r.RunEnded(job, attempt, "lost", step, trouble=trouble), now_s)
        if runs - wanted:
            self.pool.touched.add(place.name)  # its orders are sent once more

    def _note_others(self, place: NodeState, others: Mapping[int, str]) -> None:
        """Take in which devices are used by processes that are none of the pool's."""
        for slot in (self.pool.slots[number] for number in place.slots):
            user = others.get(slot.device.index, "")
            if user != slot.others:
                slot.others = user
                does = f"is used by {user}" if user else "is no longer used by others"
                self._call(f"GPU {slot.device.index} of node {place.name} {does}")

    def _lose(self, lost: r.NodeLost, now_s: float) -> None:
        self._awaited.discard(lost.node)
        self._add(lost, now_s)
        self._call(f"node {lost.node} lost")
        for job in list(self.pool.live_jobs()):
            if job.granted and job.lead is None:
                self._adopt(job, f"node {lost.node}, which led the job, was lost", now_s)

    def _adopt(self, job: JobState, reason: str, now_s: float) -> None:
        """Name another lead for workers that are still alive."""
        ours, lead = (job.id, job.attempt + 1, job.generation + 1), self._best_lead(job.granted)
        self._add(r.Aimed(*ours, job.granted, lead=lead, reason=reason, adopt=True), now_s)

    def _best_lead(self, slots: Iterable[int]) -> str:
        names = [self.pool.slots[slot].node for slot in slots]
        nodes = [self.pool.nodes[name] for name in set(names)]
        order = lambda n: (n.is_silent, n.is_drained, -names.count(n.name), n.name)  # noqa: E731
        return min(nodes, key=order).name

    def _on_engine(self, report: r.EngineReported, now_s: float) -> None:
        """Take in which nodes an engine has, and decide how many are wanted."""
        for lost in ended_nodes(self.pool, report):
            self._lose(lost, now_s)
        for record in news_of(self.pool, report, now_s):
            self._add(record, now_s)
            if not isinstance(record, r.EngineBounded):
                self._call(sentence_of(record))
        self._node_count, because = count_after(self.pool, report, self._node_count, now_s)
        if (nodes := self._node_count.nodes) != self.pool.engine.wanted:
            self._add(r.NodesWanted(nodes, because), now_s)
        for record in surplus_of(self.pool, report, nodes):
            self._add(record, now_s)
            self._call(sentence_of(record))

    # Runs.

    def _on_run_reported(self, event: r.RunReported, now_s: float) -> None:
        """Handle a report of a run's lead; drop one from any other agent."""
        fact = event.fact
        if not self.pool.is_of_lead(event):
            self._dropped.append(event)
        elif isinstance(fact, r.RunProgressed):
            self._on_progress(fact)
        else:
            self._on_run(fact, now_s)

    def _on_run(self, fact: r.RunFact, now_s: float) -> None:
        job = self.pool.jobs[fact.job]
        if not self._may_say(job, fact):
            return  # stale: a report about a run that was stopped since
        match fact:
            case r.RunPrepared() if job.knows(fact):
                return  # a repeat, or another attempt's
            case r.SliceDidNotFit() if job.knows_limit(fact):
                return
            case r.RunProfiled() if knows_profile(job.profile, fact.profile):
                return
            case r.RunStepped(_, _, step) if job.phase != "starting" and (
                job.proven_s is not None or step == 0
            ):
                return
            case r.RunChanged() if fact.change <= job.change:
                return
            case r.RunUnsaved() if fact.trouble == job.unsaved:
                return
            case _:
                self._add(fact, now_s)
        match fact:
            case r.RunStepped(_, _, step):
                did = "made its first step" if step else "started"
                self._call(f"{self._name(job.id)} {did}")
            case r.SliceDidNotFit():
                self._call(f"{self._name(job.id)} needs at least {fact.gpus_min} GPUs")
            case r.RunEnded():
                self._call(f"{self._name(job.id)} {r.ENDS[fact.outcome]}")
            case r.RunChanged(kind="resumed"):
                self._call_for_speed(f"{self._name(job.id)} resumed")  # turns depend on its cost
            case r.RunProfiled() if job.is_estimable:
                self._call_for_speed(f"{self._name(job.id)} has measured its passes")
            case r.LossMeasured():
                if job.has_new_length:
                    self._call_for_speed(f"the length of {self._name(job.id)} is predicted")
            case (
                r.RunPrepared() | r.RunProfiled() | r.RunChanged() | r.RunStalled() | r.RunUnsaved()
            ):
                pass
            case _:
                assert_never(fact)

    def _may_say(self, job: JobState, fact: r.Record) -> bool:
        """Return whether a report is valid: of a live run, or a success of a run taken for lost."""
        if job.has_run:
            return True
        return not job.is_over and isinstance(fact, r.RunEnded) and fact.outcome == "succeeded"

    def _on_progress(self, event: r.RunProgressed) -> None:
        job = self.pool.jobs[event.job]
        if not job.has_run:
            return
        job.step = max(job.step, min(event.step, r.STEPS_MAX))
        is_size = 1 <= event.gpus <= len(self.pool.slots)
        is_time = SECONDS_MIN <= event.step_s <= SECONDS_MAX
        if event.iterations < MEASURED_MIN or not is_size or not is_time:
            return
        job.step_s[event.gpus] = MeasuredSpeed(event.step_s, event.iterations)
        if event.gpus != len(job.granted) or job.phase != "running":
            return
        used_s = job.decided_step_s(event.gpus)
        if used_s is None or abs(event.step_s - used_s) > SPEED_NEWS * used_s:
            self._call_for_speed(f"{self._name(job.id)} measured: {event.step_s:.3g} s per step")

    # Conclusions.

    def conclude(self, now_s: float, made: Callable[[], Decision] | None = None) -> ControlOutput:
        """Decide if something calls for it, and put into effect what devices allow.

        `made` returns the decision that was pending, if it was made meanwhile.
        """
        if made is not None:
            assert self._is_pending
            self._is_pending = False
            self._apply_decision(made(), now_s)
        else:
            pending = self._next_decision(now_s)
            if self._is_resting(now_s):
                return self.note()
            if pending is not None:
                self._apply_decision(pending.decide(), now_s)
        for number in list(self.pool.unsettled):
            self._settle(self.pool.jobs[number], now_s)
        if (first := first_move(self.pool)) is not None:
            self._aim(first.job, first.kept, first.job.attempt, now_s)
        self._leave_drained(now_s)
        return self.note()

    def pending_decision(self, now_s: float) -> PendingDecision | None:
        """Return the decision that something calls for, to be made elsewhere; None: nothing does.

        Until it is made and `conclude` is given it, only submits are taken: they change nothing
        that it reads.
        """
        pending = self._next_decision(now_s)
        self._is_pending = pending is not None
        return pending.without_later_jobs() if pending is not None else None

    def _is_resting(self, now_s: float) -> bool:
        return bool(self._awaited) and now_s < self._rest_until_s

    def _next_decision(self, now_s: float) -> PendingDecision | None:
        """Return the decision that something calls for."""
        assert not self._is_pending
        self._end_overdue(now_s)
        if self._is_resting(now_s):
            return None
        self._rest_until_s = 0.0
        if not (why := self._why or self._hint or self._due):
            return None
        self._why = self._hint = self._due = ""
        rules = (self.stability, why, now_s, self.site, self.registry)
        return PendingDecision(self.pool, *rules)

    def _apply_decision(self, outcome: Decision, now_s: float) -> None:
        if not isinstance(outcome, FailedDecision):
            self._retry_at_s = None
            self._add(outcome, now_s)
            return
        self._failed, self._retry_at_s = outcome, now_s + RETRY_S
        if outcome.record is not None:
            self._add(outcome.record, now_s)

    def _end_overdue(self, now_s: float) -> None:
        """Give up runs that never come to their first step."""
        for number in list(self.pool.starting):
            job = self.pool.jobs[number]
            due_s = start_due_s(self.pool, job)
            if due_s is not None and now_s >= due_s:
                within_s = start_within_s(job)
                self._add(r.StartOverdue(number, job.attempt, within_s), now_s)
                self._call(f"{self._name(number)} did not start in time")

    def note(self) -> ControlOutput:
        """Return what has happened since the last time, without drawing conclusions."""
        records, self._records = tuple(self._records), []
        instruct = frozenset(self.pool.touched)
        self.pool.touched.clear()
        dropped, self._dropped = tuple(self._dropped), []
        failed, self._failed = self._failed, None
        return ControlOutput(records, instruct, self.wake_at_s, dropped, failed)

    def _settle(self, job: JobState, now_s: float) -> None:
        """Give a job what it was decided to have, if that can be now."""
        if (
            job.is_over
            or self.pool.is_deaf(job)
            or (job.stop and not may_call_back(self.pool, job))
        ):
            return
        if job.has_run and (not job.target or not job.is_elastic):
            # What can't be resized is stopped, and started anew elsewhere.
            self._aim(job, (), job.attempt, now_s)
        elif job.has_run and must_stop_first(self.pool, job):
            self._aim(job, (), job.attempt, now_s)  # as what takes turns
        elif job.target and are_free(self.pool, job) and not must_wait(self.pool, job):
            self._aim(job, job.target, job.attempt + (not job.has_run), now_s)

    def _aim(
        self,
        job: JobState,
        slots: tuple[int, ...],
        attempt: int,
        now_s: float,
        because: str = "",
    ) -> None:
        lead = job.lead if job.lead is not None else self._best_lead(slots)
        precheck = bool(job.spec.launch.precheck) and not job.prechecked
        reason = because or (f"suspended by {job.held_by}" if job.suspended else job.reason)
        ours = (job.id, attempt, job.generation + 1, slots)
        self._add(r.Aimed(*ours, lead=lead, reason=reason, precheck=precheck), now_s)

    def _leave_drained(self, now_s: float) -> None:
        """Have jobs leave drained nodes, so that those can be switched off."""
        for job, node in led_from_drained(self.pool):
            self._adopt(job, f"node {node.name} drained", now_s)
        for job, kept, because in forced_moves(self.pool, now_s):
            self._aim(job, kept, job.attempt, now_s, because)
