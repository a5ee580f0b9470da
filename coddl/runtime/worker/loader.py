"""The user's DataLoader, cut: each worker loads its slice of every batch.

A *round* is one iteration over the loader, an epoch as a rule. The order of its batches is the
loader's own: the main worker's random streams are captured at its start, and every other worker
draws the same order from them. A worker that joins in the middle takes the round up where it is.
"""

import itertools
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import isgeneratorfunction
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from coddl.runtime.errors import TrainingError
from coddl.runtime.slices import slices
from coddl.runtime.worker import batches
from coddl.runtime.worker.randomness import Streams, borrowed, capture

if TYPE_CHECKING:
    from coddl.runtime.worker.session import Session

Item = Any  # a batch: whatever the user's loader gives
PULLED_AT_ONCE: Final = 64  # batches of an order that is drawn from captured streams


@dataclass(frozen=True, slots=True)
class Slice:
    """What this worker has of a batch."""

    samples: int  # of the whole batch
    own: int  # here; 0 where a duplicate stands in
    order: int = 0  # tells the batch from others


@dataclass(frozen=True, slots=True)
class Cut:
    """How batches are cut from some number on."""

    first: int  # counted over all rounds
    rank: int
    counts: tuple[int, ...]

    def range_of(self, samples: int) -> range:
        """Give this worker's part of a batch; empty if it has none."""
        return slices(samples, self.counts)[self.rank]


