"""Ranked Speedup of the oracle: see `tests.oracle`. No heap: each GPU is handed out by a scan."""

from math import inf

from tests.oracle_policies import BY_ROW, Crowd, Decision, Job, Shortest
from tests.oracle_residual import STICKY, Trained, common_hazards, residual_s, wake_in_s


class RankedSpeedup(Shortest):
    """The shortest get their minimum, every further step goes where weight times gain is most."""

    rigid = False

    def __init__(self, q: float):
        super().__init__(weigh=False)
        self.q = q

    def decide(self, crowd: Crowd) -> Decision:
        granted, left = crowd.minimum()
        weights = self.weights(granted, crowd.now_s)
        while left > 0:
            best, best_gain, best_step = None, 0.0, 0
            for job in sorted(granted, key=BY_ROW):
                gain, step = best_gain_of(job, left)
                gain *= weights[job.row]
                if gain > best_gain:
                    best, best_gain, best_step = job, gain, step
            if best is None:
                break
            best.share += best_step
            left -= best_step
        return granted, inf

    def weights(self, granted: list[Job], now_s: float) -> dict[int, float]:
        """(i^q - (i-1)^q)^(1/q) of each job, the i-th longest of those that run."""
        longest = sorted(granted, key=lambda job: (*self.rank(job, now_s), job.row), reverse=True)
        q = self.q
        return {
            job.row: (float(i) ** q - float(i - 1) ** q) ** (1.0 / q)
            for i, job in enumerate(longest, start=1)
        }


class LearnedSpeedup(RankedSpeedup):
    """The same, with lengths as learned from the jobs that have ended."""

    def __init__(self, q: float):
        super().__init__(1.0 + 0.4 * (q - 1.0))
        self.seen: dict[tuple[int, int, int], dict[int, Job]] = {}  # arrived jobs, by cohort
        self.guess_s: dict[int, float] = {}

    def rank(self, job: Job, now_s: float) -> tuple[float, float]:  # noqa: ARG002 - as others
        return self.guess_s[job.row], 0.0

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


def ranked_speedup(q: float, lengths: str) -> RankedSpeedup:
    """The policy with these parameters."""
    return LearnedSpeedup(q) if lengths == "learned" else RankedSpeedup(q)


def best_gain_of(job: Job, left: int) -> tuple[float, int]:
    """What a job gains most by, per GPU, of its next eight useful shares; and how many GPUs."""
    model, base_s = job.model, job.model.step_s[job.need]
    following, found, step = job.share, 0.0, 0
    for _ in range(8):
        following = model.following[following]
        if not following or following > job.share + left:
            break
        added = following - job.share
        gain = (base_s / model.step_s[following] - base_s / model.step_s[job.share]) / added
        if gain > found * (1.0 + 1e-12):
            found, step = gain, added
    return found, step
