"""The user's DataLoader, cut: each worker loads its slice of every batch.

A *round* is one iteration over the loader, an epoch as a rule. The order of its batches is the
loader's own: the main worker's random streams are captured at its start, and every other worker
draws the same order from them. A worker that joins in the middle takes the round up where it is.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from coddl.runtime.errors import TrainingError
from coddl.runtime.slices import slices
from coddl.runtime.worker import batches
from coddl.runtime.worker.feed import Feed, rebuilt
from coddl.runtime.worker.image import flatten
from coddl.runtime.worker.order import BatchOrder, Indices, fingerprint
from coddl.runtime.worker.randomness import Streams, capture, own_generator

if TYPE_CHECKING:
    from coddl.runtime.worker.session import TrainingSession

Item = Any  # a batch: whatever the user's loader gives


@dataclass(frozen=True, slots=True)
class Slice:
    """What this worker has of a batch."""

    samples: int  # of the whole batch
    own: int  # here; 0 where a duplicate stands in
    order: int = 0  # identifies the batch


@dataclass(frozen=True, slots=True)
class Cut:
    """How batches are cut from some number on."""

    first: int  # counted over all rounds
    rank: int
    counts: tuple[int, ...]

    def range_of(self, samples: int) -> range:
        """Give this worker's part of a batch; empty if it has none."""
        return slices(samples, self.counts)[self.rank]

    def is_like(self, other: "Cut") -> bool:
        """Return whether this worker has the same part of a batch by both."""
        return (self.rank, self.counts) == (other.rank, other.counts)


@dataclass(frozen=True, slots=True)
class _PendingBatch:
    """A batch that is being loaded."""

    batch: Indices  # the whole of it
    cut: Cut | None  # by which a part of it is loaded; None: it is cut when it is there
    slice: Slice


