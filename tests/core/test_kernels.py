"""Kernels against their uncompiled twins, and against the obvious way to write them."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from coddl.core import heaps, kernels
from coddl.core.columns import FloatMatrix
from coddl.core.policies.policy import RulePolicy
from coddl.core.registry import POLICIES, policy_from
from coddl.core.snapshot import Snapshot
from coddl.testing import snapshots, twin

P = ParamSpec("P")
R = TypeVar("R")
FEW = settings(max_examples=60, deadline=None)
VARIANTS = ("afs-l:contest=scan", "afs-l:contest=tournament", "afs-p:contest=scan",
            "afs-p:tie=keep", "afs-p:contest=tournament", "fifo:backfill=true",
            "tiresias-l:preset=afs",
            "tiresias-l:threshold_gpu_h=0.01/0.1,promote=1")  # fmt: skip
# The others as they are by default: where two give the same shares, "auto" is one of the two.
NAMES = [name for name, cls in POLICIES.items() if issubclass(cls, RulePolicy)]
SPECS = (*VARIANTS, *(name for name in NAMES if f"{name}:contest=scan" not in VARIANTS))


def callable_(part: Callable[P, R]) -> Callable[P, R]:
    """Compile a part of kernels so that Python can call it."""
    compiled: Callable[P, R] = numba.njit(error_model="numpy")(part.py_func)  # type: ignore[attr-defined]
    return compiled


select_first, sort_heap = callable_(kernels.select_first), callable_(heaps.sort_heap)
fill_in_order, grow_by_gain = callable_(kernels.fill_in_order), callable_(kernels.grow_by_gain)
next_share, gain_of_step = callable_(kernels.next_share), callable_(kernels.gain_of_step)
contend, beats = callable_(kernels.contend), callable_(kernels.beats)
reign_by_length, flip = callable_(kernels.reign_by_length), callable_(kernels.flip)
KEYS = st.integers(0, 20).flatmap(
    lambda n: arrays(np.float64, (2, n), elements=st.sampled_from([0.0, 1.0, 2.0, np.inf]))
)


@pytest.mark.parametrize("spec", SPECS)
@given(snapshot=snapshots(), memory=st.floats(0.0, 2000.0))
@FEW
def test_a_rule_equals_its_uncompiled_source(spec: str, snapshot: Snapshot, memory: float) -> None:
    policy = policy_from(spec)
    assert isinstance(policy, RulePolicy)
    answers = []
    for rule in (policy.rule, twin(policy.rule)):
        shares, kept = np.zeros(snapshot.jobs.size, np.int64), snapshot.memory.copy()
        kept[:, 0] = memory if spec.startswith("afs-p") else 0.0
        wake_at_s = rule(snapshot.for_kernels(), policy.parameters, kept, shares)
        answers.append((shares.tolist(), kept.tolist(), wake_at_s))
    assert answers[0] == answers[1]


@given(keys=KEYS, most=st.integers(1, 25), seed=st.integers(0, 99))
@FEW
def test_select_first_is_a_sort_cut_short(keys: FloatMatrix, most: int, seed: int) -> None:
    count = keys.shape[1]
    random = np.random.default_rng(seed)
    need = random.integers(1, 5, (count,))
    line = kernels.RankedRows(keys, need, random.random((count,)) < 0.3)
    order = sorted(range(count), key=lambda k: (*keys[:, k], k))
    for after, behind in ((-1, order), *((k, order[at + 1 :]) for at, k in enumerate(order))):
        out = np.empty(count, np.int64)
        found = select_first(line, 3, after, min(most, count), out)
        want = [k for k in behind if need[k] <= 3][:most]
        assert out[0] == want[-1] if want else found == 0
        sort_heap(out, found, keys)
        assert out[:found].tolist() == want


@given(keys=KEYS, free=st.integers(0, 30), strict=st.booleans(), seed=st.integers(0, 99))
@FEW
def test_fill_in_order_is_a_loop_over_a_sort(
    keys: FloatMatrix, free: int, strict: bool, seed: int
) -> None:
    count = keys.shape[1]
    random = np.random.default_rng(seed)
    need = random.integers(1, 9, (count,))
    line = kernels.RankedRows(keys, need, random.random((count,)) < 0.3)
    out, want, left = np.empty(count, np.int64), [0] * count, free
    stays = fill_in_order(line, free, int(strict), out)
    for k in sorted(range(count), key=lambda k: (*keys[:, k], k)):
        if need[k] <= left:
            want[k], left = int(need[k]), left - int(need[k])
        elif strict:
            break
    assert (out.tolist(), stays) == (want, left)


@given(snapshot=snapshots(), gain=st.sampled_from([kernels.REMAINING_TIME, kernels.SPEEDUP]))
@FEW
def test_grow_by_gain_is_a_scan_for_the_largest(snapshot: Snapshot, gain: int) -> None:
    picture, size = snapshot.for_kernels(), snapshot.jobs.size
    shares = np.ones(size, np.int64) * snapshot.jobs.gpus_min
    want = shares.copy()
    left = stays = 25
    stays = grow_by_gain(picture, gain, stays, shares)
    closed: set[int] = set()
    while left > 0:
        gains = {}
        for k in set(range(size)) - closed:
            following = next_share(picture, k, want[k])
            if following > 0:
                gains[k] = gain_of_step(picture, gain, k, want[k], following)
        if not gains:
            break
        k = min(gains, key=lambda k: (-gains[k], k))
        added = next_share(picture, k, want[k]) - want[k]
        if added > left:
            closed.add(k)
        else:
            want[k] += added
            left -= added
    assert (shares.tolist(), stays) == (want.tolist(), left)


@given(count=st.integers(1, 150), seed=st.integers(0, 999))
@FEW
def test_a_pass_by_length_plays_every_duel_in_turn(count: int, seed: int) -> None:
    """The inner loop, which starts at the last winner and skips blocks, against `beats`."""
    random = np.random.default_rng(seed)
    whole, real = np.zeros((4, count), np.int64), random.integers(1, 40, (4, count)) / 8.0
    real[2] = real[1] / (1.0 + real[1])  # (p'-p)/p' from (p'-p)/p
    them = kernels.Contenders(whole[0], whole[1], whole[2], real[0], real[1], real[2], real[3],
                              whole[3])  # fmt: skip
    champions, reign, start = np.empty(count, np.int64), -1, 0
    for _ in range(20):
        champion = 0
        for x in range(1, count):
            if beats(them, kernels.LENGTH, x, champion):
                champion = x
        reign = reign_by_length(them, start, count, champions, reign)
        assert champions[reign] == champion
        reign, start = reign - 1, champion
        real[:3, champion] *= 0.75  # it was promoted


def test_the_coin_is_fair() -> None:
    coin = np.array([12345], np.int64)
    assert abs(np.mean([flip(coin) for _ in range(20_000)]) - 0.5) < 0.02
