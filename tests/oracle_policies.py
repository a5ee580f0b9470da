"""The scheduling rules of the oracle, in plain Python: see `tests.oracle`.

Nothing here is shared with the compiled kernels but what they promise. Each decision sorts the jobs
by the policy's order where there is not enough for all, and hands out GPUs until none is free. A
line kept sorted from one decision to the next would be faster under overload, and harder to trust:
against that, the compiled loop's lead with afs-l was about 16x instead of 22x.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace, merge
from itertools import chain
from math import inf
from operator import attrgetter
from typing import Final, TypeAlias

BY_ROW: Final = attrgetter("row")
BY_START: Final = attrgetter("last_start_s", "row")
SCAN_PAIRS: Final = 4_000_000  # AFS: "auto" plays a tournament where a scan would compare more

Rank: TypeAlias = "Callable[[Job, float], tuple[float, float]] | None"  # None: as submitted
Decision: TypeAlias = "tuple[list[Job], float]"  # who holds GPUs, by row; when to ask again


class Model:
    """A model's curve as jobs with these limits see it, one entry a share."""

    __slots__ = ("following", "long", "short", "speedup", "step_s")

    def __init__(self, step_s: list[float], useful: list[bool], gpus_min: int, gpus_max: int):
        width = len(step_s)
        self.step_s = step_s
        self.following = [0] * width  # the next share that is faster; 0: none
        self.short = [0.0] * width  # (p'-p)/p per added GPU
        self.long = [0.0] * width  # (p'-p)/p' per added GPU
        self.speedup = [0.0] * width  # rise of the speed-up over gpus_min, per added GPU
        following, base_s = 0, step_s[gpus_min]
        for share in range(width - 1, 0, -1):
            if 0 < following <= gpus_max:
                added = following - share
                now, then = 1.0 / step_s[share], 1.0 / step_s[following]
                self.following[share] = following
                self.short[share] = (then - now) / now / added if now else inf
                self.long[share] = (then - now) / then / added
                rise = base_s / step_s[following] - base_s / step_s[share]
                self.speedup[share] = rise / added
            if useful[share]:
                following = share


@dataclass(slots=True, eq=False)
class Job:
    """A job: what it is, what it holds, and where it stood when that last changed."""

    row: int
    submitted_s: float
    iterations: float  # left to do at moving_s
    model: Model
    need: int  # the least a policy gives it, if anything
    gpus: int = 0  # decided last
    share: int = 0  # being decided
    held: int = 0  # what it trains on; differs from gpus while a change is prepared
    step_s: float = inf
    moving_s: float = 0.0
    since_s: float = 0.0
    executed_s: float = 0.0  # time it had held GPUs, at since_s
    version: int = 0  # a predicted finish with an older one is void
    starts: int = 0
    first_start_s: float = inf
    last_start_s: float = inf
    preparing: int = 0
    ready_s: float = inf
    lease_end_s: float = 0.0  # AFS-P; Tiresias: the end of its turn
    rounds: int = 0  # AFS-P: leases it has had
    level: int = 0  # Tiresias: its queue, and where the counters of time started from
    old_executed_s: float = 0.0
    old_waited_s: float = 0.0
    all_iterations: float = 0.0  # when it arrived
    requested: int = 1
    cohort: tuple[int, int, int] = (0, 0, 0)  # its queue, user and request
    trained_s: float | None = None  # of a job that has ended, at the speed of its request

    def left(self, now_s: float) -> float:
        """Iterations left to do."""
        if not self.held:
            return self.iterations
        moved_s = now_s - self.moving_s
        if moved_s <= 0.0:
            return self.iterations
        left = self.iterations - moved_s / self.step_s
        return left if left > 0.0 else 0.0

    def executed(self, now_s: float) -> float:
        """Time it has held GPUs."""
        return self.executed_s + (now_s - self.since_s) if self.held else self.executed_s


