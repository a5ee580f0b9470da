"""Speeds as a scheduler comes to know them: of a job, the sizes at which it has made a step.

What is believed of a job depends on its model and on those sizes, and on nothing else. So jobs of a
model that have been at the same sizes share a curve, which is worked out once.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.speed.places import Places
from coddl.core.speed.table import Speeds, speeds_of

NOT_BEEN: Final = -1
ROOM: Final = 256  # curves that there is room for at first

# From a model's row in the true speeds and the sizes visited: seconds at every share, from 0 on.
Belief = Callable[[int, frozenset[int]], FloatColumn]


@dataclass(frozen=True, eq=False)
class SpeedLearning:
    """How a scheduler learns speeds: what it believes of a job that has been at some sizes."""

    truth: Speeds
    belief: Belief

    @property
    def at_first(self) -> Speeds:
        """What is believed of each model before a job of it has run."""
        curves = range(len(self.truth.names))
        step_s = np.stack([self.belief(curve, frozenset()) for curve in curves])
        return as_speeds(self.truth, np.arange(len(curves)), step_s)


class LearnedSpeeds:
    """What is believed of the jobs of a run, which changes as they are seen at new sizes."""

    def __init__(self, learning: SpeedLearning, curve: IntColumn) -> None:
        self._learning = learning
        width = learning.truth.step_s.shape[1]
        self._step_s = np.empty((ROOM, width))
        self._after = np.full((ROOM, width), NOT_BEEN)  # [believed curve, size]: that with the size
        self._model = np.empty(ROOM, np.int64)
        self._visited: list[frozenset[int]] = []
        self._numbers: dict[tuple[int, frozenset[int]], int] = {}
        for model in range(len(learning.truth.names)):
            self._number(model, frozenset())
        self._believed = curve.copy()  # by job: the number of what is believed of it

    def is_new(self, rows: IntColumn, sizes: IntColumn) -> IntColumn:
        """Return those of the rows that have not made a step at these sizes, as positions."""
        believed, at = self._believed[rows], self._columns(sizes)
        return np.flatnonzero(self._after[believed, at] != believed)

    def see(self, rows: IntColumn, sizes: IntColumn) -> None:
        """Note that these jobs have made a step at these sizes."""
        columns = self._columns(sizes)
        for at in self.is_new(rows, sizes).tolist():
            believed, size = int(self._believed[rows[at]]), int(columns[at])
            if self._after[believed, size] == NOT_BEEN:
                visited = self._visited[believed] | {size}
                number = self._number(int(self._model[believed]), visited)
                self._after[believed, size] = number
                self._after[number, size] = number
            self._believed[rows[at]] = self._after[believed, size]

    def table(self, rows: IntColumn) -> tuple[Speeds, IntColumn]:
        """Return the curves that are believed of these jobs, and the row of each job in them."""
        different, curve = np.unique(self._believed[rows], return_inverse=True)
        models, step_s = self._model[different], np.take(self._step_s, different, axis=0)
        return as_speeds(self._learning.truth, models, step_s), curve.reshape(-1)

    def _columns(self, sizes: IntColumn) -> IntColumn:
        return np.minimum(sizes, self._step_s.shape[1] - 1)

    def _number(self, model: int, visited: frozenset[int]) -> int:
        """Return the number of a belief, which is worked out when it is first asked for."""
        if (found := self._numbers.get((model, visited))) is not None:
            return found
        number = self._numbers[model, visited] = len(self._visited)
        if number == len(self._step_s):
            self._step_s = np.concatenate([self._step_s, np.empty_like(self._step_s)])
            self._after = np.concatenate([self._after, np.full_like(self._after, NOT_BEEN)])
            self._model = np.concatenate([self._model, np.empty_like(self._model)])
        self._visited.append(visited)
        self._step_s[number] = self._learning.belief(model, visited)
        self._model[number] = model
        self._after[number, list(visited)] = number
        return number


def as_speeds(truth: Speeds, models: IntColumn, step_s: FloatMatrix) -> Speeds:
    """A table of believed curves; what places cost is known."""
    names = tuple(truth.names[model] for model in models.tolist())
    speeds = speeds_of(names, step_s, np.zeros(step_s.shape, np.bool_))
    if truth.known_places is None:
        return replace(speeds, kinds=truth.kinds)
    return replace(speeds, known_places=partial(_places, truth, models), kinds=truth.kinds)


def _places(truth: Speeds, models: IntColumn) -> Places:
    places = truth.places
    at_models = Places(*(_rows(column, models) for column in places))
    return at_models._replace(packed=places.packed[np.ix_(models, models)])


def _rows(column: FloatMatrix, models: IntColumn) -> FloatMatrix:
    """The entries of these models; one entry that serves for all stays as it is."""
    return column if len(column) == 1 else np.take(column, models, axis=0)