class ElasticLoader:
    """A DataLoader whose batches are this worker's slices; everything else is the user's own."""

    def __init__(
        self, loader: "DataLoader[Any]", session: "TrainingSession", device: Any = None
    ) -> None:
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
        self._expected: Cut | None = None  # what the next change of the group will bring
        self._at_update = 0  # batches of all rounds at the last update
        self.stride = 0  # batches from an update to the next
        self._is_cut_late = is_cut_late(loader)
        self._order: BatchOrder | None = None
        is_stream = isinstance(loader.dataset, IterableDataset)
        self._feed: Feed[_PendingBatch] | None = None if is_stream else Feed(loader, self._ask)
        self._filler: Indices | None = None  # a sample that was loaded before, as a batch
        self._is_warm = False  # processes wait for their first round
        self._stream: Iterator[Item] | None = None  # of a dataset that no index leads into
        self._state: Any = None  # of a dataset that keeps one: where it is to be read from
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
        """Yield the batches of a script without a supervisor, as they are."""
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
        """Return whether the round has no further batch, as far as its length is known."""
        return self._length is not None and self.at >= self._length

    def begin(self) -> None:
        """Begin the next round."""
        self.rounds += 1
        self.at = 0
        self.is_fresh = True
        self._length = _length(self._loader)
        self.streams = None
        self._stop()
        if self._is_warm:
            self.close()  # a round that begins here has the processes that a DataLoader gives it

    @property
    def is_open(self) -> bool:
        """Return whether batches can be fetched."""
        return self._order is not None or self._stream is not None

    def open(self, streams: Streams | None, *, keep: bool) -> None:
        """Open the round under way, from where it stands.

        With `streams` its order is drawn from them; without, as the user's own loader would draw
        it, and the streams it is drawn from are kept if others may need them.
        """
        if self._feed is None:
            self.streams = capture(self._loader.generator) if keep else None
            self._stream = self._read_on() if self.at else self._read()
        else:
            order = BatchOrder(self._loader, streams, self.at, on_draw=self._keep(keep))
            self._begin_feed(self._feed, order, is_natural=streams is None)
        self.streams = streams if streams is not None else self.streams

    def _keep(self, keep: bool) -> Callable[[], None]:
        def on_draw() -> None:
            if keep:
                self.streams = capture(self._loader.generator)

        return on_draw

    def _read(self) -> Iterator[Item]:
        """Read a dataset that no index leads into."""
        dataset = stateful(self._loader)
        self._state = None if dataset is None else dataset.state_dict()
        return iter(self._loader)

    def _read_on(self) -> Iterator[Item]:
        """Read it from where the round stands."""
        if (state := self._state) is not None:
            stateful(self._loader).load_state_dict(state)
        kept = torch.get_rng_state()  # which an iterator moves, and there has been one
        stream = iter(self._loader)
        torch.set_rng_state(kept)
        return stream if state is not None else itertools.islice(stream, self.at, None)

    def _begin_feed(
        self, feed: "Feed[_PendingBatch]", order: BatchOrder, *, is_natural: bool
    ) -> None:
        """Have batches loaded in that order; what was read ahead of it is kept if it is right."""
        asked = feed.wanted
        ahead = order.take_some(len(asked))
        is_ahead = bool(ahead) and [*map(fingerprint, ahead)] == [
            fingerprint(each.batch) for each in asked
        ]
        if not is_ahead:
            order.put_back(ahead)
            feed.withdraw()
        self._order, self._is_warm = order, False
        if is_natural:
            feed.start(self._loader.generator)
        elif not is_ahead and not feed.is_full:
            feed.start(self._own_generator())

    def _own_generator(self) -> torch.Generator:
        # An iterator draws a seed. If this is the second one in a round, the script's streams go on
        # as if it had not been.
        return own_generator(moves=self.at == 0)

    def _ask(self) -> tuple[Indices, _PendingBatch]:
        """Give this worker's part of the next batch to be loaded."""
        if self._order is None:
            raise StopIteration
        assert self._feed is not None
        batch = self._order.take()
        number = self.total + len(self._feed.wanted)
        expected = self._expected
        cut = self.cut_of(number) if expected is None or number < expected.first else expected
        if self._is_cut_late:
            return batch, _PendingBatch(batch, None, Slice(0, 0, fingerprint([batch])))
        if len(cut.counts) == 1:
            return batch, _PendingBatch(batch, cut, Slice(len(batch), len(batch)))
        part = cut.range_of(len(batch))
        asked = _PendingBatch(batch, cut, Slice(len(batch), len(part), fingerprint(batch)))
        return batch[part.start : part.stop] if part else batch[:1], asked

    def fetch(self) -> Item:
        """Give this worker's slice of the next batch; raises StopIteration at the round's end."""
        order = 0
        if self._feed is None:
            assert self._stream is not None
            batch = next(self._stream)
        else:
            self._correct(self._feed)
            batch, asked = self._feed.next()
            self.slice, order = asked.slice, asked.slice.order
            if self.at == 0 and isinstance(asked.batch, list | tuple):
                self._filler = asked.batch[:1]
        if self._is_cut_late:
            batch = self._cut_late(batch, order)
        self.at += 1
        self.total += 1
        if self._expected is not None and self._feed is not None:
            self._skip(self._feed)  # now, so that the next batch is loaded during this pass
        return batch if self._device is None else batches.moved(batch, self._device)

    def _correct(self, feed: "Feed[_PendingBatch]") -> None:
        """Load anew what is being loaded by another cut than the next batch has."""
        cut = next((asked.cut for asked in feed.wanted), None)
        if cut is not None and not cut.is_like(self.cut_of(self.total)):
            self._expected = None
            self._withdraw(feed)
        self._skip(feed)

    def _skip(self, feed: "Feed[_PendingBatch]") -> None:
        try:
            feed.skip()
        except Exception:  # nothing that was wanted: what is wrong shows again where it matters
            self._withdraw(feed)
            feed.close()
            feed.start(self._own_generator())

    def _withdraw(self, feed: "Feed[_PendingBatch]", keep: int = 0) -> None:
        assert self._order is not None
        self._order.put_back(asked.batch for asked in feed.withdraw(keep))

    def _cut_late(self, batch: Item, order: int) -> Item:
        """Cut a batch that the dataset makes as a whole."""
        count = batches.samples_in(batch)
        cut = self.cut_of(self.total)
        if len(cut.counts) == 1 or count is None:
            self.slice = Slice(count or 1, count or 1, order)
            return batch
        part = cut.range_of(count)
        self.slice = Slice(count, len(part), order)
        return batches.cut(batch, part if part else range(1), count)

    def cut_of(self, number: int) -> Cut:
        """Return the cut of a batch, by its number over all rounds."""
        return next(cut for cut in reversed(self._cuts) if cut.first <= number)

    def own(self, cut: Cut) -> None:
        """Cut batches so from some number on."""
        self._expected = None
        if cut == self._cuts[-1]:
            return
        cuts = [*(earlier for earlier in self._cuts if earlier.first < cut.first), cut]
        current = max(i for i, each in enumerate(cuts) if each.first <= self.total)
        self._cuts = cuts[current:]

    # -- ahead of a change of the group

    def warm_up(self, seed: int) -> None:
        """Start the loader's processes before it is known what they will load.

        That takes a sample to load: there is one if this worker has rehearsed.
        """
        if self._feed is not None and self._loader.num_workers and self._filler is not None:
            self._feed.warm_up(torch.Generator().manual_seed(seed), self._filler)
            self._is_warm = True

    def cool_down(self) -> None:
        """End processes that were started ahead of time, if the dataset may have changed since."""
        if self._is_warm and not self._loader.persistent_workers:
            self.close()

    def note_update(self) -> None:
        """Take note that an update was made."""
        self.stride, self._at_update = self.total - self._at_update, self.total

    @property
    def reads_ahead(self) -> bool:
        """Return whether processes could load what comes after the next update meanwhile."""
        is_within = self._length is None or self.at + self.stride < self._length
        is_loading = self._order is not None and self._loader.num_workers > 0
        return is_loading and self.stride > 0 and is_within and not self._is_cut_late

    def expect(self, rank: int, counts: Sequence[int]) -> None:
        """Load the batches that come after the next update by the cut that they will have."""
        if self._feed is not None and self.reads_ahead:
            self._expected = Cut(self.total + self.stride, rank, tuple(counts))
            self._withdraw(self._feed, keep=self.stride)

    def read_ahead(self, held: dict[str, Any], rank: int, counts: Sequence[int]) -> None:
        """Load what another worker's loader will have come to after its next update."""
        if self._feed is None or not self._is_warm or held["streams"] is None:
            return
        at, total = held["at"] + held["stride"], held["total"] + held["stride"]
        self.resume({**held, "at": at, "total": total})
        self._expected = Cut(0, rank, tuple(counts))
        self.open(self.streams, keep=True)
        self._is_warm = True
        self._skip(self._feed)

    def end(self) -> None:
        """End the round: nothing of it is left to be handed out."""
        self._stop()
        self.streams = None
        self._resumes = False

    def _stop(self) -> None:
        self._stream = self._order = None
        if self._feed is not None:
            self._feed.stop()

    def forget(self) -> None:
        """Be as new: what was handed out was a rehearsal."""
        self.end()
        self.close()
        if self._state is not None:
            stateful(self._loader).load_state_dict(self._state)
        self.rounds, self.at, self.total = -1, 0, 0

    def close(self) -> None:
        """End the loader's processes."""
        self._stream = self._order = None
        self._is_warm = False
        if self._feed is not None:
            self._feed.close()

    # -- state

    def progress(self) -> dict[str, Any]:
        """Return where the loader stands."""
        about = {"rounds": self.rounds, "at": self.at, "total": self.total, "stride": self.stride}
        dataset = stateful(self._loader) if self._stream is not None else None
        state = None if dataset is None else dataset.state_dict()
        return {**about, "streams": self.streams, "dataset": state}

    def resume(self, held: dict[str, Any]) -> None:
        """Stand where another worker's loader stands; the next iteration takes it up there."""
        self.rounds, self.at, self.total = held["rounds"], held["at"], held["total"]
        self.streams, self._state = held["streams"], held.get("dataset")
        self._resumes = self.rounds >= 0 and self.streams is not None
        self._cuts = [Cut(0, c.rank, c.counts) for c in self._cuts[-1:]]
        self._stream = self._order = None
        if not self._resumes:
            self.close()
        self._at_update = self.total
        self.is_fresh = False
        self._length = _length(self._loader)

    def takes_up(self) -> bool:
        """Return, once, whether the round to begin is one that others have begun."""
        resumes, self._resumes = self._resumes, False
        return resumes


class EvalLoader:
    """A loader for evaluation: each worker gets every n-th batch, and results are put together."""

    def __init__(self, loader: "DataLoader[Any]", session: "TrainingSession") -> None:
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
    """Return whether the dataset makes batches, or samples in a stream: no index finds a sample."""
    return isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None


def stateful(loader: "DataLoader[Any]") -> Any:
    """Return a loader's dataset if it is a stream with a position of its own; None otherwise.

    With loader processes it is their copies that are read, and the script's own does not move.
    """
    dataset = loader.dataset
    if not isinstance(dataset, IterableDataset) or loader.num_workers:
        return None
    has_state = all(callable(getattr(dataset, f"{do}state_dict", None)) for do in ("", "load_"))
    return dataset if has_state else None


def _length(loader: "DataLoader[Any]") -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


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
    if (dataset := stateful(loader)) is not None:
        flatten({type(dataset).__name__: dataset.state_dict()})  # raises if it can't be kept
