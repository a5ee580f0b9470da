"""Five models of different shape. What they compute is real and small; the time it takes is not.

A model passes over the first two samples of its slice, whatever its size: so gradients, updates and
their exchange are real. Each of its stages then waits until the time is over that it would take for
all samples of the slice on a device that is not shared, forward and backward:

    fixed + per_sample * samples,   cut among the stages by their parts

The real computing lies within that time. A stage of the backward pass waits before it computes its
gradients, so that they become complete one stage after the other, as those of a real one do.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor, nn

SEED: Final = 1
BATCH: Final = 24  # samples of an update; 2, 3 and 4 workers have as many each
COMPUTED: Final = 2  # samples that are really passed over
CLASSES: Final = 10


class Pace:
    """When the stages of a pass have to be over."""

    def __init__(self, pass_s: tuple[float, float], parts: Sequence[float]) -> None:
        """`pass_s`: fixed and for a sample, of a whole pass; `parts`: of its stages, in order.

        A third of it is forward, the rest backward.
        """
        fixed_s, sample_s = pass_s
        self._forward = (fixed_s / 3, sample_s / 3)
        self._backward = (2 * fixed_s / 3, 2 * sample_s / 3)
        whole = sum(parts)
        self._until = [sum(parts[: i + 1]) / whole for i in range(len(parts))]
        self._from = [sum(parts[i:]) / whole for i in range(len(parts))]
        self._samples = 0
        self._begin_s = 0.0

    def begin(self, samples: int) -> None:
        """Begin a pass."""
        self._samples, self._begin_s = samples, time.monotonic()

    def end_forward(self, stage: int) -> None:
        """Wait for the end of a stage."""
        self._wait(self._forward, self._until[stage])

    def begin_backward(self, stage: int) -> None:
        """Wait for the time at which a stage of the backward pass is about to be over."""
        if stage == len(self._until) - 1:
            self._begin_s = time.monotonic()
        self._wait(self._backward, self._from[stage])

    def _wait(self, times: tuple[float, float], part: float) -> None:
        end_s = self._begin_s + part * (times[0] + times[1] * self._samples)
        if (left_s := end_s - time.monotonic()) > 0.0:
            time.sleep(left_s)


class Wait(torch.autograd.Function):
    """Waits, forward and backward, and changes nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pace: Pace, stage: int) -> Tensor:
        ctx.pace, ctx.stage = pace, stage
        pace.end_forward(stage)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        ctx.pace.begin_backward(ctx.stage)
        return gradients[0], None, None


def _waited(x: Tensor, pace: Pace, stage: int) -> Tensor:
    apply: Callable[..., Tensor] = Wait.apply  # torch's stubs know no arguments of it
    return apply(x, pace, stage)


class Paced(nn.Module):
    """A model of stages that take their time."""

    def __init__(self, stages: Sequence[nn.Module], pace: Pace) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self._pace = pace

    def forward(self, x: Tensor) -> Tensor:
        """Give what the model says about the first samples."""
        self._pace.begin(len(x))
        x = x[:COMPUTED]
        for number, stage in enumerate(self.stages):
            x = _waited(stage(x), self._pace, number)
        return x


class Residual(nn.Module):
    """Two convolutions with batch normalization, and a way around them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.skip = nn.Conv2d(inputs, outputs, 1, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.skip(x))


class Recurrent(nn.Module):
    """An LSTM over all words; what it says at the last one counts."""

    def __init__(self, inputs: int, width: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, width, layers, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.lstm(x)[0][:, -1]
        return found


class Mean(nn.Module):
    """The mean over the second dimension."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def _images() -> Tensor:
    return torch.randn(64, 3, 16, 16)


def _rows() -> Tensor:
    return torch.randn(64, 64)


def _words(words: int) -> Tensor:
    return torch.randint(words, (64, 12))


def _cnn() -> list[nn.Module]:
    widths = (32, 64, 128, 256)
    blocks = [Residual(*pair) for pair in pairwise(widths)]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, CLASSES))
    return [nn.Conv2d(3, 32, 3, 1, 1), *blocks, head]


def _mlp() -> list[nn.Module]:
    layers = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(16)]
    return [*layers, nn.Linear(64, CLASSES)]


def _embedding() -> list[nn.Module]:
    hidden = nn.Sequential(Mean(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
    return [nn.Embedding(30_000, 64), hidden, nn.Linear(256, CLASSES)]


def _transformer() -> list[nn.Module]:
    layers: list[nn.Module] = [
        nn.TransformerEncoderLayer(160, 4, 640, dropout=0.0, batch_first=True) for _ in range(4)
    ]
    return [nn.Embedding(1024, 160), *layers, nn.Sequential(Mean(), nn.Linear(160, CLASSES))]


def _rnn() -> list[nn.Module]:
    return [nn.Embedding(1024, 128), Recurrent(128, 256, 2), nn.Linear(256, CLASSES)]


@dataclass(frozen=True, slots=True)
class PacedKind:
    """A kind of model, and how long its passes take."""

    stages: Callable[[], list[nn.Module]]
    inputs: Callable[[], Tensor]
    parts: tuple[float, ...]  # of the time of a pass, by stage
    fixed_s: float  # of a pass, forward and backward
    sample_s: float  # for each of its samples, forward and backward


KINDS: Final = {
    "cnn": PacedKind(_cnn, _images, (1, 3, 3, 3, 0.5), 0.012, 0.016),
    "mlp": PacedKind(_mlp, _rows, (1,) * 17, 0.020, 0.008),
    "embedding": PacedKind(_embedding, lambda: _words(30_000), (1, 4, 1), 0.008, 0.006),
    "transformer": PacedKind(_transformer, lambda: _words(1024), (1, 4, 4, 4, 4, 1), 0.024, 0.014),
    "rnn": PacedKind(_rnn, lambda: _words(1024), (1, 8, 1), 0.020, 0.010),
}


def paced(kind: str) -> tuple[nn.Module, Tensor]:
    """Build a model and its inputs; the same numbers each time."""
    torch.manual_seed(SEED)
    made = KINDS[kind]
    pace = Pace((made.fixed_s, made.sample_s), made.parts)
    return Paced(made.stages(), pace), made.inputs()
