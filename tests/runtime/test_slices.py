"""Slices of a batch: every sample once, in proportion, the same on every worker."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coddl.runtime.slices import slices

CASES = {
    "a full batch is cut exactly": (64, [22, 21, 21], [22, 21, 21]),
    "a short one in proportion": (10, [22, 21, 21], [4, 3, 3]),
    "fewer samples than workers": (2, [22, 21, 21], [1, 1, 0]),
    "alone": (7, [64], [7]),
    "by speed": (9, [48, 16], [7, 2]),
}


@pytest.mark.parametrize(("samples", "counts", "want"), CASES.values(), ids=CASES.keys())
def test_a_batch_is_cut(samples: int, counts: list[int], want: list[int]) -> None:
    assert [len(part) for part in slices(samples, counts)] == want


@given(st.integers(0, 500), st.lists(st.integers(1, 99), min_size=1, max_size=9))
def test_every_sample_is_in_one_slice(samples: int, counts: list[int]) -> None:
    parts = slices(samples, counts)
    assert [index for part in parts for index in part] == list(range(samples))
    for part, count in zip(parts, counts, strict=True):
        assert abs(len(part) - samples * count / sum(counts)) < 1