class Crowd:
    """The jobs in the system at one instant."""

    def __init__(self, gpus: int, rank: Rank, seed: int):
        self.gpus, self.rank, self.seed = gpus, rank, seed
        self.now_s = 0.0
        self.pause_s = 0.0  # of a resize
        self.needed = 0  # by all together
        self.running: list[Job] = []  # by row
        self.waiting: list[Job] = []  # by row

    def enqueue(self, job: Job) -> None:
        """Put a job in line."""
        insort(self.waiting, job, key=BY_ROW)

    def dequeue(self, job: Job) -> None:
        """Take a job out of line."""
        del self.waiting[bisect_left(self.waiting, job.row, key=BY_ROW)]

    def in_order(self, running: list[Job]) -> Iterable[Job]:
        """The waiting jobs and these running ones, in the policy's order."""
        rank, now_s = self.rank, self.now_s
        if rank is None:
            return merge(running, self.waiting, key=BY_ROW)
        places = [(*rank(job, now_s), job.row, job) for job in chain(running, self.waiting)]
        return [place[3] for place in sorted(places)]

    def minimum(self) -> tuple[list[Job], int]:
        """Give jobs their need in the policy's order; say what stays free."""
        if self.needed > self.gpus:
            return fill(self.in_order(self.running), self.gpus)
        return self.everyone()

    def everyone(self) -> tuple[list[Job], int]:
        """Give every job its need; say what stays free."""
        granted = self.running + self.waiting
        for job in granted:
            job.share = job.need
        granted.sort(key=BY_ROW)
        return granted, self.gpus - self.needed


def fill(jobs: Iterable[Job], free: int, strict: bool = False) -> tuple[list[Job], int]:
    """Give each its need in this order; one that does not fit is skipped, or ends it if strict."""
    granted: list[Job] = []
    if free > 0:
        for job in jobs:
            need = job.need
            if need <= free:
                job.share = need
                granted.append(job)
                free -= need
                if not free:
                    break
            elif strict:
                break
    granted.sort(key=BY_ROW)
    return granted, free


class Arrival:
    """In order of submission."""

    rank = None


class Fifo(Arrival):
    """Running jobs stay; the others start as they came."""

    rigid = True

    def __init__(self, strict: bool):
        self.strict = strict

    def decide(self, crowd: Crowd) -> Decision:
        order = chain(crowd.running, crowd.waiting)
        return fill(order, crowd.gpus, self.strict)[0], inf


class Shortest:
    """SRTF and SRSF: least time left at the request first, or least GPU-time."""

    rigid = True

    def __init__(self, weigh: bool):
        self.weigh = weigh

    def rank(self, job: Job, now_s: float) -> tuple[float, float]:
        left_s = job.left(now_s) * job.model.step_s[job.need]
        return (left_s * job.need if self.weigh else left_s), 0.0

    def decide(self, crowd: Crowd) -> Decision:
        return crowd.minimum()[0], inf


class MaxMin(Arrival):
    """Round-robin in order of (last start, submission)."""

    rigid = False

    def decide(self, crowd: Crowd) -> Decision:
        turn = sorted(crowd.running, key=BY_START)
        granted, left = fill(chain(turn, crowd.waiting), crowd.gpus)
        turn += [job for job in granted if not job.gpus]
        while left > 0 and turn:
            again = []
            for job in turn:
                following = job.model.following[job.share]
                added = following - job.share
                if following and added <= left:
                    job.share = following
                    left -= added
                    again.append(job)
            turn = again
        return granted, inf


