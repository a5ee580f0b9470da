"""The jobs of a snapshot, as a table of columns.

Columns of one type are the rows of one matrix: a kernel takes two arrays instead of twenty, which
compiles several times faster, and a driver picks the jobs that are in the system with two
operations. Policies in plain Python read the columns by name; kernels by index, as in
`jobs.real[SUBMITTED_S, row]`.
"""

from typing import Any, Final, NamedTuple, Self

import numpy as np

from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn, IntMatrix

OPAQUE, RESTARTABLE, ELASTIC = range(3)  # tier: what can be done to a job while it runs

# Rows of JobTable.real, with what a column is where nothing is given.
SUBMITTED_S = 0
WEIGHT = 1
PAUSE_S = 2
REMAINING_ITERATIONS = 3
ATTAINED_GPU_S = 4
EXECUTED_S = 5
FIRST_START_S = 6
LAST_START_S = 7
CHANGED_S = 8
REAL_DEFAULTS: Final = (
    ("submitted_s", 0.0),
    ("weight", 1.0),
    ("pause_s", 0.0),
    ("remaining_iterations", np.nan),
    ("attained_gpu_s", 0.0),
    ("executed_s", 0.0),
    ("first_start_s", np.inf),
    ("last_start_s", np.inf),
    ("changed_s", -np.inf),
)

# Rows of JobTable.whole.
ID = 0
QUEUE = 1
GROUP = 2
TIER = 3
PREEMPTIBLE = 4
CURVE = 5
GPUS_MIN = 6
GPUS_MAX = 7
GPUS_REQUESTED = 8
GPUS = 9
STARTS = 10
PRIORITY = 11
SETTLED = 12
SPANS = 13
HOME = 14
SERVERS = 15
WHOLE_DEFAULTS: Final = (
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
    ("home", -1),
    ("servers", 0),
)


class JobTable(NamedTuple):
    """The jobs that are in the system, one per column index, sorted by id. Read-only."""

    real: FloatMatrix
    whole: IntMatrix

    @classmethod
    def of(cls, jobs: int, **columns: Any) -> Self:  # Any: whatever NumPy can make a column of
        """A table of `jobs` jobs; a column not given is that of an idle, elastic, one-GPU job."""
        real, whole = (
            np.empty((len(REAL_DEFAULTS), jobs)),
            np.empty((len(WHOLE_DEFAULTS), jobs), np.int64),
        )
        for at, (name, value) in enumerate(REAL_DEFAULTS):
            real[at] = columns.pop(name, value)
        for at, (name, value) in enumerate(WHOLE_DEFAULTS):
            whole[at] = columns.pop(name, np.arange(jobs) if name == "id" else value)
        if columns:
            raise TypeError(f"no such column: {', '.join(columns)}")
        return cls(real, whole).read_only()

    def take(self, rows: IntColumn) -> Self:
        """The same table with only these rows."""
        # Not indexed: what that gives lies in memory now one way, now another, and a kernel is
        # compiled anew for each.
        real = np.take(self.real[: len(REAL_DEFAULTS)], rows, axis=1)
        whole = np.take(self.whole[: len(WHOLE_DEFAULTS)], rows, axis=1)
        return type(self)(real, whole).read_only()

    def read_only(self) -> Self:
        """Itself, safe from a policy that writes into its input."""
        self.real.flags.writeable = False
        self.whole.flags.writeable = False
        return self

    @property
    def size(self) -> int:
        """How many jobs there are."""
        return int(self.whole.shape[1])

    @property
    def submitted_s(self) -> FloatColumn:
        """When the job entered the system."""
        return _real(self, SUBMITTED_S)

    @property
    def weight(self) -> FloatColumn:
        """Its claim relative to others."""
        return _real(self, WEIGHT)

    @property
    def pause_s(self) -> FloatColumn:
        """What a resize costs it."""
        return _real(self, PAUSE_S)

    @property
    def remaining_iterations(self) -> FloatColumn:
        """Optimizer steps left; NaN: unknown."""
        return _real(self, REMAINING_ITERATIONS)

    @property
    def attained_gpu_s(self) -> FloatColumn:
        """GPU-time it has had."""
        return _real(self, ATTAINED_GPU_S)

    @property
    def executed_s(self) -> FloatColumn:
        """Time it has held GPUs."""
        return _real(self, EXECUTED_S)

    @property
    def first_start_s(self) -> FloatColumn:
        """When it first got GPUs; inf: never."""
        return _real(self, FIRST_START_S)

    @property
    def last_start_s(self) -> FloatColumn:
        """When it last went from none to some; inf: never."""
        return _real(self, LAST_START_S)

    @property
    def changed_s(self) -> FloatColumn:
        """When its share last changed, a start not counted; -inf: never."""
        return _real(self, CHANGED_S)

    @property
    def id(self) -> IntColumn:
        """Unique; rows are sorted by it."""
        return _whole(self, ID)

    @property
    def queue(self) -> IntColumn:
        """Index of its queue."""
        return _whole(self, QUEUE)

    @property
    def group(self) -> IntColumn:
        """Jobs of one search share a group; -1: none."""
        return _whole(self, GROUP)

    @property
    def tier(self) -> IntColumn:
        """OPAQUE, RESTARTABLE or ELASTIC."""
        return _whole(self, TIER)

    @property
    def preemptible(self) -> IntColumn:
        """0: what it holds may not be taken away."""
        return _whole(self, PREEMPTIBLE)

    @property
    def curve(self) -> IntColumn:
        """Its row in Speeds."""
        return _whole(self, CURVE)

    @property
    def gpus_min(self) -> IntColumn:
        """Smallest share that it can run on."""
        return _whole(self, GPUS_MIN)

    @property
    def gpus_max(self) -> IntColumn:
        """Largest share that it may hold."""
        return _whole(self, GPUS_MAX)

    @property
    def gpus_requested(self) -> IntColumn:
        """What a rigid policy gives it."""
        return _whole(self, GPUS_REQUESTED)

    @property
    def gpus(self) -> IntColumn:
        """Its share as decided last; what it holds may lag behind."""
        return _whole(self, GPUS)

    @property
    def starts(self) -> IntColumn:
        """Times it went from none to some."""
        return _whole(self, STARTS)

    @property
    def priority(self) -> IntColumn:
        """Jobs of a higher one are served first."""
        return _whole(self, PRIORITY)

    @property
    def settled(self) -> IntColumn:
        """0: the share decided last is not in effect yet."""
        return _whole(self, SETTLED)

    @property
    def spans(self) -> IntColumn:
        """0: its GPUs must be on one node."""
        return _whole(self, SPANS)

    @property
    def home(self) -> IntColumn:
        """The node that it would rather not leave; -1: it does not mind."""
        return _whole(self, HOME)

    @property
    def servers(self) -> IntColumn:
        """Its parameter servers as decided last."""
        return _whole(self, SERVERS)


def _real(jobs: JobTable, row: int) -> FloatColumn:
    column: FloatColumn = jobs.real[row]
    return column


def _whole(jobs: JobTable, row: int) -> IntColumn:
    column: IntColumn = jobs.whole[row]
    return column
