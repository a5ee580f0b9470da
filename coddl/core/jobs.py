"""The jobs of a snapshot, as a table of columns.

Columns of one type are the rows of one matrix: a kernel takes two arrays instead of twenty, which
compiles several times faster, and a driver picks the jobs that are in the system with two
operations. Policies in plain Python read the columns by name; kernels by index, as in
`jobs.floats[SUBMITTED_S, row]`.
"""

from typing import Any, Final, NamedTuple, Self

import numpy as np

from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn, IntMatrix

OPAQUE, RESTARTABLE, ELASTIC = range(3)  # tier: what can be done to a job while it runs

# Rows of JobTable.floats, and what a column is where nothing is given.
(
    SUBMITTED_S,
    WEIGHT,
    PAUSE_S,
    REMAINING_ITERATIONS,
    ATTAINED_GPU_S,
    EXECUTED_S,
    FIRST_START_S,
    LAST_START_S,
    CHANGED_S,
    SWITCH_S,
    DONE_ITERATIONS,
) = range(11)
FLOAT_DEFAULTS: Final = (
    ("submitted_s", 0.0),
    ("weight", 1.0),
    ("pause_s", 0.0),
    ("remaining_iterations", np.nan),
    ("attained_gpu_s", 0.0),
    ("executed_s", 0.0),
    ("first_start_s", np.inf),
    ("last_start_s", np.inf),
    ("changed_s", -np.inf),
    ("switch_s", np.nan),
    ("done_iterations", np.nan),
)
# Rows of JobTable.ints.
(
    ID,
    QUEUE,
    GROUP,
    TIER,
    PREEMPTIBLE,
    CURVE,
    GPUS_MIN,
    GPUS_MAX,
    GPUS_REQUESTED,
    GPUS,
    STARTS,
    PRIORITY,
    SETTLED,
    SPANS,
    PREFERRED_NODE,
    IN_TURNS,
    COHORT,
    IS_RANGE,
) = range(18)
INT_DEFAULTS: Final = (
    ("id", 0),
    ("queue", 0),
    ("group", -1),
    ("tier", 2),
    ("preemptible", 1),
    ("curve", 0),
    ("gpus_min", 1),
    ("gpus_max", 1),
    ("gpus_requested", 1),
    ("gpus", 0),
    ("starts", 0),
    ("priority", 0),
    ("settled", 1),
    ("spans", 1),
    ("preferred_node", -1),
    ("in_turns", 0),
    ("cohort", 0),
    ("is_range", 0),
)


class FloatColumnAt:
    """A column of JobTable.floats by name."""

    def __init__(self, row: int) -> None:
        self._row = row

    def __get__(self, jobs: "JobMatrices", _: object) -> FloatColumn:
        column: FloatColumn = jobs.floats[self._row]
        return column


class IntColumnAt:
    """A column of JobTable.ints by name."""

    def __init__(self, row: int) -> None:
        self._row = row

    def __get__(self, jobs: "JobMatrices", _: object) -> IntColumn:
        column: IntColumn = jobs.ints[self._row]
        return column


class JobMatrices(NamedTuple):
    """The columns of a JobTable, by type."""

    floats: FloatMatrix
    ints: IntMatrix


class JobTable(JobMatrices):
    """The jobs that are in the system, one per column index, sorted by id. Read-only."""

    submitted_s = FloatColumnAt(SUBMITTED_S)  # when the job entered the system
    weight = FloatColumnAt(WEIGHT)  # its claim relative to others
    pause_s = FloatColumnAt(PAUSE_S)  # what a resize costs it
    remaining_iterations = FloatColumnAt(REMAINING_ITERATIONS)  # optimizer steps left; NaN: unknown
    attained_gpu_s = FloatColumnAt(ATTAINED_GPU_S)  # GPU-time it has had
    executed_s = FloatColumnAt(EXECUTED_S)  # time it has held GPUs
    first_start_s = FloatColumnAt(FIRST_START_S)  # when it first got GPUs; inf: never
    last_start_s = FloatColumnAt(LAST_START_S)  # when it last went from none to some; inf: never
    changed_s = FloatColumnAt(CHANGED_S)  # when its share last changed, starts apart; -inf: never
    switch_s = FloatColumnAt(SWITCH_S)  # for which its GPUs idle at a turn's change; NaN: unknown
    done_iterations = FloatColumnAt(DONE_ITERATIONS)  # optimizer steps done; NaN: unknown
    id = IntColumnAt(ID)  # unique; rows are sorted by it
    queue = IntColumnAt(QUEUE)  # index of its queue
    group = IntColumnAt(GROUP)  # jobs of one search share a group; -1: none
    tier = IntColumnAt(TIER)  # OPAQUE, RESTARTABLE or ELASTIC
    preemptible = IntColumnAt(PREEMPTIBLE)  # 0: what it holds may not be taken away
    curve = IntColumnAt(CURVE)  # its row in Speeds
    gpus_min = IntColumnAt(GPUS_MIN)  # smallest share that it can run on
    gpus_max = IntColumnAt(GPUS_MAX)  # largest share that it may hold
    gpus_requested = IntColumnAt(GPUS_REQUESTED)  # what a rigid policy gives it
    gpus = IntColumnAt(GPUS)  # its share as decided last; what it holds may lag behind
    starts = IntColumnAt(STARTS)  # times it went from none to some
    priority = IntColumnAt(PRIORITY)  # jobs of a higher one are served first
    settled = IntColumnAt(SETTLED)  # 0: the share decided last is not in effect yet
    spans = IntColumnAt(SPANS)  # 0: its GPUs must be on one node
    preferred_node = IntColumnAt(PREFERRED_NODE)  # the node that it should be on, or -1 for none
    in_turns = IntColumnAt(IN_TURNS)  # 1: it has no share, and takes turns on another job's GPU
    cohort = IntColumnAt(COHORT)  # jobs of one cohort are expected to take similar times
    is_range = IntColumnAt(IS_RANGE)  # 1: it asks for a range; what is requested is its maximum

    @classmethod
    def of(cls, jobs: int, **columns: Any) -> Self:  # Any: whatever NumPy can make a column of
        """A table of `jobs` jobs; a column not given is that of an idle, elastic, one-GPU job."""
        floats, ints = (
            np.empty((len(FLOAT_DEFAULTS), jobs)),
            np.empty((len(INT_DEFAULTS), jobs), np.int64),
        )
        for at, (name, value) in enumerate(FLOAT_DEFAULTS):
            floats[at] = columns.pop(name, value)
        for at, (name, value) in enumerate(INT_DEFAULTS):
            ints[at] = columns.pop(name, np.arange(jobs) if name == "id" else value)
        if columns:
            raise TypeError(f"no such column: {', '.join(columns)}")
        return cls(floats, ints).read_only()

    def take(self, rows: IntColumn) -> Self:
        """The same table with only these rows."""
        # Not indexed: what that gives lies in memory now one way, now another, and a kernel is
        # compiled anew for each.
        floats = np.take(self.floats, rows, axis=1)
        ints = np.take(self.ints, rows, axis=1)
        return type(self)(floats, ints).read_only()

    def read_only(self) -> Self:
        """Itself, safe from a policy that writes into its input."""
        self.floats.flags.writeable = False
        self.ints.flags.writeable = False
        return self

    @property
    def size(self) -> int:
        """How many jobs there are."""
        return int(self.ints.shape[1])
