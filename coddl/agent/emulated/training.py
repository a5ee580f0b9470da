"""A training that only advances: how far it is at any time, on the slots it has. Pure.

Time is an argument, and may be that of any clock. What happens by itself happens at the time that
was predicted for it, however late `advance` is called: a slow machine delays what is told of a
training, not the training.

    assign ──► being prepared ──► pause ──► trains ──► finished
                    ▲                         │
                    └──────── assign ─────────┴──► leave: its progress is saved
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from coddl.core.errors import UserError
from coddl.core.reconfigure import Reconfigure, ReconfigureMode

SUPPORTED: Final[tuple[ReconfigureMode, ...]] = ("stall", "concurrent")


@dataclass(frozen=True, slots=True)
class Workload:
    """The number of iterations, and the seconds that one takes on each number of GPUs."""

    iterations: float
    step_s: Mapping[int, float]  # from 1 GPU on; beyond the last one it stays what it is there

    @property
    def steps(self) -> int:
        """Whole iterations, as the pool counts them."""
        return math.ceil(self.iterations)

    def step_on(self, gpus: int) -> float:
        """Seconds per iteration on a number of GPUs."""
        return self.step_s[min(gpus, max(self.step_s))]


@dataclass(frozen=True, slots=True)
class Changed:
    """The training goes on, on other slots than before."""

    at_s: float
    before: int  # slots that it had
    slots: tuple[int, ...]
    step: int
    pause_s: float
    serving_s: float  # since it was told to


@dataclass(frozen=True, slots=True)
class Stepped:
    """The first step was made since the training was started."""

    at_s: float
    step: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The last step was made."""

    at_s: float


TrainingEvent = Changed | Stepped | Finished


@dataclass(frozen=True, slots=True)
class _Target:
    """Slots that a training is to have, as of some time."""

    slots: tuple[int, ...]
    ready_s: float
    since_s: float


@dataclass(frozen=True, slots=True)
class _Leg:
    """A straight line of progress: from `moving_s` on, on the same slots."""

    slots: tuple[int, ...]
    moving_s: float
    base: float  # iterations done at `moving_s`
    step_s: float

    def done_at(self, now_s: float) -> float:
        return self.base + max(0.0, now_s - self.moving_s) / self.step_s


class EmulatedTraining:
    """A training on slots that change; `done` iterations were made before."""

    def __init__(self, workload: Workload, costs: Reconfigure, done: float = 0.0) -> None:
        check_costs(costs)
        self.workload = workload
        self._costs = costs
        self._leg = _Leg((), math.inf, done, math.inf)
        self._target: _Target | None = None
        self._coming: list[TrainingEvent] = []  # in the order of their times
        self._has_stepped = False
        self.is_finished = False

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots that have workers: those it trains on, or is prepared for at its start."""
        if not self._leg.slots and self._target is not None:
            return self._target.slots
        return self._leg.slots

    @property
    def reserved(self) -> tuple[int, ...]:
        """The slots that have workers, and those for which it is being prepared."""
        return (*self._leg.slots, *(self._target.slots if self._target is not None else ()))

    @property
    def is_training(self) -> bool:
        """Tell whether it has slots to train on, if only after a pause."""
        return bool(self._leg.slots)

    @property
    def next_s(self) -> float:
        """When something happens by itself; inf: nothing will."""
        ready_s = self._target.ready_s if self._target is not None else math.inf
        return min([ready_s, *(event.at_s for event in self._coming[:1])])

    @property
    def step_s(self) -> float:
        """Seconds per iteration on the slots it has; inf: it has none."""
        return self._leg.step_s

    def done_at(self, now_s: float) -> float:
        """Iterations that are done at a time for which `advance` was called."""
        return min(self.workload.iterations, self._leg.done_at(now_s))

    def done_here(self, now_s: float) -> int:
        """Whole iterations done on the slots it has now."""
        return int(self.done_at(now_s) - self._leg.base)

    def assign(self, slots: tuple[int, ...], now_s: float) -> None:
        """Have it train on exactly these slots; what is prepared for others is given up."""
        self._target = None
        if self.is_finished or set(slots) == set(self._leg.slots):
            return
        costs, is_start = self._costs, not self._leg.slots
        prepare_s = costs.prepare_s
        if is_start and costs.mode == "stall":
            prepare_s = costs.pause_s
        self._target = _Target(slots, now_s + prepare_s, now_s)

    def leave(self, now_s: float) -> None:
        """Save what is done and give up all slots."""
        self._leg = _Leg((), math.inf, self.done_at(now_s), math.inf)
        self._target, self._coming, self._has_stepped = None, [], False

    def advance(self, now_s: float) -> list[TrainingEvent]:
        """Give what has happened by now, in order."""
        happened: list[TrainingEvent] = []
        while self.next_s <= now_s:
            target = self._target
            if target is not None and target.ready_s <= self.next_s:
                self._switch(target)
                continue
            event = self._coming.pop(0)
            self._has_stepped |= isinstance(event, Stepped)
            if isinstance(event, Finished):
                self.is_finished, self._target, self._coming = True, None, []
            happened.append(event)
        return happened

    def _switch(self, target: _Target) -> None:
        """Take the slots that were prepared, and predict what follows."""
        at_s, old = target.ready_s, self._leg
        pause_s = self._costs.pause_s if old.slots else 0.0
        begin_s = at_s
        if old.slots and self._costs.mode == "stall":
            begin_s = max(at_s, old.moving_s)
        moving_s, step_s = begin_s + pause_s, self.workload.step_on(len(target.slots))
        base = old.done_at(at_s)
        self._leg, self._target = _Leg(target.slots, moving_s, base, step_s), None
        # A change that was not told of yet never will be: this one is told instead.
        serving_s = moving_s - target.since_s
        told = Changed(
            moving_s, len(old.slots), target.slots, int(base), moving_s - at_s, serving_s
        )
        end_s = moving_s + (self.workload.iterations - base) * step_s
        coming: list[TrainingEvent] = [told, Finished(end_s)]
        if not self._has_stepped:
            coming.insert(1, Stepped(min(end_s, moving_s + step_s), int(base) + 1))
        self._coming = coming


def check_costs(costs: Reconfigure) -> None:
    """Raise UserError for resizes that cannot be emulated."""
    if costs.mode in SUPPORTED and costs.move_s is None:
        return
    moves = "moves between nodes have costs of their own"
    raise UserError(
        f"resizes that cost {costs.mode} cannot be emulated",
        moves if costs.move_s is not None else f"the modes are: {', '.join(SUPPORTED)}",
        "stall:30 or concurrent:20,1",
    )
