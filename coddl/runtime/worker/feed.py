"""A DataLoader that loads what it is asked for, and whose processes outlive a change of mind.

Loader processes are given work ahead of time. What they were asked for can be withdrawn: they skip
it if they have not begun with it, and what comes of it is dropped. So a worker whose part of each
batch changes keeps its processes.
"""

import itertools
import mmap
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Sampler

from coddl.runtime.worker.order import Indices

Item = Any  # a batch: whatever the user's loader gives
Note = TypeVar("Note")  # what is known of a batch that was asked for

# Bytes that a feed shares with its processes: one for each batch that may be under way, 1 if it was
# withdrawn. Processes that are not forked don't find them, and load everything.
_WITHDRAWN: Final[dict[int, mmap.mmap]] = {}
_keys = itertools.count()


class Feed(Generic[Note]):
    """Loads batches in the order they were asked for; `ask` is called ahead of time.

    It gives what is to be loaded, with a note on it, or raises StopIteration.
    """

    def __init__(self, loader: "DataLoader[Any]", ask: Callable[[], tuple[Indices, Note]]) -> None:
        self._like = loader
        self._ask = ask
        self._inner: DataLoader[Any] | None = None
        self._stream: Iterator[Item] | None = None
        self._asked: deque[Note | None] = deque()  # and not handed out; None: withdrawn
        self._count = 0  # of all that were asked for
        self._depth = loader.num_workers * (loader.prefetch_factor or 0)
        self._filler: Indices | None = None  # asked for where there is nothing else yet
        self._key = next(_keys)
        if self._depth:
            _WITHDRAWN[self._key] = mmap.mmap(-1, self._depth)

    @property
    def is_full(self) -> bool:
        """Return whether it has been asked for as much as it can load ahead."""
        return self._stream is not None and 0 < self._depth == len(self._asked)

    @property
    def wanted(self) -> list[Note]:
        """The notes of what was asked for, and is neither handed out nor withdrawn."""
        return [note for note in self._asked if note is not None]

    def start(self, generator: torch.Generator | None) -> None:
        """Begin to load; seeds of processes are drawn as a DataLoader with that generator would."""
        self.stop()
        if self._inner is None:
            self._inner = rebuilt(self._like, _RequestSampler(self._next_request))
        self._inner.generator = generator
        self._stream = iter(self._inner)

    def warm_up(self, generator: torch.Generator, filler: Indices) -> None:
        """Start the processes before it is known what they will load.

        Each has loaded the filler once when this returns, and waits for something to be wanted.
        """
        self._filler = filler
        self.start(generator)
        assert self._stream is not None
        for _ in range(self._like.num_workers):
            next(self._stream)
            self._asked.popleft()
        self._filler = None

    def stop(self) -> None:
        """Load no more; processes end, unless they are persistent."""
        self.withdraw()
        self._asked.clear()
        self._stream = None

    def close(self) -> None:
        """Load no more, and end all processes."""
        self.stop()
        self._inner = None

    def next(self) -> tuple[Item, Note]:
        """Return the oldest batch that is wanted, and its note; raises StopIteration at the end."""
        assert self._stream is not None
        self.skip()
        batch = next(self._stream)
        note = self._asked.popleft()
        assert note is not None
        return batch, note

    def withdraw(self, keep: int = 0) -> list[Note]:
        """Withdraw what was asked for, but for the oldest few; gives the notes."""
        places = [place for place, note in enumerate(self._asked) if note is not None]
        notes = self.wanted[keep:]
        for place in places[keep:]:
            self._asked[place] = None
            if self._depth:
                slot = (self._count - len(self._asked) + place) % self._depth
                _WITHDRAWN[self._key][slot] = 1
        return notes

    def skip(self) -> None:
        """Drop what comes of withdrawn batches, so that others are asked for in their place."""
        assert self._stream is not None
        while self._asked and self._asked[0] is None:
            next(self._stream)
            self._asked.popleft()

    def _next_request(self) -> Any:
        indices, note = self._ask() if self._filler is None else (self._filler, None)
        self._asked.append(note)
        if not self._depth:
            return indices
        # A batch is asked for when the one `depth` before it has come: its byte is free.
        slot, self._count = self._count % self._depth, self._count + 1
        _WITHDRAWN[self._key][slot] = 0
        return _IndexRequest(self._key, slot, indices)


class _RequestSampler(Sampler[Any]):
    """What a feed asks its DataLoader for; there may be more of it after it has come to an end."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask

    def __iter__(self) -> "_RequestSampler":
        return self

    def __next__(self) -> Any:
        return self._ask()


class _IndexRequest:
    """Indices on their way to a process, which looks whether they are still wanted."""

    def __init__(self, key: int, slot: int, indices: Indices) -> None:
        self._parts = (key, slot, indices)

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, self._parts


def _received(key: int, slot: int, indices: Indices) -> Indices:
    withdrawn = _WITHDRAWN.get(key)
    if withdrawn is not None and withdrawn[slot] and isinstance(indices, list | tuple):
        return indices[:1]  # something must be loaded, and this is always possible
    return indices


def rebuilt(loader: "DataLoader[Any]", sampler: Any) -> "DataLoader[Any]":
    """Make a DataLoader that is like another one but for what it is asked for.

    It keeps the order: workers must have the same batches at the same time.
    """
    is_batched = loader.batch_sampler is not None
    return DataLoader(
        loader.dataset,
        batch_size=1 if is_batched else None,
        batch_sampler=sampler if is_batched else None,
        sampler=None if is_batched else sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        persistent_workers=loader.persistent_workers,
        pin_memory_device=loader.pin_memory_device,
        prefetch_factor=loader.prefetch_factor if loader.num_workers else None,
    )
