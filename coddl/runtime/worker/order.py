"""The order of a round: which samples each of its batches has, the same on every worker."""

import itertools
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from inspect import isgeneratorfunction
from typing import Any, Final

from torch.utils.data import DataLoader

from coddl.runtime.worker.randomness import Streams, borrowed

Indices = Any  # what names a batch's samples: a list of numbers, as a rule
PULLED_AT_ONCE: Final = 64  # batches of an order that is drawn from captured streams


class BatchOrder:
    """The batches of a round that have not been asked for, as the loader's own sampler gives them.

    With `streams` they are drawn from those; without, as the user's own loader would draw them, and
    `on_draw` is called right before.
    """

    def __init__(
        self,
        loader: "DataLoader[Any]",
        streams: Streams | None,
        start: int,
        on_draw: Callable[[], None],
    ) -> None:
        sampler: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        self._generator = loader.generator
        self._streams = None if streams is None else dict(streams)
        self._on_draw: Callable[[], None] | None = None
        self._ahead: deque[Indices] = deque()  # drawn, not taken
        if self._streams is None:
            # Samplers draw when the first batch is asked for, but for a few that do it at once.
            if isgeneratorfunction(type(sampler).__iter__):
                self._on_draw = on_draw
            else:
                on_draw()
            self._source: Iterator[Indices] = iter(sampler)
            return
        with borrowed(self._streams, self._generator):
            self._source = iter(sampler)
            for _ in itertools.islice(self._source, start):
                pass

    def take(self) -> Indices:
        """Return the next batch; raises StopIteration at the end."""
        if not self._ahead:
            if self._streams is None:
                if self._on_draw is not None:
                    self._on_draw()
                    self._on_draw = None
                return next(self._source)
            with borrowed(self._streams, self._generator):
                self._ahead.extend(itertools.islice(self._source, PULLED_AT_ONCE))
        if not self._ahead:
            raise StopIteration
        return self._ahead.popleft()

    def take_some(self, count: int) -> list[Indices]:
        """Return that many batches, or what is left."""
        taken: list[Indices] = []
        with suppress(StopIteration):
            while len(taken) < count:
                taken.append(self.take())
        return taken

    def put_back(self, batches: Iterable[Indices]) -> None:
        """Have batches that were taken come next once more."""
        self._ahead.extendleft(reversed([*batches]))


def fingerprint(batch: Indices) -> int:
    """Return a number that identifies a batch."""
    try:
        return zlib.crc32(array("q", batch).tobytes())
    except TypeError:  # indices may be anything
        return zlib.crc32(repr(batch).encode())
