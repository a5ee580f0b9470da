"""`coddl.state` in a loop over steps: whose values a worker has, and when."""

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.runtime.elastic import Elastic

pytest.importorskip("torch")
pytestmark = pytest.mark.slow


class Line(NamedTuple):
    """What a worker has before it changes anything at a step."""

    worker: int
    step: int
    made: int  # steps, by its count
    owner: int  # the worker whose value it is: each takes it in the middle of every ten steps


def lines_of(printed: str) -> list[Line]:
    words = (line.split() for line in printed.splitlines())
    return [Line(*map(int, rest)) for first, *rest in words if first == "at"]


@pytest.mark.parametrize("how", ["loader", "no loader"])
def test_joiners_and_resumed_workers_begin_with_the_values_of_the_main_one(
    tmp_path: Path, how: str
) -> None:
    with Elastic(tmp_path, "values.py", how, workers=1) as job:
        job.wait_step(8)
        job.ask("resize", workers=2)
        job.wait_step(20)
        job.ask("suspend")
        job.ask("resume", workers=3)
        lines = lines_of(job.finish())
    assert all(line.made == line.step for line in lines), job.story()
    firsts = [next(line for line in lines if line.worker == worker) for worker in range(5)]
    assert [line.owner for line in firsts] == [-1, 0, 0, 0, 0]


@pytest.mark.parametrize("how", ["loader", "no loader"])
def test_values_are_the_main_workers_where_a_loader_begins_and_nowhere_else(
    tmp_path: Path, how: str
) -> None:
    with Elastic(tmp_path, "values.py", how, workers=2) as job:
        lines = lines_of(job.finish())
    owners = {line.step: line.owner for line in lines if line.worker == 1}
    assert owners[9] == 1
    assert owners[10] == (0 if how == "loader" else 1)
    assert owners[59] == 1