class ElasticLoader:
    """A DataLoader whose batches are this worker's slices; everything else is the user's own."""

    def __init__(self, loader: "DataLoader[Any]", session: "Session", device: Any = None) -> None:
        self.rounds = -1  # the number of the round under way
        self.at = 0  # batches of this round that were handed out
        self.total = 0  # of all rounds
        self.slice = Slice(0, 0)
        self.streams: Streams | None = None  # that this round's order is drawn from
        self.is_fresh = False  # the round's order has not been given to the others yet
        self._loader = loader
        self._session = session
        self._device = device
        self._resumes = False  # the next round is one that others have begun
        self._cuts: list[Cut] = [Cut(0, 0, (1,))]
        self._order: _Order | None = None
        self._stream: Iterator[Item] | None = None
        self._cuts_samples = not is_cut_late(loader)
        self._sampler = _SliceSampler(self)
        self._inner: DataLoader[Any] | None = None
        self._length: int | None = None  # batches of a round, if that is known

    # -- what the user sees

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # dataset, batch_size, sampler, collate_fn, ...

    @property
    def step(self) -> int:
        """The number, in this epoch, of the batch that was handed out last."""
        return max(0, self.at - 1)

    def __iter__(self) -> Iterator[Item]:
        if self._session.is_untouched:
            self.rounds, self.at = self.rounds + 1, 0
            return self._untouched(iter(self._loader))
        self._session.rounds.begin(self)
        return self._batches()

    def _untouched(self, stream: Iterator[Item]) -> Iterator[Item]:
        """Give the batches of a script without a supervisor, as they are."""
        peers = self._session.peers
        for batch in stream:
            self.at += 1
            yield batch if self._device is None else batches.moved(batch, self._device)
            if peers.stopping:
                return

    def _batches(self) -> Iterator[Item]:
        session, complete = self._session, False
        try:
            while True:
                try:
                    batch = session.rounds.next_batch(self)
                except StopIteration:
                    complete = True
                    return
                yield batch
        finally:
            if not complete:
                session.rounds.leave(self)

    # -- what the session calls

    @property
    def is_last(self) -> bool:
        """Tell whether the round has no further batch, as far as its length is known."""
        return self._length is not None and self.at >= self._length

    def begin(self) -> None:
        """Begin the next round."""
        self.rounds += 1
        self.at = 0
        self.is_fresh = True
        self._length = _length(self._loader)
        self.streams = None
        self._stream = self._order = None

    @property
    def is_open(self) -> bool:
        """Tell whether batches can be fetched."""
        return self._stream is not None

    def open(self, streams: Streams | None, *, keep: bool) -> None:
        """Open the round under way, from where it stands.

        With `streams` its order is drawn from them; without, as the user's own loader would draw
        it, and the streams it is drawn from are kept if others may need them.
        """
        if self._cuts_samples:
            self._order = _Order(self._loader, streams, self.at, on_draw=self._keep(keep))
            if self.at:
                self.reopen()
            else:
                self._open_stream()
        else:
            self.streams = capture(self._loader.generator) if keep else None
            self._stream = itertools.islice(iter(self._loader), self.at, None)
        self.streams = streams if streams is not None else self.streams

    def _keep(self, keep: bool) -> Callable[[], None]:
        def on_draw() -> None:
            if keep:
                self.streams = capture(self._loader.generator)

        return on_draw

    def reopen(self) -> None:
        """Load from here on by the newest cut; what was loaded ahead is thrown away."""
        assert self._order is not None
        self._stream = None
        self._order.rewind()
        # An iterator draws a seed: the streams go on as if there had been one only.
        kept = torch.get_rng_state()
        self._open_stream(again=True)
        torch.set_rng_state(kept)

    def _open_stream(self, *, again: bool = False) -> None:
        assert self._order is not None
        if self._inner is None:
            # Workers must have the same batches at the same time; alone, the order is free.
            in_order = self._loader.in_order or len(self._cuts[-1].counts) > 1
            self._inner = rebuilt(self._loader, self._sampler, in_order=in_order)
        generator = self._loader.generator
        if generator is None or (self._order.is_natural and not again):
            self._stream = iter(self._inner)
            return
        kept = generator.get_state()
        self._stream = iter(self._inner)
        generator.set_state(kept)

    def fetch(self) -> Item:
        """Give this worker's slice of the next batch; raises StopIteration at the round's end."""
        assert self._stream is not None
        batch = next(self._stream)
        if self._cuts_samples:
            assert self._order is not None
            self.slice = self._order.handed_out()
        else:
            batch = self._cut_late(batch)
        self.at += 1
        self.total += 1
        return batch if self._device is None else batches.moved(batch, self._device)

    def _cut_late(self, batch: Item) -> Item:
        """Cut a batch that the dataset makes as a whole."""
        count = batches.samples_in(batch)
        cut = self.cut_of(self.total)
        if len(cut.counts) == 1 or count is None:
            self.slice = Slice(count or 1, count or 1)
            return batch
        part = cut.range_of(count)
        self.slice = Slice(count, len(part))
        return batches.cut(batch, part if part else range(1), count)

    def cut_of(self, number: int) -> Cut:
        """Give the cut of a batch, by its number over all rounds."""
        return next(cut for cut in reversed(self._cuts) if cut.first <= number)

    def own(self, cut: Cut) -> None:
        """Cut batches so from some number on."""
        if cut == self._cuts[-1]:
            return
        cuts = [*(earlier for earlier in self._cuts if earlier.first < cut.first), cut]
        current = max(i for i, each in enumerate(cuts) if each.first <= self.total)
        self._cuts = cuts[current:]
        if not self._loader.in_order:
            self._inner = None
        if self._stream is not None and self._cuts_samples:
            self.reopen()

    def end(self) -> None:
        """End the round: nothing of it is left to be handed out."""
        self._stream = self._order = self.streams = None
        self._resumes = False

    def forget(self) -> None:
        """Be as new: what was handed out was a rehearsal."""
        self.end()
        self.rounds, self.at, self.total, self.streams = -1, 0, 0, None
        self._inner = None

    def close(self) -> None:
        """End the loader's processes."""
        self._stream = self._inner = self._order = None

    # -- state

    def progress(self) -> dict[str, Any]:
        """Give where the loader stands."""
        about = {"rounds": self.rounds, "at": self.at, "total": self.total}
        return {**about, "streams": self.streams}

    def resume(self, held: dict[str, Any]) -> None:
        """Stand where another worker's loader stands; the next iteration takes it up there."""
        self.rounds, self.at, self.total = held["rounds"], held["at"], held["total"]
        self.streams = held["streams"]
        self._resumes = self.rounds >= 0 and self.streams is not None
        self._cuts = [Cut(0, c.rank, c.counts) for c in self._cuts[-1:]]
        self._stream, self._order = None, None
        self.is_fresh = False
        self._length = _length(self._loader)

    def takes_up(self) -> bool:
        """Tell, once, whether the round to begin is one that others have begun."""
        resumes, self._resumes = self._resumes, False
        return resumes


