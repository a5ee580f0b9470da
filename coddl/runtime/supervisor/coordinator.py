"""Decides when a job's group of workers changes, and into what. Pure: events in, commands out.

A *slot* is a place where one worker can run. A *worker* is a number that grows and is never used
twice. *Members* train together; *joiners* were started for a group that does not stand yet. Each
attempt at a new group is a *generation*, numbered, and the newest target always wins. (D4)

```
            TargetSet             all arrived               all ready              all swapped
 ┌─► steady ─────────► starting ───────────────► building ─────────────► swapping ─────────┐
 │     ▲                Start, Stop    Prepare      │         Commit        │ a worker lost  │
 │     └── newer target, LoopEnded ◄────────────────┘ Cancel                │                │
 │                                                                          ▼                │
 │   a member lost, whatever the phase: Cancel what is uncommitted ─► regrouping (Regroup) ──┤
 │   GroupBroken, whatever the phase: ─► broken ── it is known who died, or 0.5 s ─┘          │
 └───────────────────────────────────────────────────────────────────────────────────────────┘
```
- Everything before `Commit` is free to cancel: the old group trains on. What comes after `Commit`
  is never cancelled by a target; the next generation begins once the last worker has swapped.
- A lone change starts at once. Only after joiners were stopped unused do new starts wait, ever
  longer while the storm lasts; the newest target at that time counts. Shrinking never waits.
- After a loss, workers that have the state regroup; if none surely has it, those that may. They
  compare how far they are, so a word under way when a peer died costs nothing. `Regroup` revokes
  whatever was prepared or committed before it.
- Stale and repeated words die by worker and generation number. (C6)
"""

from collections import Counter
from collections.abc import Iterable
from statistics import fmean
from typing import assert_never

from coddl.runtime.supervisor.generations import (
    TRANSITIONS,
    Cancel,
    Command,
    Commit,
    Event,
    GroupBroken,
    GroupPlan,
    GroupWorker,
    LoopEnded,
    Phase,
    Prepare,
    Regroup,
    StartWorker,
    StopWorker,
    SurvivorsFound,
    TargetSet,
    TimerFired,
    WorkerArrived,
    WorkerLost,
    WorkerReady,
    WorkerStepped,
    WorkerSwapped,
    WorkerUnready,
    in_ring,
)
from coddl.runtime.vnodes import shares

BROKEN_WAIT_S = 0.5  # how long a broken group waits to hear which worker died
BUILD_WAIT_S = 300.0  # how long workers may take to build a group: NCCL's first one takes long
ATTEMPTS_MAX = 5  # builds or regroups in a row that may fail before we say so
STARTS_MAX = 3  # workers in a row that may die on a slot before they arrive
CHURN_CALM_S = 1.0
CHURN_WAIT_S = 0.02
CHURN_WAIT_MAX_S = 0.5
REBALANCE_EVERY_S = 10.0
REBALANCE_GAIN = 0.15


