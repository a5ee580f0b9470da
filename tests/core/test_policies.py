"""What each policy gives whom, case by case."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from coddl.core.registry import policy_from
from coddl.testing import job, snapshot_of
from coddl.testing.builders import JobRow
from coddl.traces.files import packaged_speeds


@dataclass(frozen=True)
class Case:
    gpus: int
    jobs: Sequence[JobRow]
    want: dict[str, int]
    policy: str = "afs-l"
    now_s: float = 0.0

    @property
    def got(self) -> dict[str, int]:
        snapshot = snapshot_of(self.gpus, self.jobs, now_s=self.now_s)
        shares = policy_from(self.policy)(snapshot).gpus
        return {row.name: int(gpus) for row, gpus in zip(self.jobs, shares, strict=True)}


AFS_L = {
    "a lone job grows to its cap": Case(8, [job("a", 1, 4)], {"a": 4}),
    "the better scaler gets the spare": Case(
        4, [job("a", scales=0.2), job("b", scales=0.9)], {"a": 1, "b": 3}
    ),
    "of equals the shorter one is served": Case(
        3, [job("a", left=9), job("b", left=5)], {"a": 1, "b": 2}
    ),
    "under overload the shortest run": Case(
        2, [job("a", left=3), job("b", left=1), job("c", left=2)], {"a": 0, "b": 1, "c": 1}
    ),
    "a tie goes to the one submitted first": Case(1, [job("a"), job("b")], {"a": 1, "b": 0}),
    "no GPU is spent where it does not help": Case(8, [job("a", 1, 8, scales=0.0)], {"a": 1}),
    "the first grant is the minimum": Case(5, [job("a", 3, 4), job("b", 2, 2)], {"a": 3, "b": 2}),
    "a minimum that does not fit is skipped": Case(
        3, [job("a", 4, 4, left=1), job("b", 2, 2, left=2)], {"a": 0, "b": 2}
    ),
    "growth jumps over a share that does not help": Case(
        3, [job("a", 1, 3, step_s=(1.0, 1.0, 0.4))], {"a": 3}
    ),
    "a jump that does not fit is not made": Case(
        2, [job("a", 1, 3, step_s=(1.0, 1.0, 0.4))], {"a": 1}
    ),
    "an unknown length counts as endless": Case(
        1, [job("a", left=float("nan")), job("b", left=1e9)], {"a": 0, "b": 1}
    ),
}  # fmt: skip
RIGID = {
    "srtf runs the shortest and skips what does not fit": Case(
        4, [job("a", left=9), job("b", left=4), job("c", requested=2, left=5)],
        {"a": 0, "b": 4, "c": 0}, "srtf",
    ),
    "srtf backfills": Case(
        4,
        [job("a", requested=3, left=1), job("b", left=2), job("c", requested=1, left=99)],
        {"a": 3, "b": 0, "c": 1}, "srtf",
    ),
    "srsf weighs length by the request": Case(
        4, [job("a", requested=4, left=4, scales=0), job("b", requested=1, left=8, scales=0)],
        {"a": 0, "b": 1}, "srsf",
    ),
    "fifo waits for the first in line": Case(
        4, [job("a", requested=3), job("b", requested=4), job("c", requested=1)],
        {"a": 3, "b": 0, "c": 0}, "fifo",
    ),
    "fifo backfills on request": Case(
        4, [job("a", requested=3), job("b", requested=4), job("c", requested=1)],
        {"a": 3, "b": 0, "c": 1}, "fifo:backfill=true",
    ),
    "fifo never preempts": Case(
        4, [job("a", requested=4), job("b", requested=4, holds=4)], {"a": 0, "b": 4}, "fifo",
    ),
    "tiresias prefers who has had less": Case(
        4, [job("a", holds=4, executed_s=1000), job("b")], {"a": 0, "b": 4}, "tiresias-l", 2000,
    ),
    "tiresias keeps the order of start within a queue": Case(
        4, [job("a", holds=4, executed_s=100), job("b")], {"a": 4, "b": 0}, "tiresias-l", 2000,
    ),
    "tiresias has as many queues as limits, and one": Case(
        4, [job("a", holds=4, executed_s=4000), job("b", holds=0, started_s=1.0, executed_s=0)],
        {"a": 0, "b": 4}, "tiresias-l:threshold_gpu_h=1/2/4", 9000,
    ),
}  # fmt: skip
SHARING = {
    "max-min shares evenly": Case(7, [job("a"), job("b")], {"a": 4, "b": 3}, "max-min"),
    "max-min fills what a small job leaves": Case(
        8, [job("a", 1, 2), job("b", 1, 8)], {"a": 2, "b": 6}, "max-min"
    ),
    "max-min serves who runs first": Case(
        1, [job("a"), job("b", holds=1)], {"a": 0, "b": 1}, "max-min"
    ),
    "optimus favours the long job": Case(
        5, [job("a", left=10), job("b", left=1000)], {"a": 1, "b": 4}, "optimus"
    ),
    "max-speedup ignores length": Case(
        5, [job("a", left=10, scales=0.9), job("b", left=1000, scales=0.5)],
        {"a": 4, "b": 1}, "max-speedup",
    ),
    "afs-p needs no length to see that one scales": Case(
        5, [job("a", scales=0.05), job("b")], {"a": 1, "b": 4}, "afs-p"
    ),
    "afs-p under overload serves who was served least": Case(
        2, [job("a", holds=2), job("b"), job("c")], {"a": 0, "b": 1, "c": 1}, "afs-p", 7200.0
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", AFS_L.values(), ids=AFS_L.keys())
def test_afs_l(case: Case) -> None:
    assert case.got == case.want


@pytest.mark.parametrize("case", RIGID.values(), ids=RIGID.keys())
def test_rigid(case: Case) -> None:
    assert case.got == case.want


@pytest.mark.parametrize("case", SHARING.values(), ids=SHARING.keys())
def test_sharing(case: Case) -> None:
    assert case.got == case.want


# Shares that the AFS authors' public code gives: model:iterations, GPUs, by policy.
MODELS = {"res50": "resnet50", "vgg": "vgg16", "inc4": "inception4", "ds2": "deepspeech2",
          "chat": "chatbot", "trans": "transformer", "video": "videoprediction"}  # fmt: skip
VECTORS = {
    "A": ("res50:10000 vgg:10000", 8,
          {"afs-l": "4,4", "optimus": "4,4", "max-min": "4,4"}, {"4,4"}),
    "C": ("inc4:1000 ds2:1000 chat:1000", 16,
          {"afs-l": "10,2,4", "optimus": "12,2,2", "max-min": "6,6,4"},
          {"10,2,4", "11,2,3", "12,2,2"}),
    "E": ("inc4:100 res50:100000 trans:5000 dcgan:200000 video:3000", 64,
          {"afs-l": "20,12,16,8,8", "optimus": "4,20,16,20,4", "max-min": "13,13,13,13,12"},
          {"20,12,16,8,8"}),
    "G": ("vgg:10 res50:1000 inc4:100 chat:99999 video:500", 4,
          {"afs-l": "1,1,1,0,1", "optimus": "1,1,1,1,0", "max-min": "1,1,1,1,0"}, {"1,1,1,1,0"}),
}  # fmt: skip


def vector(text: str) -> list[JobRow]:
    speeds, rows = packaged_speeds(), []
    for name, left in (part.split(":") for part in text.split()):
        curve = speeds.names.index(MODELS.get(name, name))
        most = int(speeds.gpus_max[curve])
        step_s = speeds.step_s[curve, 1 : most + 1].tolist()
        rows.append(job(name, 1, most, step_s=step_s, left=float(left)))
    return rows


def shares(spec: str, gpus: int, rows: list[JobRow], seed: int = 1) -> str:
    return ",".join(map(str, policy_from(spec)(snapshot_of(gpus, rows, seed=seed)).gpus))


@pytest.mark.parametrize("name", VECTORS)
def test_golden_vectors(name: str) -> None:
    jobs, gpus, want, _ = VECTORS[name]
    assert {policy: shares(policy, gpus, vector(jobs)) for policy in want} == want


@pytest.mark.parametrize("name", VECTORS)
def test_golden_vectors_of_the_coin(name: str) -> None:
    jobs, gpus, _, want = VECTORS[name]
    seeds = np.random.default_rng(0).integers(1, 2**31 - 2, 60)
    assert {shares("afs-p", gpus, vector(jobs), int(seed)) for seed in seeds} == want


def test_a_lease_holds_until_it_ends() -> None:
    rows = [job("a"), job("b"), job("c")]
    first = policy_from("afs-p")(snapshot_of(2, rows))
    assert list(first.gpus) == [1, 1, 0]
    assert first.wake_at_s == 7200.0
    assert policy_from("afs-p:lease_h=0.5")(snapshot_of(2, rows)).wake_at_s == 1800.0


def test_a_job_is_looked_at_when_its_time_in_the_queue_is_over() -> None:
    hour = policy_from("tiresias-l:threshold_gpu_h=1")
    assert hour(snapshot_of(4, [job("a")])).wake_at_s == 900.0  # started by this very decision
    runs = [job("a", holds=4, executed_s=100.0)]
    assert hour(snapshot_of(4, runs, now_s=500.0)).wake_at_s == 1300.0
    # As the AFS evaluation looks: in whole seconds, late by a GPU-second a GPU.
    assert policy_from("tiresias-l:preset=afs")(snapshot_of(4, [job("a")])).wake_at_s == 45001.0


def test_keep_settles_where_a_coin_goes_on_moving() -> None:
    jobs, gpus, _, possible = VECTORS["C"]
    for before in possible:
        after = before
        for _ in range(2):
            held = [
                job(row.name, 1, row.gpus_max, step_s=row.step_s, holds=int(share))
                for row, share in zip(vector(jobs), after.split(","), strict=True)
            ]
            settled, after = after, shares("afs-p:tie=keep", gpus, held)
        assert after == settled
        assert after in possible
