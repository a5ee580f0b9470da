"""How many GPUs jobs need together."""

import numpy as np
import pytest

from coddl.core.node_demand import Demand, JobNeeds, demand_of, gpus_needed
from coddl.core.slots import Slots

START_S = 60.0
JOBS = {  # (gpus_min, worth, held, left_s) of a job, and what it needs
    "one that waits": ((1, 8, 0, np.inf), 8),
    "one that is soon over": ((1, 8, 2, 59.0), 2),
    "one that ends as the node starts": ((1, 8, 2, 60.0), 8),
    "one whose end is unknown": ((1, 8, 2, np.nan), 8),
    "one that holds more than it makes good use of": ((1, 8, 12, 10.0), 8),
    "one that holds too little to run on": ((4, 8, 2, 10.0), 8),
}


def needs(*rows: tuple[int, int, int, float]) -> JobNeeds:
    table = np.array(rows, np.float64).reshape(-1, 4)
    ints = table[:, :3].astype(np.int64)
    return JobNeeds(5 + np.arange(len(rows)), ints[:, 0], ints[:, 1], ints[:, 2], table[:, 3])


@pytest.mark.parametrize(("job", "want"), JOBS.values(), ids=JOBS.keys())
def test_a_job_needs_what_it_makes_good_use_of_unless_it_is_soon_over(
    job: tuple[int, int, int, float], want: int
) -> None:
    assert gpus_needed(needs(job), START_S).tolist() == [want]


def test_a_demand_names_the_job_that_needs_most() -> None:
    waits, small = (1, 8, 0, np.inf), (1, 1, 1, np.inf)
    assert demand_of(needs(), START_S) == Demand(0, "no job needs a node")
    assert demand_of(needs(small), START_S) == Demand(1, "job 5 can use 1 GPU")
    assert demand_of(needs(small, waits, waits), START_S, "slot") == Demand(
        17, "3 jobs can use 17 slots (the most: job 6, 8)"
    )


def test_seats_follow_their_islands_and_go_with_them() -> None:
    slots = Slots.of([{0: 2, 2: 1}, {}, {1: 4}])
    found = slots.renumbered(np.array([0, -1, 1]))
    assert [found.row(row) for row in range(3)] == [{0: 2, 1: 1}, {}, {}]
    assert found.first.dtype == slots.first.dtype
