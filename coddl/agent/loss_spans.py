"""Which of the losses that a run logs are told to the server: means over spans of steps. Pure."""

from typing import Final

from coddl.core.speed.training_length import LossPoint

FURTHER: Final = 0.1  # by which part of its steps a training must be further for another loss


class LossSpans:
    """Puts logged losses together until the training is a tenth further.

    So a training tells about 24 losses while its steps grow tenfold, however long it runs, and each
    is the mean of all that were logged since the one before.
    """

    def __init__(self) -> None:
        self._told_step = 0  # of the last loss that was told
        self._heard_step = 0  # of the last loss that was heard
        self._steps = 0.0  # the sum, over losses
        self._losses = 0.0
        self._count = 0

    def add(self, step: int, loss: float, count: int) -> LossPoint | None:
        """Take in the mean of some losses around a step; give the loss that is to be told now."""
        if step == self._heard_step:
            return None  # a repeat: it is told with every progress
        if step < self._heard_step:  # the run goes on from an older state
            self._told_step = 0
            self._clear()
        self._heard_step = step
        self._steps += step * count
        self._losses += loss * count
        self._count += count
        if step - self._told_step < FURTHER * self._told_step:
            return None
        self._told_step = step
        point = LossPoint(round(self._steps / self._count), self._losses / self._count)
        self._clear()
        return point

    def _clear(self) -> None:
        self._steps, self._losses, self._count = 0.0, 0.0, 0
