"""Ranked Speedup of the oracle: see `tests.oracle`. No heap: each GPU is handed out by a scan."""

from collections.abc import Callable, Mapping
from math import inf, log, sqrt
from typing import Any

from tests.oracle_policies import BY_ROW, Crowd, Decision, Job, Shortest
from tests.oracle_residual import STICKY, Trained, common_hazards, residual_s, wake_in_s


class RankedSpeedup(Shortest):
    """The shortest get their minimum, every further step goes where weight times gain is most."""

    rigid = False
    only_minima = False  # where jobs outnumber GPUs

    def __init__(self, q: float, calm: float, rho: float):
        super().__init__(weigh=False)
        self.q, self.calm, self.rho = q, calm, rho

    def decide(self, crowd: Crowd) -> Decision:
        granted, left = crowd.minimum()
        jobs = len(crowd.running) + len(crowd.waiting)
        if jobs > crowd.gpus and not self.rho and not self.only_minima:
            left = self.serve_crowd(crowd, granted, 2.0 * jobs / crowd.gpus)
            granted = [job for job in granted if job.share]
        weights = self.weights(granted, crowd.now_s)
        if self.rho:
            left = self.towards_equal(crowd, granted, left)
        if all_can_grow(granted, left):
            return granted, inf
        counts = worth_in(jobs, crowd.gpus)
        if counts is not log:  # speed-ups are relative to the minimum
            for job in granted:
                weights[job.row] /= damped(1.0 / job.model.step_s[job.need])
        prices = {job.row: self.price(job, crowd, counts) for job in granted}
        while left > 0:
            best, best_gain, best_step = None, 0.0, 0
            for job in sorted(granted, key=BY_ROW):
                gain, step = best_gain_of(job, left, prices[job.row], counts)
                gain *= weights[job.row]
                if gain > best_gain:
                    best, best_gain, best_step = job, gain, step
            if best is None:
                break
            best.share += best_step
            left -= best_step
        return granted, inf

    def serve_crowd(self, crowd: Crowd, granted: list[Job], delayed: float) -> int:
        """Give the shortest the share that delays all least; return what is left."""
        left = crowd.gpus
        for job in sorted(granted, key=lambda job: (*self.rank(job, crowd.now_s), job.row)):
            job.share = share_in_crowd(job, delayed, left)
            left -= job.share
        return left

    def weights(self, granted: list[Job], now_s: float) -> dict[int, float]:
        """(i^q - (i-1)^q)^(1/q) of each job, the i-th longest of those that run."""
        longest = sorted(granted, key=lambda job: (*self.rank(job, now_s), job.row), reverse=True)
        q = self.q
        return {
            job.row: (float(i) ** q - float(i - 1) ** q) ** (1.0 / q)
            for i, job in enumerate(longest, start=1)
        }

    def price(self, job: Job, crowd: Crowd, counts: Callable[[float], float]) -> float:
        """What a resize costs: a part of what the present speed counts, or the pause if more."""
        if not self.calm or not job.gpus:
            return 0.0
        step_s = job.model.step_s
        lost = max(self.calm, crowd.pause_s / self.within_s(job, crowd.now_s))
        return lost if counts is log else lost * damped(1.0 / step_s[job.gpus])

    def within_s(self, job: Job, now_s: float) -> float:
        """In which a resize has to pay off."""
        return max(1.0, min(600.0, job.left(now_s) * job.model.step_s[job.gpus]))

    def towards_equal(self, crowd: Crowd, granted: list[Job], left: int) -> int:
        """Let each grow until it is at most `rho` times slower than with an equal share."""
        equal = crowd.gpus // max(1, len(crowd.running) + len(crowd.waiting))
        for job in sorted(granted, key=BY_ROW):
            step_s, shares = job.model.step_s, [job.share]
            while 0 < job.model.following[shares[-1]] <= equal:
                shares.append(job.model.following[shares[-1]])
            to = next(x for x in shares if step_s[x] <= self.rho * step_s[shares[-1]])
            if to - job.share <= left:
                left -= to - job.share
                job.share = to
        return left


def share_in_crowd(job: Job, delayed: float, left: int) -> int:
    """Of the first eight useful shares, the one that delays this and `delayed` others least."""
    shares = [job.need]
    while len(shares) < 8 and job.model.following[shares[-1]]:
        shares.append(job.model.following[shares[-1]])
    present = max(job.need, job.gpus)

    def delay_s(share: int) -> float:
        others = (1.0 + delayed * share) * job.model.step_s[share]
        return others if share == present else others * 1.33

    return min((share for share in shares if share <= left), key=delay_s, default=0)