class Coordinator:
    """Leads one job's workers from group to group; see the module's picture."""

    def __init__(self) -> None:
        self.phase: Phase = "steady"
        self.members: tuple[int, ...] = ()  # whose loop is not over; the oldest first
        self.generation = 0  # the newest number given out
        self.step = 0  # the highest that was reported
        self.parts: int | None = None  # of the global batch, once a worker has arrived
        self.workers_max: int | None = None
        self.failed_slots: set[int] = set()  # those of the target that we gave up on
        self.hopeless = False  # members can't form a group; they train on if the phase is steady
        self.ending = False
        self.wake_at_s: float | None = None
        self._target: tuple[int, ...] = ()
        self._workers: dict[int, GroupWorker] = {}  # members and joiners alive
        self._next_worker = 0
        self._running: GroupPlan | None = None  # the members' own
        self._plan: GroupPlan | None = None  # prepared, committed or being regrouped into
        self._ready: set[int] = set()
        self._unready: set[int] = set()
        self._swapped: set[int] = set()
        self._losses: Counter[int] = Counter()  # by slot, since a worker arrived there
        self._failed_builds = 0  # since a generation was completed
        self._regroups = 0  # without a loss to explain them, since a step was made
        self._churns = 0
        self._churned_at_s = self._start_after_s = float("-inf")
        self._changed_at_s = float("-inf")

    @property
    def is_settled(self) -> bool:
        """Tell whether the group stands, and is not about to end."""
        return self.phase == "steady" and not self.ending

    def handle(self, event: Event, now_s: float) -> list[Command]:
        """Take in what happened; say what is to be done."""
        match event:
            case TargetSet(slots):
                return self._on_target(slots, now_s)
            case WorkerArrived():
                return self._on_arrived(event, now_s)
            case WorkerReady(worker, generation):
                return self._on_answer(worker, generation, self._ready, now_s)
            case WorkerUnready(worker, generation):
                return self._on_answer(worker, generation, self._unready, now_s)
            case WorkerSwapped(worker, generation, step):
                return self._on_swapped(worker, generation, step, now_s)
            case WorkerStepped(worker, step, pass_s):
                return self._on_stepped(worker, step, pass_s, now_s)
            case GroupBroken(worker, generation):
                return self._on_broken(worker, generation, now_s)
            case WorkerLost(worker):
                return self._on_lost(worker, now_s)
            case LoopEnded(worker):
                return self._on_loop_ended(worker, now_s)
            case SurvivorsFound():
                return self._on_found(event, now_s)
            case TimerFired():
                return self._on_woke(now_s)
            case _:
                assert_never(event)

    # Events.

    def _on_target(self, slots: tuple[int, ...], now_s: float) -> list[Command]:
        target = tuple(dict.fromkeys(slots))
        if self.ending or (target == self._target and not self.failed_slots and not self.hopeless):
            return []
        was_stuck = self.hopeless and self.phase in ("broken", "regrouping")
        self._target = target
        self.failed_slots.clear()
        self.hopeless, self._failed_builds, self._regroups = False, 0, 0
        if was_stuck:
            return self._regroup(now_s, lost=False)
        # In any other phase it is remembered: that phase's end begins anew.
        return self._begin(now_s) if self.phase in ("steady", "starting") else []

    def _on_arrived(self, arrived: WorkerArrived, now_s: float) -> list[Command]:
        if (worker := arrived.worker) not in self._joiners():
            return []
        self._workers[worker].arrived = True
        self._losses.pop(self._workers[worker].slot, None)
        if self.parts is None:
            self.parts = arrived.parts
            self.workers_max = arrived.workers_max or arrived.parts
        return self._gather(now_s) if self.phase == "starting" else []

    def _on_answer(
        self, worker: int, generation: int, answers: set[int], now_s: float
    ) -> list[Command]:
        plan = self._plan
        if plan is None or generation != plan.generation or worker not in plan.to:
            return []
        if self.phase == "regrouping" and answers is self._unready:
            return self._regroup(now_s, lost=False)
        if self.phase != "building" or worker in self._ready | self._unready:
            return []
        answers.add(worker)
        if self._ready | self._unready != set(plan.to):
            return []
        if self._unready:
            return self._retry_build(now_s)
        if set(self._wanted()) != self._slots_of(plan.members):
            return [*self._cancel(), *self._begin(now_s)]
        self._move("swapping")
        if plan.fresh:
            self._begin_afresh()
        step = 0 if plan.fresh else self.step + 1
        return [Commit(plan.generation, step, to=tuple(sorted(self._concerned())))]

    def _on_swapped(self, worker: int, generation: int, step: int, now_s: float) -> list[Command]:
        plan = self._plan
        if plan is None or generation != plan.generation or worker not in self._concerned():
            return []
        if self.phase not in ("swapping", "broken", "regrouping"):
            return []
        self.step = max(self.step, step)
        if worker in plan.members:
            self._swapped.add(worker)
            self._workers[worker].has_state = True
        else:
            self._forget(worker)  # it has left; its exit is no loss
        return self._settle_if_swapped(now_s)

    def _on_stepped(
        self, worker: int, step: int, pass_s: float | None, now_s: float
    ) -> list[Command]:
        if worker not in self._workers:
            return []
        if step > self.step:
            self.step, self._regroups = step, 0
        if pass_s is not None:
            self._workers[worker].pass_s.append(pass_s)
        return self._rebalance(now_s) if self.phase == "steady" else []

    def _on_broken(self, worker: int, generation: int, now_s: float) -> list[Command]:
        current = {self._running.generation} if self._running else set()
        if self._plan and self.phase in ("swapping", "regrouping"):
            # Some may have swapped and others not; a group that is given up has no say.
            current = {self._plan.generation} | (current if self.phase == "swapping" else set())
        if self.phase == "broken" or generation not in current or worker not in self._concerned():
            return []
        commands = self._fall_back()
        self._move("broken")
        self.wake_at_s = now_s + BROKEN_WAIT_S
        return commands

    def _on_lost(self, worker: int, now_s: float) -> list[Command]:
        if worker not in self._workers:
            return []
        mattered = worker in self._concerned()
        gone = self._forget(worker)
        if mattered:
            return self._regroup(now_s, lost=True)
        if not gone.arrived:
            self._losses[gone.slot] += 1
        given_up = self._losses[gone.slot] >= STARTS_MAX
        if given_up:
            del self._losses[gone.slot]
            self.failed_slots.add(gone.slot)
        if self.phase == "building":
            return self._retry_build(now_s)
        if self.phase == "starting":
            return self._begin(now_s) if given_up else self._gather(now_s)
        return []  # Another is started once the group stands.

    def _on_loop_ended(self, worker: int, now_s: float) -> list[Command]:
        if worker not in self._concerned():
            return []
        self.ending = True
        swapped = worker in self._swapped
        self._forget(worker)  # it has no more part in any group, and its exit is no loss
        match self.phase:
            case "steady" | "starting":
                return self._begin(now_s)
            case "building":
                return [*self._cancel(), *self._begin(now_s)]
            case "swapping" if not swapped:
                # All change after the same step, or none: the loop ended before it.
                return [*self._cancel(), *self._begin(now_s)]
            case "regrouping" if not swapped:
                return [*self._dismiss(self._joiners(), now_s), *self._regroup(now_s, lost=True)]
            case "swapping":
                return self._settle_if_swapped(now_s)
            case "regrouping" | "broken":
                stops = self._dismiss(self._joiners(), now_s)
                return [*stops, *self._settle_if_swapped(now_s)]
            case _:
                assert_never(self.phase)

    def _on_found(self, found: SurvivorsFound, now_s: float) -> list[Command]:
        """Make one group of those an earlier lead has left, before anything else."""
        assert not self._workers, "found too late"
        self.generation = max(self.generation, found.generation)
        self._next_worker = max(self._next_worker, found.newest_worker + 1)
        self.parts, self.workers_max = found.parts, found.workers_max or found.parts
        for each in found.survivors:
            self._workers[each.worker] = GroupWorker(each.slot, True, each.has_state)
            self.step = max(self.step, each.step)
        self.members = tuple(sorted(self._workers))
        return self._regroup(now_s, lost=True) if self.members else []

    def _on_woke(self, now_s: float) -> list[Command]:
        if self.wake_at_s is None or now_s < self.wake_at_s:
            return []
        self.wake_at_s = None
        match self.phase:
            case "broken":
                return self._regroup(now_s, lost=False)
            case "building":
                return self._give_up_silent(now_s)
            case "starting":
                return self._gather(now_s)
            case _:
                return []  # what it was meant for has happened

    # Toward the target.

    def _begin(self, now_s: float) -> list[Command]:
        """Set out from the group that stands toward the newest target, if it is not there."""
        self._plan = None
        self._changed_at_s = now_s
        if self.phase != "steady":
            self._move("steady")
        reached = set(self._wanted()) == self._slots_of(self.members)
        if self.ending or self.hopeless or reached:
            return self._dismiss(self._joiners(), now_s)
        self.generation += 1
        self._move("starting")
        return self._gather(now_s)

    def _gather(self, now_s: float) -> list[Command]:
        """Stop joiners that are not wanted, start missing ones; if all are there, prepare."""
        wanted = self._wanted()
        commands = self._dismiss(
            [w for w in self._joiners() if self._workers[w].slot not in wanted], now_s
        )
        taken = self._slots_of(self._workers)
        missing = [slot for slot in wanted if slot not in taken]
        self.wake_at_s = None
        if missing and now_s < self._start_after_s:
            self.wake_at_s = self._start_after_s
            return commands
        for slot in missing:
            commands.append(StartWorker(self._next_worker, slot))
            self._workers[self._next_worker] = GroupWorker(slot)
            self._next_worker += 1
        if all(self._workers[worker].arrived for worker in self._joiners()):
            commands.append(self._prepare(now_s))
        return commands

    def _prepare(self, now_s: float) -> Prepare:
        wanted = self._wanted()
        joiners = self._joiners()
        stay = [worker for worker in self.members if self._workers[worker].slot in wanted]
        moves = self.members and joiners and not stay
        bridge = (self.members[0], *joiners) if moves else ()
        members = (*stay, *joiners)
        # A suspension builds nothing, but all must know that it is one: the main worker saves.
        to = tuple(sorted({*members, *bridge})) or self.members
        plan = self._make_plan("building", members, bridge, to)
        self.wake_at_s = now_s + BUILD_WAIT_S
        return Prepare(plan)

    def _give_up_silent(self, now_s: float) -> list[Command]:
        """Build without joiners that never answered; members are asked again."""
        assert self._plan is not None
        silent = set(self._plan.to) - self._ready - self._unready
        stops = self._dismiss(silent & set(self._joiners()), now_s)
        return [*stops, *self._retry_build(now_s)]

    def _retry_build(self, now_s: float) -> list[Command]:
        """Cancel a generation that can't be built, and try again; not for ever."""
        self._failed_builds += 1
        if self._failed_builds >= ATTEMPTS_MAX:
            self._failed_builds = 0
            new_slots = set(self._wanted()) - self._slots_of(self.members)
            self.failed_slots |= new_slots
            self.hopeless = not new_slots
        return [*self._cancel(), *self._begin(now_s)]

    def _settle_if_swapped(self, now_s: float) -> list[Command]:
        """Take the new group for the current one once all its workers work in it."""
        if self.phase == "broken" or not self._concerned() <= self._swapped:
            return []
        assert self._plan is not None
        self._running = self._plan
        self.members = tuple(sorted(self._concerned()))
        self._failed_builds, self.hopeless = 0, False
        return self._begin(now_s)

    def _rebalance(self, now_s: float) -> list[Command]:
        """Deal the global batch anew if the measured speeds make that worth a generation."""
        if self.ending or self.hopeless or now_s - self._changed_at_s <= REBALANCE_EVERY_S:
            return []
        self._changed_at_s = now_s  # a look costs something too, and speeds change slowly
        members = in_ring(self.members, self._workers)
        pass_s = [s for w in members if (s := self._workers[w].usual_pass_s) is not None]
        if len(pass_s) < len(members):
            return []
        assert self._running is not None
        slowest_now_s, slowest_then_s = (
            max(count * s for count, s in zip(counts, pass_s, strict=True))
            for counts in (self._running.counts, self._counts(members))
        )
        if slowest_then_s >= slowest_now_s * (1 - REBALANCE_GAIN):
            return []
        self.generation += 1
        self._move("starting")
        return [self._prepare(now_s)]

    # After a failure.

    def _fall_back(self) -> list[Command]:
        """Drop what is under way; workers that have or may have the state need a group now."""
        if self.phase == "building":
            return self._cancel()
        self.members = tuple(sorted(self._concerned()))
        return []

    def _regroup(self, now_s: float, *, lost: bool) -> list[Command]:
        """Make one group of all living workers that have or may have the state, at once."""
        commands = self._fall_back()
        if not self.members:
            self.hopeless = False
            return [*commands, *self._begin(now_s)]
        if not lost:  # a loss leaves fewer to regroup: that ends by itself
            if self._regroups >= ATTEMPTS_MAX:
                self.hopeless = True
                return commands
            self._regroups += 1
        if sure := {w for w in self.members if self._workers[w].has_state}:  # may be in a pass
            commands += self._dismiss(set(self.members) - sure, now_s)  # others join after it
        stay = self._plan.members if self._plan else self.members
        by_worth = sorted(
            self.members, key=lambda w: (not self._workers[w].has_state, w not in stay, w)
        )
        # Leavers and joiners together may be more than there is work for.
        commands += self._dismiss(by_worth[self.workers_max :], now_s)
        self.generation += 1
        return [*commands, Regroup(self._make_plan("regrouping", self.members, (), self.members))]

    # Bookkeeping.

    def _move(self, phase: Phase) -> None:
        assert phase in TRANSITIONS[self.phase], f"{self.phase} -> {phase} is not allowed"
        self.phase = phase
        self.wake_at_s = None

    def _make_plan(
        self, phase: Phase, members: tuple[int, ...], bridge: tuple[int, ...], to: tuple[int, ...]
    ) -> GroupPlan:
        """Put the newest generation under way, and forget the answers to the one before."""
        self._move(phase)
        members = in_ring(members, self._workers)
        fresh = bool(members) and not any(self._workers[w].has_state for w in (*members, *bridge))
        if fresh and phase == "regrouping":
            self._begin_afresh()
        self._ready.clear()
        self._unready.clear()
        self._swapped.clear()
        self._plan = GroupPlan(self.generation, members, self._counts(members), bridge, fresh, to)
        return self._plan

    def _begin_afresh(self) -> None:
        self.step = 0  # it begins from an image, which may be older than what was reported

    def _cancel(self) -> list[Command]:
        plan, self._plan = self._plan, None
        assert plan is not None
        told = {*plan.to, *(self.members if self.phase == "swapping" else ())}
        return [Cancel(plan.generation, to=tuple(sorted(told & self._workers.keys())))]

    def _dismiss(self, workers: Iterable[int], now_s: float) -> list[Command]:
        """Stop workers; the more often in a row, the longer until new ones may start."""
        stops: list[Command] = []
        for worker in sorted(workers):
            self._forget(worker)
            stops.append(StopWorker(worker))
        if stops:
            calm = now_s - self._churned_at_s >= CHURN_CALM_S
            self._churns = 0 if calm else min(self._churns + 1, 10)
            self._churned_at_s = now_s
            self._start_after_s = now_s + min(CHURN_WAIT_S * 2**self._churns, CHURN_WAIT_MAX_S)
        return stops

    def _forget(self, worker: int) -> GroupWorker:
        self.members = tuple(member for member in self.members if member != worker)
        return self._workers.pop(worker)

    def _joiners(self) -> list[int]:
        return sorted(self._workers.keys() - set(self.members))

    def _concerned(self) -> set[int]:
        """Return the workers of the current group and, once it is committed, of the next."""
        next_ = self._plan.members if self._plan and self.phase == "swapping" else ()
        return {*self.members, *next_} & self._workers.keys()

    def _wanted(self) -> tuple[int, ...]:
        """Name the slots to run on: the target's, as far as they work and there is work for them.

        Where all of them failed, the job stays where it is: that is no wish to suspend it.
        """
        slots = tuple(slot for slot in self._target if slot not in self.failed_slots)
        if self._target and not slots:
            return tuple(self._workers[worker].slot for worker in self.members)
        return slots[: self.workers_max]

    def _slots_of(self, workers: Iterable[int]) -> set[int]:
        return {self._workers[worker].slot for worker in workers}

    def _counts(self, members: tuple[int, ...]) -> tuple[int, ...]:
        """Deal the global batch by measured speed; a worker of unknown speed counts as average."""
        if not members:
            return ()
        assert self.parts is not None
        pass_s = [self._workers[worker].usual_pass_s for worker in members]
        known_s = [s for s in pass_s if s is not None]
        average_s = fmean(known_s) if known_s else 1.0
        return shares(self.parts, [average_s if s is None else s for s in pass_s])
