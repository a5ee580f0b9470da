"""What a joiner runs before anyone waits for it: one batch and the end of an epoch, in silence.

Kernels are loaded, models are compiled, optimizers make room for their state, evaluation code has
been run once. Nothing of it counts: the job's state overwrites what it computed.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from coddl.runtime.worker.batches import Batch, mapped
from coddl.runtime.worker.state import parameters_of


class Rehearsal:
    """Asked for by the environment; runs at most once."""

    def __init__(
        self, parameters: Callable[[], list[Tensor]], buffers: Callable[[], list[Tensor]]
    ) -> None:
        self.is_asked = os.environ.pop("CODDL_REHEARSE", "") == "1"
        self.is_running = False
        self._parameters = parameters
        self._buffers = buffers
        self._before: list[Tensor] = []
        self._rates: dict[int, list[Any]] = {}
        self._silence: _Silence | None = None
        self._iterate: Callable[..., Any] | None = None

    def begin(self) -> None:
        """Begin, if it was asked for."""
        if not self.is_asked:
            return
        self.is_asked, self.is_running = False, True
        self._before = [buffer.detach().clone() for buffer in self._buffers()]
        self._silence = _Silence()
        original = self._iterate = DataLoader.__iter__

        def first_batch(loader: "DataLoader[Any]") -> Iterator[Any]:
            return islice(original(loader), 1)

        DataLoader.__iter__ = first_batch  # type: ignore[assignment,method-assign]

    def end(self) -> None:
        """End: from now on everything counts."""
        if not self.is_running:
            return
        self.is_running = False
        DataLoader.__iter__ = self._iterate  # type: ignore[assignment,method-assign]
        for parameter in self._parameters():
            parameter.grad = None  # the script may not clear it before the first real pass
        with torch.no_grad():
            for buffer, before in zip(self._buffers(), self._before, strict=False):
                buffer.copy_(before)
        if self._silence is not None:
            self._silence.end()

    def before_update(self, optimizer: Optimizer) -> None:
        """Have an optimizer make its state and load its kernels, without moving a weight."""
        if not self.is_running:
            return
        for parameter in parameters_of(optimizer):
            if parameter.grad is not None:
                parameter.grad.zero_()
        groups = optimizer.param_groups
        self._rates[id(optimizer)] = [group.get("lr") for group in groups]
        for group in groups:
            rate = group.get("lr")
            if rate is not None:
                group["lr"] = torch.zeros_like(rate) if isinstance(rate, Tensor) else 0.0

    def after_update(self, optimizer: Optimizer) -> None:
        """Put the learning rates back."""
        for group, rate in zip(
            optimizer.param_groups, self._rates.pop(id(optimizer), ()), strict=False
        ):
            if rate is not None:
                group["lr"] = rate


def mark_dynamic(batch: Batch) -> None:
    """Announce to torch.compile, if it is used, that the number of samples will change."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None or not dynamo.utils.counters.get("frames"):
        return

    def mark(tensor: Tensor) -> Tensor:
        if tensor.ndim:
            with suppress(Exception):  # what can't be dynamic is compiled anew
                dynamo.maybe_mark_dynamic(tensor, 0)
        return tensor

    mapped(batch, mark)


class _Silence:
    """Keeps what the script prints to itself, until it ends or fails."""

    def __init__(self) -> None:
        self._flush()
        self._kept = os.dup(1), os.dup(2)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os.close(nowhere)
        self._hook = sys.excepthook
        sys.excepthook = self._on_error

    def end(self) -> None:
        self._flush()
        for number, kept in zip((1, 2), self._kept, strict=True):
            os.dup2(kept, number)
            os.close(kept)
        self._kept = ()  # type: ignore[assignment]
        sys.excepthook = self._hook

    def _on_error(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self.end()
        self._hook(kind, error, trace)

    def _flush(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