def all_can_grow(granted: list[Job], left: int) -> bool:
    """Let all grow as far as they can, if there is enough for that."""
    largest = {}
    for job in granted:
        share = job.share
        while job.model.following[share]:
            share = job.model.following[share]
        largest[job.row] = share
    if sum(largest[job.row] - job.share for job in granted) > left:
        return False
    for job in granted:
        job.share = largest[job.row]
    return True


class LearnedSpeedup(RankedSpeedup):
    """The same, with lengths as learned from the jobs that have ended."""

    only_minima = True

    def __init__(self, q: float, calm: float, rho: float):
        super().__init__(1.0 + 0.4 * (q - 1.0), calm, rho)
        self.seen: dict[tuple[int, int, int], dict[int, Job]] = {}  # arrived jobs, by cohort
        self.guess_s: dict[int, float] = {}

    def rank(self, job: Job, now_s: float) -> tuple[float, float]:  # noqa: ARG002 - as others
        return self.guess_s[job.row], 0.0

    def within_s(self, job: Job, now_s: float) -> float:  # noqa: ARG002 - as others
        return 600.0

    def decide(self, crowd: Crowd) -> Decision:
        present = crowd.running + crowd.waiting
        for job in sorted(present, key=BY_ROW):
            self.seen.setdefault(job.cohort, {})[job.row] = job
        trained = {
            row: Trained(trained_s(job, crowd.now_s), job.trained_s is not None)
            for cohort in self.seen.values()
            for row, job in cohort.items()
        }
        common = common_hazards(trained.values())
        for job in present:
            rows = list(self.seen[job.cohort])
            guess_s = residual_s([trained[row] for row in rows], rows.index(job.row), common)
            guess_s *= job.model.step_s[job.need] / job.model.step_s[job.requested]
            self.guess_s[job.row] = guess_s / STICKY if job.gpus else guess_s
        granted, _ = super().decide(crowd)
        return granted, self.wake_s(crowd, granted)

    def wake_s(self, crowd: Crowd, granted: list[Job]) -> float:
        """When the first job leaves its level, if there are too few GPUs."""
        if crowd.needed <= crowd.gpus:
            return inf
        waits_s = [
            wake_in_s(
                trained_s(job, crowd.now_s),
                job.model.step_s[job.share] / job.model.step_s[job.requested],
            )
            for job in granted
        ]
        return crowd.now_s + min(waits_s, default=inf)


def trained_s(job: Job, now_s: float) -> float:
    """How long a job has trained, in seconds at the speed of its request."""
    if job.trained_s is not None:
        return job.trained_s
    return (job.all_iterations - job.left(now_s)) * job.model.step_s[job.requested]


def ranked_speedup(params: Mapping[str, Any]) -> RankedSpeedup:  # Any: as in `tests.oracle`
    """The policy with these parameters."""
    policy = LearnedSpeedup if params.get("lengths") == "learned" else RankedSpeedup
    return policy(params.get("q", 1.5), params.get("calm", 0.05), params.get("rho", 0.0))


def damped(speed: float) -> float:
    """A speed to the power of 7/8."""
    return sqrt(speed * sqrt(speed * sqrt(speed)))


def worth_in(jobs: int, gpus: int) -> Callable[[float], float]:
    """What a speed counts: its logarithm where there are over six GPUs per job."""
    return log if 6 * jobs < gpus else damped


def best_gain_of(
    job: Job, left: int, price: float, counts: Callable[[float], float]
) -> tuple[float, int]:
    """What a job gains most by, per GPU, of its next eight useful shares; and how many GPUs."""

    def worth(share: int) -> float:
        prices = 0 if share == job.gpus else 1 if share > job.gpus else 2
        return counts(1.0 / model.step_s[share]) - prices * price

    model = job.model
    following, found, step = job.share, 0.0, 0
    for _ in range(8):
        following = model.following[following]
        if not following or following > job.share + left:
            break
        added = following - job.share
        gain = (worth(following) - worth(job.share)) / added
        if gain > found * (1.0 + 1e-12):
            found, step = gain, added
    return found, step
