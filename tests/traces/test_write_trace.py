"""Writing a trace, and reading it back."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coddl.core.errors import UserError
from coddl.core.speed.table import interpolated
from coddl.traces.files import read_trace, small_trace, write_trace
from coddl.traces.trace import Trace, trace_of

SPEEDS = interpolated({"a": [(1, 4.0), (8, 1.0)], 'b,"2"': [(1, 1.0), (2, 0.9)]})
NAMES = st.text(st.characters(exclude_categories=["C", "Z"]) | st.sampled_from(',"\n'), min_size=1)
JOBS = st.tuples(
    st.floats(0, 1e15),
    st.integers(0, 1),
    st.floats(0, 1e15, exclude_min=True),
    st.integers(1, 2**31 - 1),
    NAMES.filter(lambda name: name == name.strip()),
    st.sampled_from(["ann", "bob"]),
    st.sampled_from(["", "lr", "width"]),
    st.floats(0, 1e6, exclude_min=True),
)
NUMBERS = ("submitted_s", "iterations", "gpus_requested", "gpus_min", "gpus_max")


def assert_same(one: Trace, other: Trace) -> None:
    for name in (*NUMBERS, "curve", "queue", "user", "group", "weight"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    names = (one.queues, one.users, one.groups)
    assert names == (other.queues, other.users, other.groups)


@settings(deadline=None)
@given(st.lists(JOBS, min_size=1), st.booleans())
def test_what_is_written_reads_back_the_same(
    jobs: list[tuple[float, int, float, int, str, str, str, float]], packed: bool
) -> None:
    times, curve, iterations, gpus, queue, user, group, weight = zip(*jobs, strict=True)
    trace = trace_of(
        "made",
        SPEEDS,
        submitted_s=np.array(times),
        curve=np.array(curve, np.int64),
        iterations=np.array(iterations),
        gpus_requested=np.array(gpus, np.int64),
        queue=queue,
        user=user,
        group=group,
        weight=np.array(weight),
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / ("jobs.csv.gz" if packed else "jobs.csv")
        write_trace(trace, path)
        assert_same(trace, read_trace(path, SPEEDS))


def test_equal_traces_give_equal_files_and_no_leftovers(tmp_path: Path) -> None:
    for name in ("a.csv", "a.csv.gz", "a.csv.gz"):
        before = (tmp_path / name).read_bytes() if (tmp_path / name).exists() else None
        write_trace(small_trace(), tmp_path / name)
        assert before in (None, (tmp_path / name).read_bytes())
        assert_same(small_trace(), read_trace(tmp_path / name))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.csv.gz"]


def test_what_cannot_be_written_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for path in (
        tmp_path / "none" / "a.csv",
        tmp_path / "folder.csv",
        tmp_path / ("x" * 300),
        Path(),
    ):
        with pytest.raises(UserError) as caught:
            write_trace(small_trace(), path)
        assert caught.value.what == f"trace {path} cannot be written"
    assert [path.name for path in tmp_path.iterdir()] == ["folder.csv"]
