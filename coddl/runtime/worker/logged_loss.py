"""The mean of the losses that a script logs between two messages to its supervisor."""

from torch import Tensor

from coddl.runtime.wire import Message
from coddl.runtime.worker.numbers import number_of

NAME = "loss"  # of the number that a training's length is predicted from
LARGEST = 1e30  # beyond, it stands for "none yet", and sums would not be finite


class LoggedLoss:
    """Adds losses up where they are: on a GPU that waits for nothing."""

    def __init__(self) -> None:
        self._sum: float | Tensor = 0.0
        self._steps = 0
        self._count = 0

    def add(self, loss: float | Tensor, step: int) -> None:
        """Take in a loss of a step."""
        if not isinstance(loss, Tensor):
            self._sum = self._sum + float(loss)
        elif not isinstance(self._sum, Tensor) or self._sum.device == loss.device:
            self._sum = self._sum + loss.detach().float()
        else:  # a script may log one from the GPU, and one from an evaluation
            self._sum = number_of(self._sum) + loss.detach().float()
        self._steps += step
        self._count += 1

    def take(self) -> Message | None:
        """Return the mean since the last time, and begin anew; None if there is none."""
        total, steps, count = self._sum, self._steps, self._count
        self._sum, self._steps, self._count = 0.0, 0, 0
        if not count or not abs(mean := number_of(total) / count) <= LARGEST:
            return None
        return {"step": round(steps / count), "loss": mean, "count": count}