class _Order:
    """The batches of a round as lists of indices, and which of them were handed out."""

    def __init__(
        self,
        loader: "DataLoader[Any]",
        streams: Streams | None,
        start: int,
        on_draw: Callable[[], None],
    ) -> None:
        assert loader.batch_sampler is not None
        self.is_natural = streams is None  # drawn as the user's own loader would draw it
        self._generator = loader.generator
        self._streams = None if streams is None else dict(streams)
        self._on_draw: Callable[[], None] | None = None
        self._pending: deque[tuple[list[int], Slice]] = deque()  # given to the loader, not out yet
        self._ahead: deque[list[int]] = deque()  # drawn, not given to the loader
        if self._streams is None:
            # Samplers draw when the first batch is asked for, but for a few that do it at once.
            if isgeneratorfunction(type(loader.batch_sampler).__iter__):
                self._on_draw = on_draw
            else:
                on_draw()
            self._source: Iterator[list[int]] = iter(loader.batch_sampler)
            return
        with borrowed(self._streams, self._generator):
            self._source = iter(loader.batch_sampler)
            for _ in itertools.islice(self._source, start):
                pass

    def rewind(self) -> None:
        """Give once more what was loaded and not handed out."""
        self._ahead.extendleft(batch for batch, _ in reversed(self._pending))
        self._pending.clear()

    def take(self) -> list[int]:
        """Draw the next batch; raises StopIteration at the end."""
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

    def give(self, batch: list[int], cut: Slice) -> None:
        """Take note that a batch is being loaded."""
        self._pending.append((batch, cut))

    @property
    def loading(self) -> int:
        """How many batches are being loaded."""
        return len(self._pending)

    def handed_out(self) -> Slice:
        """Take note that the oldest batch that was loaded is handed out."""
        return self._pending.popleft()[1]


class _SliceSampler(Sampler[list[int]]):
    """Gives this worker's part of each batch's indices; for the DataLoader that loads them."""

    def __init__(self, loader: ElasticLoader) -> None:
        self._elastic = loader

    def __iter__(self) -> Iterator[list[int]]:
        elastic = self._elastic
        order = elastic._order
        while order is not None:
            try:
                batch = order.take()
            except StopIteration:
                return
            cut = elastic.cut_of(elastic.total + order.loading)
            if len(cut.counts) == 1:
                order.give(batch, Slice(len(batch), len(batch), 0))
                yield batch
                continue
            part = cut.range_of(len(batch))
            order.give(batch, Slice(len(batch), len(part), _fingerprint(batch)))
            yield batch[part.start : part.stop] if part else batch[:1]

    def __len__(self) -> int:
        return len(self._elastic)


class EvalLoader:
    """A loader for evaluation: each worker gets every n-th batch, and results are put together."""

    def __init__(self, loader: "DataLoader[Any]", session: "Session") -> None:
        self._loader = loader
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        rank, size = self._session.place
        return len(range(rank, len(self._loader), size))

    def __iter__(self) -> Iterator[Item]:
        rank, size = self._session.place
        if size == 1:
            return iter(self._loader)
        if is_cut_late(self._loader):
            return itertools.islice(iter(self._loader), rank, None, size)
        assert self._loader.batch_sampler is not None
        mine = list(itertools.islice(self._loader.batch_sampler, rank, None, size))
        return iter(rebuilt(self._loader, mine))


def is_cut_late(loader: "DataLoader[Any]") -> bool:
    """Tell whether the dataset makes batches, or samples in a stream: no index finds a sample."""
    return isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None


def rebuilt(
    loader: "DataLoader[Any]", batch_sampler: Iterable[Sequence[int]], *, in_order: bool = True
) -> "DataLoader[Any]":
    """Make a DataLoader that is like another one but for the batches it is asked for."""
    return DataLoader(
        loader.dataset,
        batch_sampler=batch_sampler,  # type: ignore[arg-type] # lists of indices
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
        in_order=in_order,
    )


def _length(loader: "DataLoader[Any]") -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def _fingerprint(batch: list[int]) -> int:
    try:
        return zlib.crc32(array("q", batch).tobytes())
    except TypeError:  # indices may be anything
        return zlib.crc32(repr(batch).encode())


def check_loader(loader: "DataLoader[Any]") -> None:
    """Raise if a loader can't be cut."""
    sampler = type(loader.sampler).__name__
    if "Distributed" in sampler:
        raise TrainingError(
            f"the loader has a {sampler}",
            "it gives each process of a fixed group its own samples, and coddl cuts every batch "
            "itself",
            "DataLoader(dataset, batch_size=..., shuffle=True), with the global batch size",
        )
