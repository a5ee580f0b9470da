"""What policies remember of jobs: columns by name, and no others."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from coddl.core.registry import POLICIES, policy_from
from coddl.core.snapshot import POLICY_COLUMNS, REFUSED_S, Snapshot, empty_memory, memory_columns
from coddl.testing.contract import SETTINGS, snapshots

# Any: each policy's names are a class of their own.
COLUMNS: dict[str, Any] = {name: getattr(cls, "memory", ()) for name, cls in POLICIES.items()}


def test_a_column_is_the_place_of_its_name() -> None:
    columns = memory_columns("first", "second")
    assert (columns.first, columns.second) == (0, 1)


def test_no_two_columns_have_one_name() -> None:
    with pytest.raises(ValueError, match="duplicate"):
        memory_columns("first", "first")


@pytest.mark.parametrize("name", [name for name, columns in COLUMNS.items() if columns])
def test_the_columns_of_a_policy_are_those_of_its_names(name: str) -> None:
    assert COLUMNS[name] == memory_columns(*COLUMNS[name]._fields)


def test_the_memory_is_as_wide_as_the_policy_that_keeps_most() -> None:
    assert max(map(len, COLUMNS.values())) == POLICY_COLUMNS
    assert empty_memory(3).shape == (3, POLICY_COLUMNS + 1)
    assert REFUSED_S == POLICY_COLUMNS


@pytest.mark.parametrize("name", POLICIES)
@given(snapshot=snapshots())
@SETTINGS
def test_a_policy_neither_reads_nor_writes_columns_that_it_does_not_name(
    name: str, snapshot: Snapshot
) -> None:
    memory, own = snapshot.memory.copy(), len(COLUMNS[name])
    memory[:, own:] = 1e9
    policy = policy_from(name)
    answer, plain = policy(replace(snapshot, memory=memory)), policy(snapshot)
    assert np.array_equal(answer.shares, plain.shares)
    assert answer.wake_at_s == plain.wake_at_s
    if answer.memory is not None:
        assert (answer.memory[:, own:] == 1e9).all()
