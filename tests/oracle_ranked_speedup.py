"""Ranked Speedup of the oracle: see `tests.oracle`. No heap: each GPU is handed out by a scan."""

from math import inf

from tests.oracle_policies import BY_ROW, Crowd, Decision, Job, Shortest


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
