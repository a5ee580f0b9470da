"""Which jobs take turns: one-GPU jobs that got no GPU, on the slot of a job that got one. Pure.

A policy that wants it says how long a turn lasts (`turn_s`). It gives GPUs to jobs as ever; what is
left without is made a *guest* here, and the job that has the slot its *host*. The node's agent
switches turns by itself, so a decision is due only when jobs come and go.
"""

from collections import Counter
from collections.abc import Mapping, Set
from heapq import heapify, heappop, heappush
from math import inf, isfinite
from typing import Any, Final, NamedTuple

from coddl.core.pool.job import JobState
from coddl.core.pool.nodes import NodeState
from coddl.core.pool.parking import in_host_memory
from coddl.core.pool.records import Device, SlotTurns, Target
from coddl.core.pool.slot_sharing import lacks_turn, partners, turn_s_of_jobs
from coddl.core.pool.snapshot import stays_guest
from coddl.core.pool.state import Pool
from coddl.core.waiting import Waiting

TURNS_MAX: Final = 16  # jobs on a slot
CONTEXT_BYTES: Final = 768 << 20  # of CUDA, on the GPU, which a job keeps between its turns
CONTEXTS_PART: Final = 4  # all of them together take at most 1 / this of the GPU's memory
STATES_PER_GRADIENT: Final = 4  # weights, gradients and two moments
# Why a job may wait that takes turns instead. Its host is of its own priority, so that those of a
# higher one have other GPUs is no reason against.
CODES: Final = ("Resources", "CoolDown", "Priority")
NOT_YET: Final = ("pending", "preempted", "starting")  # phases of a host that others can't join


class TurnPlan(NamedTuple):
    """The jobs that take turns on the slots of others."""

    turn_s: float
    slots: Mapping[int, int]  # by guest
    users: Mapping[int, tuple[int, ...]]  # by slot: the host, then its guests
    refused: Mapping[int, str]  # by job: why it can't, though it may
    later: Mapping[int, int]  # by job: another one, with which it may once that has made a step

    def target(self, pool: Pool, job: int, why: str) -> Target:
        """Give a guest its slot, and say why; `why` is what made us decide."""
        slot = self.slots[job]
        names = [pool.jobs[each].spec.name for each in self.users[slot] if each != job]
        reason = (
            f"takes turns of {self.turn_s:g} s with {listed(names)} on 1 GPU: "
            f"more jobs than GPUs ({why})"
        )
        return Target((slot,), pool.in_units(reason), self.turn_s)

    def waiting(self, job: int) -> Waiting | None:
        """Say that a job waits for another one's first step; None if it does not."""
        if (host := self.later.get(job)) is None:
            return None
        until = f"until job {host} has made its first step"
        return Waiting("Resources", f"waits {until}, to take turns with it")


def listed(names: list[str]) -> str:
    """Write names in a row; of more than three, how many."""
    if len(names) > 3:
        return f"{names[0]} and {len(names) - 1} other jobs"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def turns_sentence(pool: Pool, job: JobState, *, is_brief: bool = False) -> str:
    """Return with which jobs a job takes turns, and how that goes; empty if with none."""
    others = partners(pool, job)
    if not others:
        return ""
    slot, turn_s = pool.slots[job.granted[0]], turn_s_of_jobs([job, *others])
    names = [f'job {each.id} "{each.spec.name}"' for each in others]
    many = f"{len(names)} other jobs" if is_brief and len(names) > 1 else listed(names)
    where = f" on 1 {pool.unit} of node {slot.node}: there are more jobs than {pool.unit}s"
    told = slot.turns or SlotTurns(None)
    parts = [f"takes turns of {turn_s:g} s with {many}{'' if is_brief else where}"]
    if (share := told.shares.get(job.id)) is not None and not is_brief:
        parts.append(f"had {share:.0%} of the slot's time since it shares it")
    if job.phase != "running" and lacks_turn(pool, job):  # it starts: this is what it waits for
        other = f"; job {told.job} has it" if told.job is not None else ""
        return "; ".join([f"waits for its turn{other}", *parts])
    if told.job is not None:
        has_it = "it" if told.job == job.id else f"job {told.job}"
        parts.append(f"{has_it} has the turn now")
    return "; ".join(parts)


def leaving_sentence(pool: Pool, job: JobState) -> str:
    """Say that a job which is to leave waits for its turn to save its state; empty if not."""
    if job.stop not in ("park", "retire") or not lacks_turn(pool, job):
        return ""
    told = pool.slots[job.granted[0]].turns or SlotTurns(None)
    other = f"; job {told.job} has the turn" if told.job is not None else ""
    return f"waits for its turn to save its state{other}"


