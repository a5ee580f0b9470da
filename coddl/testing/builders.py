"""Small snapshots for tests: a row says what matters, the builder fills in the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coddl.core.cluster import Cluster
from coddl.core.jobs import ELASTIC, JobTable
from coddl.core.slots import Slots
from coddl.core.snapshot import Snapshot, empty_memory
from coddl.core.speed.places import Places
from coddl.core.speed.table import Speeds, speeds_of


@dataclass(frozen=True)
class JobRow:
    """A job of a test. Make one with `job`."""

    name: str
    step_s: tuple[float, ...]  # at 1, 2, … GPUs
    gpus_min: int
    gpus_max: int
    requested: int
    left: float
    holds: int
    submitted_s: float
    started_s: float | None
    executed_s: float
    pinned: bool
    priority: int
    changed_s: float
    settled: bool
    group: int
    sits: Mapping[int, int]
    spans: bool
    pause_s: float
    switch_s: float
    tier: int


def job(
    name: str,
    gpus_min: int = 1,
    gpus_max: int = 4,
    *,
    scales: float = 1.0,
    step_s: Sequence[float] | None = None,
    requested: int | None = None,
    left: float = 1000.0,
    holds: int = 0,
    submitted_s: float = 0.0,
    started_s: float | None = None,
    executed_s: float = 0.0,
    pinned: bool = False,
    priority: int = 0,
    changed_s: float = -np.inf,
    settled: bool = True,
    group: int = -1,
    sits: Mapping[int, int] | None = None,
    spans: bool = True,
    pause_s: float = 0.0,
    switch_s: float = np.nan,
    tier: int = ELASTIC,
) -> JobRow:
    """A job whose speed-up at n GPUs is 1 + scales x (n - 1), or whose step times are given.

    Where it `sits` is {island: GPUs}, and says what it holds.
    """
    steps = step_s or [1.0 / (1.0 + scales * gpus) for gpus in range(gpus_max)]
    sits = sits or {}
    holds = holds or sum(sits.values())
    if started_s is None and holds > 0:
        started_s = submitted_s
    return JobRow(
        name,
        tuple(steps),
        gpus_min,
        gpus_max,
        gpus_max if requested is None else requested,
        left,
        holds,
        submitted_s,
        started_s,
        executed_s,
        pinned,
        priority,
        changed_s,
        settled,
        group,
        sits,
        spans,
        pause_s,
        switch_s,
        tier,
    )


def snapshot_of(
    gpus: int | Cluster,
    jobs: Sequence[JobRow],
    *,
    now_s: float = 0.0,
    seed: int = 1,
    places: Places | None = None,
) -> Snapshot:
    """The snapshot of these jobs, submitted in the order given, on so many GPUs.

    On a cluster they sit somewhere. `places` says what a place costs; each job is a curve.
    """
    never = np.inf
    started = [never if row.started_s is None else row.started_s for row in jobs]
    table = JobTable.of(
        len(jobs),
        submitted_s=[row.submitted_s for row in jobs],
        tier=[row.tier for row in jobs],
        preemptible=[not row.pinned for row in jobs],
        curve=np.arange(len(jobs)),
        gpus_min=[row.gpus_min for row in jobs],
        gpus_max=[row.gpus_max for row in jobs],
        gpus_requested=[row.requested for row in jobs],
        gpus=[row.holds for row in jobs],
        remaining_iterations=[row.left for row in jobs],
        executed_s=[row.executed_s for row in jobs],
        attained_gpu_s=[row.executed_s * max(row.holds, 1) for row in jobs],
        starts=[int(row.started_s is not None) for row in jobs],
        priority=[row.priority for row in jobs],
        changed_s=[row.changed_s for row in jobs],
        settled=[row.settled for row in jobs],
        group=[row.group for row in jobs],
        spans=[row.spans for row in jobs],
        pause_s=[row.pause_s for row in jobs],
        switch_s=[row.switch_s for row in jobs],
        first_start_s=started,
        last_start_s=started,
    )
    in_places = isinstance(gpus, Cluster)
    return Snapshot(
        now_s,
        gpus if isinstance(gpus, Cluster) else Cluster.of(gpus),
        table,
        replace(speeds_from([row.step_s for row in jobs]), known_places=places),
        empty_memory(len(jobs)),
        seed,
        Slots.of([dict(row.sits) for row in jobs]) if in_places else None,
    )


def speeds_from(curves: Sequence[Sequence[float]]) -> Speeds:
    """A speed table with one curve per list of step times at 1, 2, … GPUs."""
    width = 1 + max((len(curve) for curve in curves), default=1)
    step_s = np.full((len(curves), width), np.inf)
    for row, curve in enumerate(curves):
        step_s[row, 1 : len(curve) + 1] = curve
        step_s[row, len(curve) + 1 :] = curve[-1]
    return speeds_of(tuple(map(str, range(len(curves)))), step_s, np.isfinite(step_s))
