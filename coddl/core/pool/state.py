"""The pool as a fold of its records: which job holds what, and every agent's orders. (D3)

A job *owns* a slot from the record that grants it until its processes were seen to be gone,
whatever happens in between. So no device ever has two owners, but for jobs that take turns on it.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, assert_never

from coddl.core.lifecycle import Phase
from coddl.core.pool import records as r
from coddl.core.pool.estimates import note_estimable
from coddl.core.pool.forgetting import forget_jobs
from coddl.core.pool.job import JobState, MeasuredSpeed, is_news
from coddl.core.pool.known_profiles import hear_training, learn_steps
from coddl.core.pool.memory_limits import MemoryLimit, with_limit, without_limits
from coddl.core.pool.node_orders import orders_for
from coddl.core.pool.nodes import EngineNodes, NodeState, SlotState
from coddl.core.pool.orders import Orders
from coddl.core.pool.parking import (
    end_parking,
    free_parked,
    leave_parked,
    may_park,
    park,
    stop_parking_on,
)
from coddl.core.pool.slot_sharing import check_owners, hold, may_join
from coddl.core.pool.timeline import Capacity, with_capacity
from coddl.core.snapshot import REFUSED_S
from coddl.core.speed.profile import TrainingProfile

LOSSES_MAX: Final = 5  # runs in a row that may be lost without a step


@dataclass(slots=True)
class Pool:
    """Everything that must survive a crash."""

    jobs: dict[int, JobState] = field(default_factory=dict)
    nodes: dict[str, NodeState] = field(default_factory=dict)
    slots: dict[int, SlotState] = field(default_factory=dict)
    engine: EngineNodes = field(default_factory=EngineNodes)
    policy: str = "afs-p:tie=keep,lease_h=0.25"
    policy_by: str = ""
    policy_since_s: float = 0.0
    placement: str = "gather"
    policy_trouble: r.Trouble | None = None  # why the last decision failed
    wake_at_s: float | None = None  # as the last decision asked
    wake_why: str = ""
    seed: int = 1
    next_job: int = 1
    next_slot: int = 0
    active: dict[int, None] = field(default_factory=dict)  # jobs that are not over, by number
    ended: dict[int, None] = field(default_factory=dict)  # jobs that are over, by their end
    forgotten: dict[Phase, int] = field(default_factory=dict)  # how many have left `jobs`, by end
    limits: list[MemoryLimit] = field(default_factory=list)  # that jobs have found, oldest first
    profiles: dict[str, TrainingProfile] = field(default_factory=dict)  # by signature, oldest first
    step_times: dict[str, dict[int, float]] = field(default_factory=dict)  # by training, then GPUs
    capacities: list[Capacity] = field(default_factory=list)  # oldest first
    unsettled: dict[int, None] = field(default_factory=dict)  # jobs that lack their target
    starting: dict[int, None] = field(default_factory=dict)  # jobs in that phase
    touched: set[str] = field(default_factory=set)  # nodes whose orders changed; emptied by readers

    def forget_soft(self) -> None:
        """Forget what no record tells: a pool read back must hear it anew."""
        self.touched.clear()
        for node in self.nodes.values():
            node.is_silent, node.back_s = False, 0.0
        for slot in self.slots.values():
            slot.others, slot.turns = "", None

    @property
    def unit(self) -> str:
        """What people call a slot here: a GPU, unless no slot is one."""
        kinds = (slot.device.kind for slot in self.slots.values())
        return "GPU" if not self.slots or any(kind != "cpu" for kind in kinds) else "CPU slot"

    def in_units(self, text: str) -> str:
        """Call slots in a sentence of ours what they are here; GPU-time stays."""
        return re.sub(r"\bGPU(?=s?\b(?!-))", self.unit, text)

    def live_jobs(self) -> Iterator[JobState]:
        """Return the jobs that are not over, in order of their numbers."""
        return (self.jobs[job] for job in self.active)

    def orders(self, node: str) -> Orders:
        """Return an agent's complete orders."""
        return orders_for(self, node)

    def kinds_of(self, job: JobState) -> list[str]:
        """Name the kinds of device that a job has."""
        return sorted({self.slots[slot].device.kind for slot in job.granted})

    def is_deaf(self, job: JobState) -> bool:
        """Return whether a job's lead can't be reached now: the job keeps what it has."""
        return job.lead is not None and self.nodes[job.lead].is_silent

    def is_of_lead(self, report: r.RunReported) -> bool:
        """Return whether a run's lead speaks; it may do so after the run has ended."""
        job, node = self.jobs.get(report.fact.job), self.nodes.get(report.node)
        if job is None or node is None or node.boot != report.boot:
            return False
        return (job.led_by, job.attempt) == (report.node, report.fact.attempt)

    def nodes_of(self, slots: Iterable[int]) -> tuple[str, ...]:
        """Name the nodes of slots, each once, in order."""
        return tuple(dict.fromkeys(self.slots[slot].node for slot in slots))

    def apply(self, record: r.Record, now_s: float) -> None:
        """Take in what has happened."""
        self._fold(record, now_s)
        match record:
            case r.Decided() | r.DecisionFailed():
                changed = list(record.targets)
            case r.NodeLost() | r.NodeLeft():
                changed = list(self.active | self.unsettled | self.starting)  # some end by it
            case _:
                changed = [job] if (job := getattr(record, "job", None)) is not None else []
        if isinstance(record, r.JobBounded | r.RunPrepared | r.NodeRecord):
            note_estimable(self, self.active if isinstance(record, r.NodeRecord) else changed)
        for number in changed:
            state = self.jobs[number]
            if state.is_over or set(state.target) == set(state.granted):
                self.unsettled.pop(number, None)
            else:
                self.unsettled[number] = None
            if state.phase == "starting":
                self.starting[number] = None
            else:
                self.starting.pop(number, None)

    def _fold(self, record: r.Record, now_s: float) -> None:
        if isinstance(record, r.NodeRecord):
            self._fold_nodes(record, now_s)
            gpus = sum(len(node.slots) for node in self.nodes.values() if node.is_up)
            self.capacities = with_capacity(self.capacities, gpus, now_s)
            return
        if isinstance(record, r.RunFact):
            self._hear(record, now_s)
            return
        match record:
            case r.JobSubmitted(job, spec):
                bounds = (spec.gpus_min, spec.gpus_max, spec.priority)
                self.jobs[job] = JobState(job, spec, now_s, *bounds)
                self.active[job] = None
                self.next_job = max(self.next_job, job + 1)
            case r.JobCancelled(job, by):
                self._cancel(self.jobs[job], by, now_s)
            case r.JobSuspended(job, by):
                self._suspend(self.jobs[job], by, now_s)
            case r.JobResumed(job, by):
                self.jobs[job].resume(by or "a user", now_s)
            case r.JobBounded(job, gpus_min, gpus_max):
                self.jobs[job].gpus_min, self.jobs[job].gpus_max = gpus_min, gpus_max
            case r.JobPrioritised(job, priority):
                self.jobs[job].priority = priority
            case r.PolicyChosen(policy, by, placement):
                if policy != self.policy:
                    for each in self.live_jobs():
                        each.memory = ()  # another policy would misread it
                self.policy, self.policy_by, self.policy_since_s = policy, by, now_s
                self.placement = placement or self.placement
            case r.JobsForgotten(jobs):
                forget_jobs(self, jobs)
            case r.SlotFreed(slot, job):
                self.slots[slot].owners.pop(job, None)
                free_parked(self, self.jobs[job], slot, now_s)
            case r.ParkingEnded(job):
                end_parking(self, self.jobs[job])
            case r.StartOverdue():
                self._give_up_start(record, now_s)
            case r.Decided() | r.DecisionFailed():
                self._decide(record, now_s)
            case r.Aimed():
                self._aim(record, now_s)
            case _:
                assert_never(record)

    def _fold_nodes(self, record: r.NodeRecord, now_s: float) -> None:
        match record:
            case r.NodeJoined():
                self._join(record)
            case r.NodeDrained(node):
                self.nodes[node].drain(record.by, record.within_s, now_s)
                stop_parking_on(self, node)
                self.touch([node])
            case r.NodeUndrained(node):
                self.nodes[node].undrain()
                self.touch([node])
            case r.NodeForgotten(node):
                self._forget(node)
            case r.NodeLeft(node, because):
                if node in self.nodes and self.nodes[node].is_up:
                    self._lose(node, because, now_s)
                self._forget(node)
            case r.EngineBounded(engine, bounds):
                self.engine.name, self.engine.bounds = engine, bounds
                self.engine.wanted, self.engine.wanted_because = 0, ""
            case r.NodeAcquired(node):
                self.engine.acquired[node] = now_s
            case r.NodesWanted(nodes, because):
                self.engine.wanted, self.engine.wanted_because = nodes, because
            case r.NodeLost(node, _, because):
                self._lose(node, because, now_s)
            case _:
                assert_never(record)

    # Users.

    def _cancel(self, job: JobState, by: str, now_s: float) -> None:
        job.cancelled = True
        because = f"cancelled by {by or 'a user'}"
        if not job.has_run:
            self._end(job, "cancelled", now_s, because)
            return
        job.move("stopping", now_s, because)
        job.stop, job.reason = "cancel", because
        self.touch([job.lead])

    def _suspend(self, job: JobState, by: str, now_s: float) -> None:
        job.suspended, job.held_by = True, by or "a user"
        job.waiting = None
        job.memory = job.memory[:REFUSED_S]  # it asks for no slots until it is resumed
        if not job.has_run:
            job.move("suspended", now_s, f"suspended by {job.held_by}")

    # Nodes.

    def _join(self, joined: r.NodeJoined) -> None:
        if joined.node not in self.nodes:
            self.nodes[joined.node] = NodeState(joined.node, joined.boot, joined.host, ())
        self.nodes[joined.node].join(joined)
        for slot, device in zip(joined.slots, joined.devices, strict=True):
            owners = self.slots[slot].owners if slot in self.slots else {}
            self.slots[slot] = SlotState(slot, joined.node, device, owners)
            self.next_slot = max(self.next_slot, slot + 1)
        self.touch([joined.node])

    def _lose(self, node: str, because: str, now_s: float) -> None:
        """Take note that nothing lives on a node: its devices have no owner any more."""
        node_state = self.nodes[node]
        node_state.lose(now_s)
        stop_parking_on(self, node)
        for slot in node_state.slots:
            self.slots[slot].owners.clear()
        for job in list(self.live_jobs()):
            left = tuple(slot for slot in job.granted if self.slots[slot].node != node)
            job.target = tuple(slot for slot in job.target if self.slots[slot].node != node)
            if not job.target and job.is_guest:
                job.turn_s = 0.0
                self.touch(self.nodes_of(left))
            if job.lead != node and left == job.granted:
                if node in self.nodes_of(job.serves):  # it was about to leave
                    self.touch([job.lead])
                continue
            self.touch([job.lead, *self.nodes_of(job.granted)])
            hold(self, job, left, now_s)
            job.generation += 1
            if job.lead == node:
                self._be_led(job, None)
            survives = bool(left) and (job.lead is not None or (job.is_elastic and not job.stop))
            if survives:
                self._arrive(job, now_s)  # if its lead had seen the loss before we did
            else:
                self._release(job, f"node {node} was lost: {because}", now_s)

    def _forget(self, node: str) -> None:
        if node in self.nodes:
            stop_parking_on(self, node)
        self.nodes.pop(node, None)
        self.engine.acquired.pop(node, None)
        self.slots = {n: slot for n, slot in self.slots.items() if slot.node != node}

    def _be_led(self, job: JobState, node: str | None) -> None:
        if job.lead is not None:
            self.nodes[job.lead].leads.pop(job.id, None)
        job.lead = node
        if node is not None:
            job.led_by = node
            self.nodes[node].leads[job.id] = None

    def _release(self, job: JobState, because: str, now_s: float) -> None:
        """End a job's run; it waits for the next one, or is over if that was asked for."""
        self._give_up_run(job, now_s)
        if job.cancelled:
            self._end(job, "cancelled", now_s, because)
        elif not job.fits:
            job.trouble = job.misfit
            self._end(job, "failed", now_s, job.misfit.because)
        elif job.suspended:
            job.move("stopping", now_s, because)
            job.move("suspended", now_s, because)
        else:
            job.move("preempted", now_s, because)

    def _give_up_run(self, job: JobState, now_s: float) -> None:
        self.touch([job.lead, *self.nodes_of(job.granted)])
        hold(self, job, (), now_s)
        self._be_led(job, None)
        job.stop, job.target, job.serves, job.unsaved = "", (), (), None
        job.turn_s = 0.0

    # Decisions.

    def _decide(self, decided: r.Decided | r.DecisionFailed, now_s: float) -> None:
        for number, target in decided.targets.items():
            job = self.jobs[number]
            if len(target.slots) != len(job.target):
                job.decided_s = now_s
            if target.turn_s != job.turn_s:
                self.touch(self.nodes_of(job.granted))
            job.target, job.turn_s, job.reason = target.slots, target.turn_s, target.reason
            job.on_trial = target.is_trial
            job.waiting, job.waiting_since_s = None, None
        for number, waiting in decided.waiting.items():
            job = self.jobs[number]
            if job.waiting is None:  # else it waits on, for another reason
                job.waiting_since_s = now_s
            job.waiting = waiting
        check_owners(self, (s for target in decided.targets.values() for s in target.slots))
        if isinstance(decided, r.DecisionFailed):
            self.policy_trouble = decided.trouble
            return
        self.policy_trouble, self.seed = None, decided.seed
        self.wake_at_s, self.wake_why = decided.wake_at_s, decided.wake_why
        for number, memory in decided.memory.items():
            self.jobs[number].memory = memory
        for row in decided.rows:
            job = self.jobs[row.job]
            job.row = row
            learn_steps(self, job, row.step_s)
            for gpus, step_s in row.step_s.items():
                if gpus not in job.step_s or is_news(job.step_s[gpus].step_s, step_s):
                    job.step_s[gpus] = MeasuredSpeed(step_s, 0)  # read back: count unknown
            if job.steps is not None and row.remaining is not None:
                job.step = max(job.step, job.steps - row.remaining)

    def _aim(self, aimed: r.Aimed, now_s: float) -> None:
        """Put a target into effect: from here on its devices are the job's."""
        job = self.jobs[aimed.job]
        self.touch([job.lead, aimed.lead, *self.nodes_of((*job.granted, *aimed.slots))])
        job.generation, job.reason = aimed.generation, aimed.reason
        if not aimed.slots:
            job.stop = "park" if may_park(self, job) else "retire"
            job.move("stopping", now_s, aimed.reason)
            return
        is_new = aimed.attempt != job.attempt
        if is_new:
            job.change, job.serves, job.unsaved = -1, (), None
            leave_parked(self, job, aimed)
        elif job.stop:
            job.serves, job.is_resumed = (), True  # called back; it trains nowhere now
        before = len(job.granted)
        job.attempt = aimed.attempt
        job.jobs_folder = self.nodes[aimed.lead].folder
        self._be_led(job, aimed.lead)
        job.precheck, job.stop = aimed.precheck, ""
        if is_new:  # a lead that gets other slots before it has begun still adopts
            job.adopt = aimed.adopt
        for slot in aimed.slots:
            owners = self.slots[slot].owners
            assert slot in job.granted or may_join(self, job, slot), f"slot {slot} has {owners}"
            owners[job.id] = False
        hold(self, job, aimed.slots, now_s)
        check_owners(self, job.granted)
        if is_new:
            job.move("starting", now_s, aimed.reason)
            return
        job.resizes += before not in (0, len(aimed.slots))
        job.trials += job.on_trial and before != len(aimed.slots)
        if job.phase != "starting":
            job.move("resizing", now_s, aimed.reason)
            self._arrive(job, now_s)  # if it was called back before it had moved

    def _arrive(self, job: JobState, now_s: float) -> None:
        """Move a job back to running once it serves on all its granted slots."""
        if job.phase == "resizing" and set(job.serves) == set(job.granted):
            job.move("running", now_s, f"running on {len(job.serves)}")

    # Runs.

    def _hear(self, fact: r.RunFact, now_s: float) -> None:
        job = self.jobs[fact.job]
        match fact:
            case r.RunPrepared() | r.RunProfiled():
                hear_training(self, job, fact)
            case r.SliceDidNotFit():
                self._raise_least(job, fact, now_s)
            case r.LossMeasured(_, _, step, loss):
                job.log_loss(step, loss)
            case r.RunStepped(_, _, step):
                job.losses, job.step = 0, max(job.step, step)
                if step > 0 and job.proven_s is None:
                    job.proven_s = now_s
                if (
                    step > 0
                    and (fit := job.memory_limit(self.kinds_of(job), job.pass_samples)) is not None
                ):
                    self.limits = without_limits(self.limits, fit)
                if job.phase == "starting":
                    job.decided_s = 0.0  # a start is no resize: nothing has to cool down
                    job.move("running", now_s, "first step made" if step else "started")
            case r.RunChanged():
                job.regroup(fact)
                self._arrive(job, now_s)
            case r.RunStalled(_, _, step):
                job.step = max(job.step, step)
            case r.RunUnsaved(_, _, step, trouble):
                job.unsaved, job.step = trouble, max(job.step, step)
            case r.RunEnded():
                self._end_run(job, fact, now_s)
            case _:
                assert_never(fact)

    def _raise_least(self, job: JobState, fact: r.SliceDidNotFit, now_s: float) -> None:
        """Remember on how many GPUs a job fits in memory; stop it if it may not have them."""
        kinds = self.kinds_of(job)
        because = f"{fact.because} on {', '.join(kinds)}" if kinds else fact.because
        if fact.evidence != "predicted":
            job.fit_attempt = fact.attempt
        if fact.evidence != "tried":
            job.gpus_expected, job.expected_because = fact.gpus_min, because
            return
        job.gpus_fit, job.fit_because = fact.gpus_min, because
        if (found := job.memory_limit(kinds, fact.samples)) is not None:
            self.limits = with_limit(self.limits, found)
        if not job.fits and not job.stop:
            job.stop, job.reason = "retire", job.misfit.because
            job.move("stopping", now_s, job.reason)
            self.touch([job.lead])

    def _end_run(self, job: JobState, ended: r.RunEnded, now_s: float) -> None:
        """Draw a run's conclusion; its slots keep their owner until they are seen to be empty."""
        lacks_memory = ended.outcome == "requeue" and ended.attempt == job.fit_attempt
        if ended.outcome in ("failed", "lost", "requeue") and not lacks_memory:
            job.rest(ended.step, now_s)
        job.step = max(job.step, ended.step)
        job.exit_code, job.trouble = ended.exit_code, ended.trouble
        words = ended.trouble.sentence if ended.trouble else f"its run was {ended.outcome}"
        match ended.outcome:
            case "succeeded":
                job.left_early = ended.left_early
                words = job.left_early_sentence or "finished"
                self._end(job, "succeeded", now_s, words)
            case "failed" if not job.cancelled:
                job.failures += 1
                if job.failures > job.spec.max_failures:
                    self._end(job, "failed", now_s, words)
                else:
                    self._release(job, f"failed, will be retried: {words}", now_s)
            case "lost" if not job.cancelled:
                # One that has trained goes on when there is room.
                job.losses += not (ended.refused and job.step)
                if job.losses >= LOSSES_MAX:
                    self._end(
                        job, "failed", now_s, f"{job.losses} attempts in a row were lost: {words}"
                    )
                else:
                    self._release(job, words, now_s)
            case "prechecked" if not job.cancelled and not job.suspended:
                job.prechecked = True
                self._give_up_run(job, now_s)
                job.move("pending", now_s, "precheck passed")
            case _:
                job.prechecked |= ended.outcome == "prechecked"
                if ended.outcome == "requeue":
                    more = f"it needs {job.fit_sentence}"
                    words = (
                        more if lacks_memory else "exited with code 75, which asks for a restart"
                    )
                self._release(job, job.reason if job.stop else words, now_s)
                if ended.outcome == "retired":
                    park(self, job, ended)

    def _give_up_start(self, overdue: r.StartOverdue, now_s: float) -> None:
        """End a run that never came to its first step; it is tried on devices that are empty."""
        job = self.jobs[overdue.job]
        for slot in job.granted:
            self.slots[slot].owners[job.id] = True
        self._end_run(job, overdue.end(job.step), now_s)

    def _end(self, job: JobState, phase: Phase, now_s: float, because: str) -> None:
        self._give_up_run(job, now_s)
        job.move(phase, now_s, because)
        job.ended_s, job.waiting, job.reason = now_s, None, because
        end_parking(self, job)
        job.forget_decisions()
        self.active.pop(job.id, None)
        self.ended[job.id] = None

    def touch(self, nodes: Iterable[str | None]) -> None:
        """Note that the orders of these nodes are others now."""
        for name in dict.fromkeys(nodes):
            if name is not None and name in self.nodes:
                self.nodes[name].version += 1
                self.touched.add(name)
