"""What happens to jobs in virtual time, checked by hand."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import coddl
from coddl.core.allocation import Allocation, because
from coddl.core.errors import UserError
from coddl.core.policies.policy import Policy
from coddl.core.snapshot import Snapshot
from coddl.sim.run import Run
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, Watch, run_case
from coddl.sim.world import FINISH, SHARE, SWAP, Reconfigure
from coddl.testing.builders import speeds_from
from coddl.traces.trace import Trace


def trace_of(jobs: Sequence[tuple[float, float]], most: int = 4) -> Trace:
    """Jobs (submitted, iterations) of a model that does one iteration a GPU-second."""
    speeds = speeds_from([[1.0 / gpus for gpus in range(1, most + 1)]])
    submitted_s, iterations = map(np.array, zip(*jobs, strict=True))
    ones, zeros = np.ones(len(jobs), np.int64), np.zeros(len(jobs), np.int64)
    return Trace(
        name="t",
        speeds=speeds,
        submitted_s=submitted_s * 1.0,
        curve=zeros,
        iterations=iterations * 1.0,
        gpus_requested=ones * most,
        gpus_min=ones,
        gpus_max=ones * most,
        queue=zeros,
        user=zeros,
    )


def scripted(shares: Sequence[Sequence[int]]) -> Policy:
    """A policy that gives these shares by job id, decision after decision; the last for good."""
    left = [list(row) for row in shares]

    def decide(snapshot: Snapshot) -> Allocation:
        row = left.pop(0) if len(left) > 1 else left[0]
        given = np.array([row[job] for job in snapshot.jobs.id], np.int64)
        return Allocation(given, because(given == 0, "Held", "the script says so"))

    return decide


def run(
    jobs: Sequence[tuple[float, float]], shares: Sequence[Sequence[int]], cost: Reconfigure
) -> Run:
    """Run a script until the first job has finished: those that get nothing would wait for ever."""
    watch = Watch()
    case = Case(
        RunKey("script", 4), scripted(shares), trace_of(jobs), reconfigure=cost, keep_events=True
    )
    return run_case(case, replace(watch, progress=lambda done: watch.stop.set() if done else None))


# A job with 100 iterations; two others, which never get GPUs, make the policy decide again.
JOBS = [(0, 100), (10, 1e6), (12, 1e6)]


def swaps_of(run: Run, watched: int = 0) -> list[tuple[float, int]]:
    return [(t, gpus) for t, kind, job, gpus in _events(run) if kind == SWAP and job == watched]


def test_no_cost() -> None:
    got = run(JOBS, [[1, 0, 0], [2, 0, 0]], Reconfigure())
    assert got.finish_s[0] == 10.0 + 90.0 / 2


def test_a_stall_is_added_at_the_start_and_at_every_change() -> None:
    got = run(JOBS, [[1, 0, 0], [2, 0, 0]], Reconfigure("stall", 0.0, 5.0))
    # Nothing until 5, 5 iterations until 10, nothing until 15, then 95 at 2.
    assert got.finish_s[0] == 15.0 + 95.0 / 2


def test_stalls_of_a_burst_add_up() -> None:
    got = run(JOBS, [[1, 0, 0], [2, 0, 0], [3, 0, 0]], Reconfigure("stall", 0.0, 5.0))
    assert got.finish_s[0] == pytest.approx(20.0 + 95.0 / 3)


def test_in_series_a_job_stands_still_until_all_its_targets_are_carried_out() -> None:
    got = run(JOBS, [[1, 0, 0], [2, 0, 0], [3, 0, 0]], Reconfigure("serial", 0.0, 5.0))
    assert swaps_of(got) == [(5.0, 1), (20.0, 3)]
    assert got.finish_s[0] == pytest.approx(20.0 + 95.0 / 3)


def test_while_a_share_is_prepared_the_old_one_trains_on() -> None:
    got = run(JOBS, [[1, 0, 0], [2, 0, 0]], Reconfigure("concurrent", 8.0, 3.0))
    # Starts at 8; from 10 on 2 GPUs are prepared; swapped at 18 with 10 done, still until 21.
    assert swaps_of(got) == [(8.0, 1), (18.0, 2)]
    assert got.finish_s[0] == 21.0 + 90.0 / 2


def test_a_newer_target_cancels_a_preparation_at_no_cost() -> None:
    got = run(JOBS, [[1, 0, 0], [2, 0, 0], [1, 0, 0]], Reconfigure("concurrent", 8.0, 3.0))
    assert swaps_of(got) == [(8.0, 1)]
    assert got.finish_s[0] == 108.0  # started at 8 and was never paused
    assert got.cancelled_preparations == 1


def test_without_cancelling_the_stale_target_is_carried_out_first() -> None:
    got = run(JOBS, [[1, 0, 0], [2, 0, 0], [1, 0, 0]], Reconfigure("uncancelled", 8.0, 3.0))
    assert swaps_of(got) == [(8.0, 1), (18.0, 2), (26.0, 1)]
    assert got.cancelled_preparations == 0


def test_a_burst_of_targets_costs_one_swap() -> None:
    jobs = [(0, 100), *((10 + i, 1e6) for i in range(7))]
    shares = [[1 + i % 3, *[0] * 7] for i in range(8)]
    got = run(jobs, shares, Reconfigure("concurrent", 8.0, 3.0))
    assert len(swaps_of(got)) == 2  # the start, and the last target
    assert swaps_of(got)[-1] == (24.0, 2)


def test_gpus_are_never_held_twice_while_shares_move() -> None:
    """A grower waits for the GPUs that a shrinking job still trains on."""
    results = coddl.simulate(
        "tiresias", "afs-p", gpus=32, reconfigure="concurrent:45,2", events=True
    )
    held: dict[int, int] = {}
    for _, kind, job, gpus in _events(results.runs[0]):
        if kind == SWAP or (kind in (SHARE, FINISH) and gpus == 0):
            held[job] = gpus
            assert sum(held.values()) <= 32


def test_jobs_that_end_together_end_at_one_event() -> None:
    got = run([(0, 20), (0, 20)], [[2, 2]], Reconfigure())
    assert got.finish_s.tolist() == [10.0, 10.0]
    assert got.event_count == 2


def test_late_in_a_long_trace_a_finish_still_ends_its_job() -> None:
    got = run([(1e9, 1e-3)], [[1]], Reconfigure())
    assert got.finished.all()


@pytest.mark.parametrize("mode", ["stall", "serial", "concurrent", "uncancelled"])
def test_a_cost_of_nothing_changes_nothing(mode: str) -> None:
    free = coddl.simulate("tiresias", "afs-l", gpus=64)["avg_jct_s"][0]
    cost = f"{mode}:0" if mode in ("stall", "serial") else f"{mode}:0,0"
    assert coddl.simulate("tiresias", "afs-l", gpus=64, reconfigure=cost)["avg_jct_s"][0] == free


def _events(run: Run) -> list[tuple[float, int, int, int]]:
    assert run.events is not None
    return list(zip(*(column.tolist() for column in run.events), strict=True))


def test_a_run_that_cannot_end_is_given_up_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that ends before a share is prepared: nobody ever trains."""
    monkeypatch.setattr("coddl.sim.simulate.PATIENCE", 10_000)
    with pytest.raises(UserError) as raised:
        coddl.simulate("tiresias", "afs-p:lease_h=0.05", gpus=32, reconfigure="concurrent:300,1")
    assert "none of" in raised.value.because
    assert "lease_h" in raised.value.try_
