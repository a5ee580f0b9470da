"""A pool that was never run: answers of a server about many jobs and GPUs, made by a seed.

1,000 real jobs are too heavy for a test of the page; what it is shown here has the same shapes,
since it is made of the server's own views.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from coddl.api import rest, rest_history

SLOTS: Final = 8  # of each node
NAMES: Final = ("bert", "resnet", "gpt", "lstm", "vit", "unet", "wav2vec", "dlrm", "t5", "clip")
USERS: Final = ("ana", "bo", "chen", "dina")


@dataclass
class InventedJob:
    """A job, its bounds, and how many GPUs it had from when on."""

    id: int
    name: str
    user: str
    submitted_s: float
    runs_s: float
    most: int
    least: int = 1
    shares: list[tuple[float, int]] = field(default_factory=list)
    first_slot: int = 0  # of those that it has at the end
    starting: int = 0  # of its GPUs, which it holds and does not use yet

    @property
    def gpus(self) -> int:
        return self.shares[-1][1] if self.shares else 0

    def is_active(self, at_s: float) -> bool:
        return self.submitted_s <= at_s < self.submitted_s + self.runs_s


class InventedPool:
    """`gpus` shared evenly among jobs that come and go; some tens of decisions per hour or more."""

    def __init__(
        self, now_s: float, *, gpus: int, active: int, decisions: int = 60, seed: int = 1
    ) -> None:
        self.now_s, self.gpus = now_s, gpus
        chance = random.Random(seed)
        self.since_s = now_s - 3_600.0
        self.jobs = list(self._jobs(chance, active))
        self.decisions: list[rest_history.DecisionView] = []
        times = sorted(chance.uniform(self.since_s, now_s) for _ in range(decisions - 1))
        for at_s in [self.since_s, *times, now_s]:
            self._decide(at_s)
        taken = 0
        for job in self.jobs:
            job.first_slot, taken = taken, taken + job.gpus

    def _jobs(self, chance: random.Random, active: int) -> Iterator[InventedJob]:
        ended = active // 2
        for number in range(1, active + ended + 1):
            begun_s = chance.uniform(self.since_s - 600.0, self.now_s - 60.0)
            runs_s = chance.uniform(120.0, 1_500.0) if number <= ended else 9_000.0
            name = f"{chance.choice(NAMES)}-{number}"
            most = chance.choice((2, 4, 8, 16))
            begun_s = min(begun_s, self.now_s - runs_s) if number <= ended else begun_s
            yield InventedJob(number, name, chance.choice(USERS), begun_s, runs_s, most)

    def _decide(self, at_s: float) -> None:
        """Give each active job as much as the others, the first submitted first."""
        active = [job for job in self.jobs if job.is_active(at_s)]
        shares = dict.fromkeys((job.id for job in active), 0)
        left = self.gpus
        while left and (hungry := [job for job in active if shares[job.id] < job.most]):
            for job in hungry[:left]:
                shares[job.id] += 1
            left -= min(left, len(hungry))
        changes = []
        for job in self.jobs:
            share = shares.get(job.id, 0)
            if share != job.gpus:
                reason = f"{share} of {self.gpus} GPUs, shared with {len(active) - 1} other jobs"
                changes.append(
                    rest_history.ShareChangeView(
                        job=job.id,
                        name=job.name,
                        gpus_before=job.gpus,
                        gpus=share,
                        reason=reason if share else "it ended",
                    )
                )
                job.shares.append((at_s, share))
        self.decisions.append(
            rest_history.DecisionView(
                number=100 + 7 * len(self.decisions),
                at_s=at_s,
                policy="afs-p",
                cause=f"{changes[0].name} was submitted" if changes else "periodic rebalance",
                changes=changes,
                waiting=sum(share == 0 for share in shares.values()),
            )
        )

    # What the server would answer.

    def timeline(self, job: int | None = None) -> rest_history.TimelineView:
        spans = [span for each in self.jobs if job in (None, each.id) for span in self._spans(each)]
        return rest_history.TimelineView(
            since_s=self.since_s,
            until_s=self.now_s,
            gpus=[rest_history.CapacityView(at_s=self.since_s, gpus=self.gpus)],
            spans=sorted(spans, key=lambda span: span.from_s),
        )

    def _spans(self, job: InventedJob) -> Iterator[rest_history.SpanView]:
        ends: list[float | None] = [at_s for at_s, _ in job.shares[1:]]
        for (from_s, gpus), to_s in zip(job.shares, [*ends, None], strict=False):
            if gpus:
                yield rest_history.SpanView(
                    job=job.id, name=job.name, gpus=gpus, from_s=from_s, to_s=to_s, paused_s=0.04
                )

    def decisions_page(self, limit: int) -> rest_history.DecisionsView:
        newest = self.decisions[::-1][:limit]
        return rest_history.DecisionsView(items=newest, next=newest[-1].number)

    def pool(self) -> rest.PoolView:
        used = sum(job.gpus for job in self.jobs)
        nodes = -(-self.gpus // SLOTS)
        return rest.PoolView(
            slots_total=self.gpus,
            slots_used=used,
            slots_free=self.gpus - used,
            nodes=nodes,
            nodes_up=nodes,
            jobs={},
            policy="afs-p",
            version="0",
            lease_s=120.0,
            started_s=self.since_s,
            is_ready=True,
            now_s=self.now_s,
        )

    def active_jobs(self) -> list[rest.JobView]:
        return [self.job(each) for each in reversed(self.jobs) if each.is_active(self.now_s)]

    def ended_jobs(self) -> list[rest.JobView]:
        return [self.job(each) for each in reversed(self.jobs) if not each.is_active(self.now_s)]

    def job(self, job: InventedJob) -> rest.JobView:
        is_over = not job.is_active(self.now_s)
        part = min(1.0, (self.now_s - job.submitted_s) / job.runs_s)
        begun_s = job.shares[0][0] if job.shares else None
        waits = not is_over and not job.gpus
        at_work = job.gpus - job.starting
        return rest.JobView(
            id=job.id,
            name=job.name,
            user=job.user,
            priority=0,
            tier="elastic",
            state="SUCCEEDED" if is_over else "PENDING" if waits else "RUNNING",
            gpus=at_work,
            gpus_min=job.least,
            gpus_max=job.most,
            nodes=[f"n{job.id % 97:03}"] if job.gpus else [],
            slots=list(range(job.first_slot, job.first_slot + at_work)),
            attempt=1,
            step=round(4_000 * part),
            steps=4_000,
            progress=part,
            eta_s=None if is_over or waits else job.runs_s * (1 - part),
            samples_per_s=120.0 * job.gpus,
            submitted_s=job.submitted_s,
            started_s=begun_s,
            ended_s=job.submitted_s + job.runs_s if is_over else None,
            runtime_s=self.now_s - begun_s if begun_s else 0.0,
            waited_s=begun_s - job.submitted_s if begun_s else 0.0,
            jct_s=job.runs_s if is_over else None,
            resizes=len(job.shares),
            restarts=0,
            last_pause_s=0.04,
            code="Resources" if waits else None,
            reason="needs 1 GPU, 0 free" if waits else "" if is_over else "an equal share",
            exit_code=0 if is_over else None,
            trouble=None,
            metrics={},
            saved_step=None,
            command=["python", "train.py"],
            failures=0,
            lead=None,
        )

    def explained(self, job: InventedJob) -> rest.ExplainView:
        return rest.ExplainView(
            job=self.job(job), sentence="", code=None, position=None, ahead=0, speeds=[], story=[]
        )

    def metrics(self) -> rest_history.MetricsView:
        """Give a loss of each step, and an accuracy of each epoch of 10 steps."""
        step = list(range(1, 36))
        at_s = [self.now_s - 36.0 + each for each in step]
        values = {
            "loss": [1 / each for each in step],
            "accuracy": [each // 10 / 4 for each in step],
        }
        series = [
            rest_history.SeriesView(name=name, step=step, at_s=at_s, value=list(value))
            for name, value in values.items()
        ]
        return rest_history.MetricsView(series=series)

    def nodes(self) -> rest.NodesView:
        owners = [job.id for job in self.jobs for _ in range(job.gpus)]
        owners += [0] * (self.gpus - len(owners))
        return rest.NodesView(
            items=[
                self._node(first // SLOTS, first, owners[first : first + SLOTS])
                for first in range(0, self.gpus, SLOTS)
            ]
        )

    def _node(self, number: int, first: int, owners: list[int]) -> rest.NodeView:
        jobs = sorted(set(owners) - {0})
        return rest.NodeView(
            name=f"n{number:03}",
            host=f"10.0.{number // 250}.{number % 250}",
            state="UP",
            is_up=True,
            is_silent=False,
            is_drained=False,
            is_awaited=False,
            lease_left_s=110.0,
            slots=[
                rest.SlotView(
                    slot=first + index,
                    index=index,
                    kind="h200",
                    gpu="NVIDIA H200",
                    memory_bytes=141 << 30,
                    job=owner or None,
                    jobs=[owner] if owner else [],
                    busy=0.5 + 0.05 * index if owner else 0.0,
                    memory_used_bytes=(20 + 12 * index) << 30 if owner else 0,
                )
                for index, owner in enumerate(owners)
            ],
            used=sum(owner > 0 for owner in owners),
            free=owners.count(0),
            jobs=jobs,
        )
