"""Tiresias-L of the oracle: see `tests.oracle`."""

from itertools import chain
from math import ceil, inf
from typing import Final

from tests.oracle_policies import Crowd, Decision, Job

SLACK_S: Final = 1e-3  # a crossing is due at the instant predicted for it


class TiresiasL:
    """Least attained GPU-time first, in queues; within one, in order of first start or in turns."""

    rigid = True

    def __init__(self, limits_gpu_s: list[float], promote: float, since_start: bool, turn_s: float):
        self.limits_gpu_s, self.promote, self.since_start = limits_gpu_s, promote, since_start
        self.turn_s = turn_s

    def rank(self, job: Job, now_s: float) -> tuple[float, float]:
        # Within a queue those that run come first, but not as the AFS evaluation counts.
        behind = 0.5 if not self.in_turn(job, now_s) and not self.since_start else 0.0
        if self.turn_s < inf:
            return job.level + behind, now_s - self.counted_from(job, now_s)
        return job.level + behind, job.first_start_s

    def in_turn(self, job: Job, now_s: float) -> bool:
        return job.gpus > 0 and not (self.turn_s < inf and job.lease_end_s <= now_s + SLACK_S)

    def decide(self, crowd: Crowd) -> Decision:
        now_s, before = crowd.now_s, crowd.running
        for job in before:
            self.demote(job, now_s)
        if self.promote > 0.0:
            for job in crowd.waiting:
                if job.level and self.up_at(job, now_s) <= now_s + SLACK_S:
                    job.level, job.old_executed_s = 0, job.executed(now_s)
        served = crowd.minimum()[0]
        for job in served:
            if not self.in_turn(job, now_s):
                job.lease_end_s = now_s + self.turn_s
        wake_s = min((self.down_at(job, now_s) for job in served), default=inf)
        if self.promote > 0.0:
            for job in chain(before, crowd.waiting):
                if not job.share and job.level:
                    wake_s = min(wake_s, self.up_at(job, now_s))
        if any(not job.share for job in chain(before, crowd.waiting)):
            wake_s = min(wake_s, *(job.lease_end_s for job in served), inf)
        return served, max(wake_s, now_s + SLACK_S)

    def counted_from(self, job: Job, now_s: float) -> float:
        """When the time that counts for its queue began, had it run without a break."""
        if self.since_start:
            return job.last_start_s if job.gpus else now_s
        return now_s - (job.executed(now_s) - job.old_executed_s)

    def down_at(self, job: Job, now_s: float) -> float:
        """When to look at a job that runs from now on."""
        level = 0 if self.since_start and not job.gpus else job.level
        if level >= len(self.limits_gpu_s):
            return inf
        limit_s = self.limits_gpu_s[level] / job.need
        if self.since_start:  # as the AFS evaluation looks: a GPU-second a GPU late
            limit_s = ceil(limit_s + (job.need - 1) / job.need)
        return self.counted_from(job, now_s) + limit_s

    def up_at(self, job: Job, now_s: float) -> float:
        """When a job that waits from now on is promoted."""
        executed_s = job.executed(now_s)
        waited_s = now_s - job.submitted_s - executed_s - job.old_waited_s
        return now_s + self.promote * (executed_s - job.old_executed_s) - waited_s

    def demote(self, job: Job, now_s: float) -> None:
        """Move a running job down as far as its GPU-time asks."""
        if self.since_start:
            job.level = 0
        ran_s = now_s - self.counted_from(job, now_s)
        while job.level < len(self.limits_gpu_s):
            if ran_s < self.limits_gpu_s[job.level] / job.need - SLACK_S:
                break
            if not job.level:
                job.old_waited_s = now_s - job.submitted_s - job.executed(now_s)
            job.level += 1
