"""Takes the end of `backward()`: after it, gradients are exchanged before the user's next line."""

from collections.abc import Callable
from typing import Any, Protocol

import torch


class Exchanging(Protocol):
    """What is done around a backward."""

    @property
    def is_due(self) -> bool:
        """Return whether a backward is to be exchanged."""

    def keep_back(self) -> None:
        """Take note of a backward that is not exchanged."""

    def begin_backward(self) -> None:
        """Expect gradients."""

    def end_backward(self) -> None:
        """Make `.grad` the gradient of the global batch."""


class NoExchange:
    """Exchanges no backward: the gradients are taken when the optimizer steps."""

    is_due = False

    def keep_back(self) -> None:
        """Nothing: no exchange follows."""

    def begin_backward(self) -> None:
        """Never called."""

    def end_backward(self) -> None:
        """Never called."""


class BackwardObserver(Protocol):
    """Observer of outermost backwards, whether their gradients are exchanged or not."""

    def begin_backward(self) -> None:
        """Take note that gradients are computed now."""

    def end_backward(self) -> None:
        """Take note that they are there."""

    def end_exchange(self) -> None:
        """Take note that they are those of the global batch."""


class Backward:
    """Stands in the place of `torch.autograd.backward`, which every backward goes through.

    A callback queued in autograd's engine would fire once per nested graph, as activation
    checkpointing makes them; the outermost call ends once.
    """

    def __init__(self, exchange: Exchanging) -> None:
        self._exchange = exchange
        self._observer: BackwardObserver | None = None
        self._original: Callable[..., Any] | None = None
        self._is_wanted = False
        self._is_running = False

    def install(self, wanted: bool) -> None:
        """Take the place, or give it back: alone, nothing is touched."""
        self._is_wanted = wanted
        self._take_place()

    def observe(self, observer: BackwardObserver | None) -> None:
        """Have backwards observed from now on, or no longer."""
        self._observer = observer
        self._take_place()

    def _take_place(self) -> None:
        wanted = self._is_wanted or self._observer is not None
        if wanted and self._original is None:
            self._original = torch.autograd.backward
            torch.autograd.backward = self._backward
        elif not wanted and self._original is not None and not self._is_running:
            torch.autograd.backward = self._original
            self._original = None

    def _backward(self, *args: Any, **kwargs: Any) -> None:
        assert self._original is not None
        if self._is_running or (self._observer is None and not self._exchange.is_due):
            if not self._is_running:
                self._exchange.keep_back()
            self._original(*args, **kwargs)
            return
        is_due, observer = self._exchange.is_due, self._observer
        self._is_running = True
        try:
            if is_due:
                self._exchange.begin_backward()
            else:
                self._exchange.keep_back()
            if observer is not None:
                observer.begin_backward()
            self._original(*args, **kwargs)
            if observer is not None:
                observer.end_backward()
            if is_due:
                self._exchange.end_backward()
                if observer is not None:
                    observer.end_exchange()
        finally:
            self._is_running = False