class MarginalGain(Arrival):
    """Optimus and Max-Speedup: every further step where it gains most."""

    rigid = False

    def __init__(self, by_time: bool):
        self.by_time = by_time

    def decide(self, crowd: Crowd) -> Decision:
        granted, left = crowd.minimum()
        if not left:
            return granted, inf
        heap = [
            (-self.gain(job, crowd.now_s), at, job)
            for at, job in enumerate(granted)
            if job.model.following[job.share]
        ]
        heapify(heap)
        while left > 0 and heap:
            _, at, job = heap[0]
            following = job.model.following[job.share]
            added = following - job.share
            if added <= left:
                job.share = following
                left -= added
                if job.model.following[following]:
                    heapreplace(heap, (-self.gain(job, crowd.now_s), at, job))
                    continue
            heappop(heap)
        return granted, inf

    def gain(self, job: Job, now_s: float) -> float:
        """What the job's next step gains per GPU."""
        model, share = job.model, job.share
        if not self.by_time:
            return model.speedup[share]
        left, following = job.left(now_s), model.following[share]
        saved_s = left * model.step_s[share] - left * model.step_s[following]
        return saved_s / (following - share)


class Contest:
    """The jobs that can use another GPU, by row, and the AFS duels between them.

    Of two jobs the longer one gets it if its (p'-p)/p' reaches the shorter one's (p'-p)/p, else the
    shorter one. Where lengths are not known, one that would win as the longer one wins; else "coin"
    flips one, and "keep" lets the challenger win if it is further below the share it holds.
    """

    def __init__(self, rule: str, granted: list[Job], crowd: Crowd):
        self.rule, self.coin = rule, crowd.seed
        self.jobs = [job for job in granted if job.model.following[job.share]]
        count = len(self.jobs)
        self.left = [job.left(crowd.now_s) for job in self.jobs]
        self.length, self.short, self.long = [0.0] * count, [0.0] * count, [0.0] * count
        self.below = [0.0] * count  # which part is missing of the share it holds
        for x in range(count):
            self.weigh(x)

    def weigh(self, x: int) -> None:
        """Bring entry x up to date."""
        job = self.jobs[x]
        model, share = job.model, job.share
        self.length[x] = self.left[x] * model.step_s[share]
        self.short[x], self.long[x] = model.short[share], model.long[share]
        self.below[x] = 1.0 - share / job.gpus if share < job.gpus else 0.0

    def feed(self, x: int, left: int) -> tuple[int, bool]:
        """Give entry x its next step if it fits; say what that took, and whether x stays."""
        job = self.jobs[x]
        following = job.model.following[job.share]
        added = following - job.share
        if added > left:
            return 0, False
        job.share = following
        if not job.model.following[following]:
            return added, False
        self.weigh(x)
        return added, True

    def drop(self, x: int) -> None:
        for column in (self.jobs, self.left, self.length, self.short, self.long, self.below):
            del column[x]

    def flip(self) -> bool:
        self.coin = self.coin * 48271 % 2147483647
        return self.coin > 1073741823

    def beats(self, x: int, champion: int) -> bool:
        """Tell whether x takes the next GPU from the champion."""
        short, long = self.short, self.long
        if self.rule == "length":
            if self.length[x] < self.length[champion]:
                return short[x] > long[champion]
            return long[x] >= short[champion]
        if long[x] >= short[champion]:
            return True
        if long[champion] >= short[x]:
            return False
        if self.rule == "coin":
            return self.flip()
        return self.below[x] > self.below[champion]

    def pass_by_length(self, start: int, champions: list[int]) -> int:
        """Find the champion of one pass. Up to `start` it goes as the last time."""
        length, short, long = self.length, self.short, self.long
        champion = champions[start - 1] if start else 0
        length_c, short_c, long_c = length[champion], short[champion], long[champion]
        for x in range(max(start, 1), len(length)):
            if (short[x] > long_c) if length[x] < length_c else (long[x] >= short_c):
                champion = x
                length_c, short_c, long_c = length[x], short[x], long[x]
            champions[x] = champion
        return champion

    def pass_by_coin(self) -> int:
        """Find the champion of one pass."""
        short, long, coin, champion = self.short, self.long, self.coin, 0
        short_c, long_c = short[0], long[0]
        for x in range(1, len(short)):
            if long[x] < short_c:
                if long_c >= short[x]:
                    continue
                coin = coin * 48271 % 2147483647
                if coin <= 1073741823:
                    continue
            champion, short_c, long_c = x, short[x], long[x]
        self.coin = coin
        return champion

    def pass_by_keep(self) -> int:
        """Find the champion of one pass."""
        short, long, below, champion = self.short, self.long, self.below, 0
        short_c, long_c = short[0], long[0]
        for x in range(1, len(short)):
            if long[x] < short_c and (long_c >= short[x] or below[x] <= below[champion]):
                continue
            champion, short_c, long_c = x, short[x], long[x]
        return champion

    def scan(self, left: int) -> None:
        """Hand out what is left, each step to the champion of one pass over all."""
        start, champions = 0, [0] * len(self.jobs)
        while left > 0 and self.jobs:
            if self.rule == "length":
                champion = start = self.pass_by_length(start, champions)
            elif self.rule == "coin":
                champion = self.pass_by_coin()
            else:
                champion = self.pass_by_keep()
            added, stays = self.feed(champion, left)
            left -= added
            if not stays:
                self.drop(champion)

    def tournament(self, left: int) -> None:
        """Hand out what is left by a knock-out tree, in which the earlier half defends."""
        leaves = 1
        while leaves < len(self.jobs):
            leaves *= 2
        tree = [-1] * leaves + list(range(len(self.jobs))) + [-1] * (leaves - len(self.jobs))
        for node in range(leaves - 1, 0, -1):
            self.play(tree, node)
        while left > 0 and (champion := tree[1]) >= 0:
            added, stays = self.feed(champion, left)
            left -= added
            node = leaves + champion
            if not stays:
                tree[node] = -1
            while node := node // 2:
                self.play(tree, node)

    def play(self, tree: list[int], node: int) -> None:
        """Let the winners of a node's two halves meet."""
        defender, challenger = tree[2 * node], tree[2 * node + 1]
        wins = defender < 0 or (challenger >= 0 and self.beats(challenger, defender))
        tree[node] = challenger if wins else defender