def turn_s_of(policy: Any) -> float:  # Any: it may be a plug-in's, and say anything
    """Return how long a turn of a policy lasts; 0: jobs don't take turns."""
    turn_s = getattr(policy, "turn_s", 0.0)
    is_time = isinstance(turn_s, int | float) and isfinite(turn_s) and turn_s > 0.0
    return float(turn_s) if is_time else 0.0


def turns_max(device: Device) -> int:
    """Return how many jobs may take turns on a device; one of unknown memory is no GPU."""
    if not device.memory_bytes:
        return TURNS_MAX
    return max(2, min(TURNS_MAX, device.memory_bytes // CONTEXTS_PART // CONTEXT_BYTES))


def guest_counts(pool: Pool) -> Counter[int]:
    """Count the jobs that take turns on each slot as guests."""
    return Counter(slot for job in pool.live_jobs() if job.is_guest for slot in job.target)


def stand_ins(pool: Pool, placed: Mapping[int, tuple[int, ...]], among: Set[int]) -> dict[int, int]:
    """Name guests that get the slot they are on, in place of a guest of another slot.

    No guest has more claim than another. So where the host of a slot has left, one of its
    guests goes on there as it is, instead of one that would have to come from elsewhere.
    """
    guests: dict[int, list[JobState]] = {}
    for job in pool.live_jobs():
        if job.is_guest and job.id in among and job.id not in placed and job.granted == job.target:
            guests.setdefault(job.target[0], []).append(job)
    given = {slot for slots in placed.values() for slot in slots}
    found: dict[int, int] = {}
    for number, slots in sorted(placed.items()):
        job = pool.jobs[number]
        if not job.is_guest or number not in among or len(slots) != 1 or slots == job.target:
            continue
        here = [each for each in guests.get(slots[0], []) if each.priority == job.priority]
        if here and job.granted == job.target and job.target[0] in given:
            found[here[0].id] = number
    return found


def take_turns(
    pool: Pool,
    placed: Mapping[int, tuple[int, ...]],
    waits: Mapping[int, Waiting],
    turn_s: float,
    now_s: float,
) -> TurnPlan:
    """Find hosts for jobs that were not placed.

    A job stays where it is, if that may be; else it goes to where its workers are parked; else to
    the slot with the fewest jobs.
    """
    if not turn_s:
        return TurnPlan(0.0, {}, {}, {}, {})
    room = _Room(pool, placed)
    found: dict[int, int] = {}
    refused: dict[int, str] = {}
    later: dict[int, int] = {}
    able = [
        pool.jobs[number]
        for number, why in sorted(waits.items())
        if why.code in CODES and _may_be_guest(pool.jobs[number], now_s)
    ]
    for job in able:
        slot = _slot_of(job)
        if slot is not None and room.may_stay(job, slot) and room.fits(job, slot):
            found[job.id] = room.add(job, slot)
    left = [job for job in able if job.id not in found]
    hosts = {priority: _Hosts(room, priority) for priority in {job.priority for job in left}}
    for job in sorted(left, key=lambda job: (not job.parked, job.id)):
        if (slot := hosts[job.priority].find(job)) is not None:
            found[job.id] = room.add(job, slot)
        elif (host := hosts[job.priority].later) is not None:
            later[job.id] = host
        else:
            refused[job.id] = hosts[job.priority].why_not
    users = {slot: tuple(jobs) for slot, jobs in room.users.items() if len(jobs) > 1}
    return TurnPlan(turn_s, found, users, refused, later)


def state_bytes(job: JobState) -> int:
    """Return how much host memory a job's state needs; 0: that is not known yet."""
    measured_bytes = max(job.state_bytes, job.turn_bytes)
    return measured_bytes or STATES_PER_GRADIENT * job.gradient_bytes


def _slot_of(job: JobState) -> int | None:
    """Name the slot that a job has, or takes turns on."""
    slots = job.target if job.is_guest else () if job.stop else job.granted
    return slots[0] if len(slots) == 1 else None


def _may_be_guest(job: JobState, now_s: float) -> bool:
    least, _ = job.bounds(now_s)
    slot = _slot_of(job)
    return least == 1 and _is_able(job, slot) and now_s >= job.rest_until_s


def _is_able(job: JobState, slot: int | None) -> bool:
    """Return whether a job can take turns on a slot.

    Of a job that has started we know by `coddl.prepare`; one that is just starting there goes on.
    """
    is_checked = job.prechecked or not job.spec.launch.precheck
    is_known = job.prepared or job.starts == 0 or job.granted == (slot,)
    return job.spec.is_elastic and is_checked and is_known


class _Room:
    """The slots that are each given to one job, and what may be added to them."""

    def __init__(self, pool: Pool, placed: Mapping[int, tuple[int, ...]]) -> None:
        self._pool = pool
        self.users = {slots[0]: [job] for job, slots in placed.items() if len(slots) == 1}
        self._bytes: Counter[str] = Counter()  # by node: of the states of jobs that take turns
        for job in pool.live_jobs():
            if stays_guest(pool, job) and job.target[0] in self.users:
                self.add(job, job.target[0])

    def host_of(self, slot: int) -> JobState:
        """Return the job that a slot is given to."""
        return self._pool.jobs[self.users[slot][0]]

    def node_of(self, slot: int) -> NodeState:
        """Return the node of a slot."""
        return self._pool.nodes[self._pool.slots[slot].node]

    def add(self, job: JobState, slot: int) -> int:
        """Let a job take turns on a slot."""
        self._bytes[self.node_of(slot).name] += self._more_bytes(job, slot)
        self.users[slot].append(job.id)
        return slot

    def is_full(self, slot: int) -> bool:
        """Return whether as many jobs take turns on a slot as may."""
        return len(self.users[slot]) >= turns_max(self._pool.slots[slot].device)

    def may_stay(self, job: JobState, slot: int) -> bool:
        """Return whether a job that is on a slot may take turns there."""
        if slot not in self.users or self.is_full(slot):
            return False
        return self.host_of(slot).priority == job.priority and self._is_usable(slot)

    def _is_usable(self, slot: int) -> bool:
        state, node = self._pool.slots[slot], self.node_of(slot)
        is_usable = node.may_park and node.parking_bytes > 0
        is_usable &= not state.is_stuck and not state.others
        host = self.host_of(slot)
        is_led_here = host.lead in (None, node.name)  # its agent has them take turns
        return is_usable and is_led_here and _is_able(host, slot)

    def may_join(self, slot: int) -> bool:
        """Return whether jobs may come to a slot to take turns there: its host is at work."""
        if not self._is_usable(slot):
            return False
        host = self.host_of(slot)
        trains = host.phase in ("running", "resizing") and host.granted == (slot,)
        is_told = not self.node_of(slot).is_silent and not self._pool.is_deaf(host)
        return trains and host.is_elastic and not host.stop and is_told

    def may_join_later(self, slot: int) -> bool:
        """Return whether jobs may come to a slot once its host has made its first step."""
        host = self.host_of(slot)
        return self._is_usable(slot) and not host.stop and host.phase in NOT_YET

    def fits(self, job: JobState, slot: int) -> bool:
        """Return whether the states of all jobs that take turns on a node fit into its memory."""
        node = self.node_of(slot)
        return self._bytes[node.name] + self._more_bytes(job, slot) <= node.parking_bytes

    def _more_bytes(self, job: JobState, slot: int) -> int:
        # A host that is alone needs no room: it is never without its GPU.
        is_first = len(self.users[slot]) == 1
        return state_bytes(job) + (state_bytes(self.host_of(slot)) if is_first else 0)


class _Hosts:
    """The slots that jobs of a priority may come to, the ones with the fewest jobs first."""

    def __init__(self, room: _Room, priority: int) -> None:
        self._room = room
        slots = [slot for slot in room.users if room.host_of(slot).priority == priority]
        self._slots = {slot for slot in slots if room.may_join(slot)}
        self._queue = [(len(room.users[slot]), slot) for slot in self._slots]
        heapify(self._queue)
        self._refused_bytes = inf  # what is as large has no room either
        self.why_not = ""  # the last one found no slot
        hosts = (room.host_of(slot).id for slot in slots if room.may_join_later(slot))
        self.later = min(hosts, default=None)  # a job that others may join, but not yet

    def find(self, job: JobState) -> int | None:
        """Name the best slot for a job: where its workers are parked, or with the fewest jobs."""
        for slot in job.parked:
            is_open = slot in self._slots and not self._room.is_full(slot)
            if is_open and self._room.fits(job, slot):
                return slot
        return self._least_used(job) if state_bytes(job) < self._refused_bytes else None

    def _least_used(self, job: JobState) -> int | None:
        found, tried = None, []
        while self._queue and found is None:
            count, slot = heappop(self._queue)
            now = len(self._room.users[slot])
            if self._room.is_full(slot):
                continue
            if count != now:  # jobs have come since
                heappush(self._queue, (now, slot))
                continue
            tried.append((now, slot))
            found = slot if self._room.fits(job, slot) else None
        for each in tried:
            heappush(self._queue, each)
        if found is None:
            self._refused_bytes = state_bytes(job)
            self.why_not = self._why_full(tried[0][1]) if tried else ""
        return found

    def _why_full(self, slot: int) -> str:
        node = self._room.node_of(slot)
        memory = in_host_memory(node.parking_bytes)
        return f"it cannot take turns: node {node.name} has only {memory} for the states of jobs"
