"""Jobs come and go: who has how much follows from the policy, and everybody is told why."""

from pathlib import Path

import pytest

from coddl.core.pool import records as r
from tests.core.test_live_speeds import RESIZES_MAX, by_afs_p
from tests.e2e.conftest import Alone
from tests.e2e.deciding import quiet
from tests.e2e.pool import Pool
from tests.e2e.training import Training

pytestmark = pytest.mark.slow

STEPS = 500
SLOW_S = 0.05  # per pass


def check_shares(pool: Pool, *jobs: int) -> dict[int, int]:
    """At a quiet moment, compare what jobs hold with what the policy gives; tell the shares."""
    found = quiet(pool, *jobs)
    assert found.decided.policy.startswith("afs-p")
    assert found.shares == found.by_policy
    return found.shares


def check_explained(pool: Pool, *jobs: int) -> None:
    """Compare what `explain` says with the journal."""
    for job in jobs:
        records = pool.records()
        said = pool.explain(job)
        if pool.last_seq() != records[-1].seq:
            check_explained(pool, job)  # something has happened in between
            continue
        decided = [n.record for n in records if isinstance(n.record, r.Decided)]
        newest = [d for d in decided if job in d.targets or job in d.waiting][-1]
        if said["job"]["state"] in ("PENDING", "PREEMPTED"):
            assert said["code"] == newest.waiting[job].code
            assert said["sentence"].startswith(newest.waiting[job].sentence)
        else:
            assert said["code"] is None
            assert said["sentence"].startswith(newest.targets[job].reason)
            assert newest.why in said["sentence"]
        told = {line["number"] for line in said["story"]}
        changes = [n for n in records if isinstance(n.record, r.RunChanged)]
        assert told >= {n.seq for n in changes if n.record.job == job}  # type: ignore[union-attr]


def test_shares_follow_the_policy_as_jobs_come_and_go(tmp_path: Path, alone: Alone) -> None:
    with Pool(tmp_path) as pool:
        strict = Training(pool, "strict", steps=STEPS, pace_s=SLOW_S, args="--strict")
        assert check_shares(pool, strict.job) == {strict.job: 6}
        assert len(strict.view["nodes"]) == 3, "it spans all agents"

        scales = Training(pool, "scales", steps=STEPS, pace_s=SLOW_S, gpus="2..6")
        shares = check_shares(pool, strict.job, scales.job)
        assert min(shares.values()) > 1, "both scale"
        check_explained(pool, strict.job, scales.job)

        wide = Training(pool, "wide", steps=200, pace_s=SLOW_S, gpus="4..6")
        waits = pool.wait_job(wide.job, "a reason", lambda view: view["code"] is not None)
        assert waits["state"] == "PENDING"
        check_explained(pool, strict.job, scales.job, wide.job)

        scales.finish()
        pool.wait_job(wide.job, "its turn", lambda view: view["state"] == "RUNNING")
        check_explained(pool, strict.job, wide.job)
        wide.finish()

        check_shares(pool, strict.job)  # all, unless a busy machine has measured otherwise
        check_explained(pool, strict.job)
        view = strict.finish()
        assert view["resizes"] >= 3
        assert strict.hash == alone(STEPS)
        assert view["attempt"] == 1


@pytest.mark.matrix
def test_a_pool_finds_out_who_scales_and_obeys_another_policy(tmp_path: Path, alone: Alone) -> None:
    batch = ("--global-batch", "20")  # five workers have four passes each
    with Pool(tmp_path) as pool:
        scales = Training(
            pool, "scales", steps=STEPS, pace_s=SLOW_S, args=f"--strict {' '.join(batch)}"
        )
        stalls = Training(pool, "stalls", steps=STEPS, pace_s=0.0, args="--still-s 0.4")
        shares = check_shares(pool, scales.job, stalls.job)
        true = {
            scales.job: {n: -(-20 // n) * SLOW_S for n in range(1, 7)},
            stalls.job: {n: 0.4 for n in range(1, 7)},
        }
        assert shares == by_afs_p(6, true)
        for training in (scales, stalls):
            assert training.view["resizes"] <= RESIZES_MAX
            check_measured(pool, training.job)

        # The first has all, though 6 are hardly faster than 5: gather might leave one of them free.
        pool.cli("policy", "fifo", "--placement", "consolidate")
        pool.wait_size(scales.job, 6)
        pool.wait_job(stalls.job, "making room", lambda view: view["state"] == "PREEMPTED")
        check_explained(pool, scales.job, stalls.job)
        pool.cli("policy", "afs-p:tie=keep")
        stalls.go_on()
        assert scales.finish()["attempt"] == 1
        pool.cli("cancel", "stalls")
        pool.wait_end(stalls.job, "CANCELLED")
        for training in (scales, stalls):
            made = training.diary()
            assert made == list(range(len(made))), "no step was lost, and none made twice"
        assert scales.hash == alone(STEPS, *batch)


def check_measured(pool: Pool, job: int) -> None:
    """Compare the sizes that `explain` calls measured with those the job has trained at."""
    said = {row["gpus"]: row["source"] for row in pool.explain(job)["speeds"]}
    visited = {len(each.slots) for each in pool.told(r.RunChanged, job)}
    measured = {gpus for gpus, source in said.items() if source == "measured"}
    assert pool.job(job)["gpus"] in measured <= visited
    assert set(said.values()) <= {"measured", "interpolated", "assumed"}
