"""Takes the end of `backward()`: after it, gradients are exchanged before the user's next line."""

from collections.abc import Callable
from typing import Any, Protocol

import torch


class Exchanging(Protocol):
    """What is done around a backward."""

    @property
    def is_due(self) -> bool:
        """Tell whether a backward is to be exchanged."""

    def keep_back(self) -> None:
        """Take note of a backward that is not exchanged."""

    def begin_backward(self) -> None:
        """Expect gradients."""

    def end_backward(self) -> None:
        """Make `.grad` the gradient of the global batch."""


class Backward:
    """Stands in the place of `torch.autograd.backward`, which every backward goes through.

    A callback queued in autograd's engine would fire once per nested graph, as activation
    checkpointing makes them; the outermost call ends once.
    """

    def __init__(self, exchange: Exchanging) -> None:
        self._exchange = exchange
        self._original: Callable[..., Any] | None = None
        self._is_running = False

    def install(self, wanted: bool) -> None:
        """Take the place, or give it back: alone, nothing is touched."""
        if wanted and self._original is None:
            self._original = torch.autograd.backward
            torch.autograd.backward = self._backward
        elif not wanted and self._original is not None and not self._is_running:
            torch.autograd.backward = self._original
            self._original = None

    def _backward(self, *args: Any, **kwargs: Any) -> None:
        assert self._original is not None
        if self._is_running or not self._exchange.is_due:
            if not self._is_running:
                self._exchange.keep_back()
            self._original(*args, **kwargs)
            return
        self._is_running = True
        try:
            self._exchange.begin_backward()
            self._original(*args, **kwargs)
            self._exchange.end_backward()
        finally:
            self._is_running = False