def grow(crowd: Crowd, granted: list[Job], left: int, how: tuple[str, str]) -> None:
    """Hand out what is left by AFS duels. `how`: the rule, and the form of contest."""
    rule, form = how
    pairs = left * (len(crowd.running) + len(crowd.waiting))
    if form == "tournament" or (form == "auto" and pairs > SCAN_PAIRS):
        Contest(rule, granted, crowd).tournament(left)
    elif left:
        Contest(rule, granted, crowd).scan(left)


class AfsL(Shortest):
    """The shortest get their minimum; every further step goes to the winner of the duels."""

    rigid = False

    def __init__(self, form: str):
        super().__init__(weigh=False)
        self.how = ("length", form)

    def decide(self, crowd: Crowd) -> Decision:
        granted, left = crowd.minimum()
        grow(crowd, granted, left, self.how)
        return granted, inf


class AfsP:
    """Leases in turn where GPUs are scarce, and duels that need no lengths."""

    rigid = False

    def __init__(self, lease_s: float, tie: str, form: str):
        self.lease_s, self.how = lease_s, (tie, form)

    def rank(self, job: Job, now_s: float) -> tuple[float, float]:  # noqa: ARG002
        return job.rounds, job.first_start_s

    def decide(self, crowd: Crowd) -> Decision:
        now_s = crowd.now_s
        kept: list[Job] = []  # its lease runs on: it keeps its share, and takes no more
        if crowd.needed < crowd.gpus:
            granted, left = crowd.everyone()
        else:
            left, expired = crowd.gpus, []
            for job in crowd.running:
                if job.lease_end_s > now_s:
                    job.share = job.gpus
                    left -= job.gpus
                    kept.append(job)
                else:
                    job.rounds += 1
                    expired.append(job)
            granted, left = fill(crowd.in_order(expired), left)
        if left:
            turn = sorted(granted, key=attrgetter("rounds", "first_start_s", "row"))
            grow(crowd, turn, left, self.how)
        for job in granted:
            job.lease_end_s = now_s + self.lease_s
        if kept:
            granted = sorted(granted + kept, key=BY_ROW)
        return granted, min((job.lease_end_s for job in granted), default=inf)
