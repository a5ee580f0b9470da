"""What workers send each other at every exchange: a row of numbers each, compared by all.

Everything that workers do together begins with these rows. So a worker that does something else
than its peers is found out before a wrong update is made, and all know what each was doing.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work

from coddl.runtime.errors import TrainingError
from coddl.runtime.worker.group import Group

Kind = Literal[
    "gradients",
    "skip",
    "end",
    "begin",
    "mean",
    "sum",
    "gather",
    "check",
    "share",
    "change",
    "norm",
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
DOING: Final[dict[Kind, str]] = {
    "gradients": "was in backward()",
    "skip": "ended its pass without backward()",
    "end": "had left the loop over its loader",
    "begin": "began to iterate over its loader",
    "mean": "called coddl.mean",
    "sum": "called coddl.sum",
    "gather": "called coddl.gather",
    "check": "compared its weights",
    "share": "handed its state over",
    "change": "was about to change the group",
    "norm": "was in a SyncBatchNorm",
}
VOTE, BROKE, STOP, STALE, DEVIATES = 1, 2, 4, 8, 16  # flags
WORDS: Final = 29
_BITS: Final = 62  # of a word, for buckets
_FIRST_WORD: Final = 13
_PACKED: Final = struct.Struct(f"<{_FIRST_WORD}q")
PACKED_BYTES: Final = _PACKED.size


@dataclass(frozen=True, slots=True)
class PeerRow:
    """One worker's word on an exchange."""

    kind: Kind
    exchange: int  # how many it has completed
    step: int
    epoch: int
    layout: int = 0  # of the parameters; of a SyncBatchNorm, how many numbers it adds up
    rates: int = 0  # identifies the learning rates; its lower half is the first of them
    order: int = 0  # identifies the batch
    applied: int = 0  # updates that were made
    weight: float = 0.0
    value: float = 0.0
    flags: int = 0
    loader: int = 0
    buffers: int = 0  # of the main worker, that forward has changed: a bit each
    buckets: frozenset[int] = field(default_factory=frozenset)

    def words(self) -> list[int]:
        """Return it as whole numbers."""
        used = [0] * (WORDS - _FIRST_WORD)
        for bucket in self.buckets:
            used[bucket // _BITS] |= 1 << bucket % _BITS
        return [*self._about(), *used]

    def packed(self) -> bytearray:
        """Return it as bytes, without its buckets."""
        return bytearray(_PACKED.pack(*self._about()))

    def _about(self) -> list[int]:
        about = [KINDS.index(self.kind), self.exchange, self.step, self.epoch, self.layout]
        about += [self.rates, self.order, self.applied, _bits(self.weight), _bits(self.value)]
        return [*about, self.flags, self.loader, self.buffers]

    @classmethod
    def read(cls, words: Sequence[int], like: "PeerRow", mine: Sequence[int]) -> "PeerRow":
        """Read a row; what it has in common with this worker's own need not be looked at."""
        used = like.buckets if words[_FIRST_WORD:] == mine[_FIRST_WORD:] else _buckets(words)
        return cls._made(words[:_FIRST_WORD], used)

    @classmethod
    def unpacked(cls, packed: bytes, buckets: frozenset[int]) -> "list[PeerRow]":
        """Read the rows of all, by rank, of workers that use the same buckets."""
        return [cls._made(words, buckets) for words in _PACKED.iter_unpack(packed)]

    @classmethod
    def _made(cls, words: Sequence[int], used: frozenset[int]) -> "PeerRow":
        kind, exchange, step, epoch, layout, rates, order, applied = words[:8]
        weight, value, flags, loader, buffers = words[8:]
        about = (exchange, step, epoch, layout, rates, order, applied)
        more = (_float(weight), _float(value), flags, loader, buffers, used)
        return cls(KINDS[kind], *about, *more)


def _buckets(words: Sequence[int]) -> frozenset[int]:
    return frozenset(
        number * _BITS + bit
        for number, word in enumerate(words[_FIRST_WORD:])
        if word
        for bit in range(_BITS)
        if word >> bit & 1
    )


def _bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _float(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


def rate_bits(rate: float) -> int:
    """Return a learning rate as 32 bits."""
    return int(struct.unpack("<I", struct.pack("<f", rate))[0])


def first_rate(rates: int) -> float:
    """Return the learning rate in the lower half of `PeerRow.rates`."""
    return float(struct.unpack("<f", struct.pack("<I", rates & 0xFFFF_FFFF))[0])


def begin_gather(group: Group, row: PeerRow) -> tuple[Tensor, Work]:
    """Begin to collect the rows of all; raises GroupError."""
    everybody = torch.empty(group.world * WORDS, dtype=torch.int64)
    return everybody, group.all_gather(everybody, torch.tensor(row.words(), dtype=torch.int64))


def end_gather(
    group: Group, row: PeerRow, everybody: Tensor, work: Work, *, calls: bool
) -> list[PeerRow]:
    """Return the rows of all, by rank; raises GroupError."""
    with _calling(group, row.exchange) as call:
        group.finish(work, unless=call if calls else lambda: False)
    found = everybody.view(group.world, WORDS).tolist()
    return [PeerRow.read(words, row, found[group.rank]) for words in found]


def is_called(group: Group, exchange: int) -> bool:
    """Return whether a worker waits for the rows of an exchange; raises GroupError."""
    return group.has(_note(exchange))


@contextmanager
def _calling(group: Group, exchange: int) -> Iterator[Callable[[], bool]]:
    """Call the others if they let us wait: they may be sending rows along with gradients."""
    calls: list[str] = []

    def call() -> bool:
        if not calls:
            calls.append(_note(exchange))
            group.post(calls[0])
        return False

    yield call
    for note in calls:
        group.remove(note)


def _note(exchange: int) -> str:
    return f"rows of {exchange}"


def check(rows: Sequence[PeerRow], members: Sequence[int]) -> None:
    """Raise if workers don't do the same thing, at the same place, with the same settings."""
    what = "workers no longer do the same thing"
    # One that has left its loop early says so, and one that skips a batch: the others go on.
    doing = [row for row in rows if not (row.kind == "end" and row.flags & BROKE)]
    kinds = {row.kind for row in doing}
    places = {(row.exchange, row.step, row.epoch, row.loader) for row in doing}
    lengths = {row.layout for row in doing if row.kind == "norm"}
    is_same = len(kinds) <= 1 or kinds in ({"gradients", "skip"}, {"norm", "skip"})
    is_same &= len(doing) == len(rows) or "begin" not in kinds  # all must be there to begin
    if len(places) > 1 or len(lengths) > 1 or not is_same:
        raise TrainingError(what, _told(rows, members), WITHOUT_RANK)
    training = [row for row in rows if row.kind == "gradients"]
    for name, differs, try_ in DIFFERENCES:
        if len({getattr(row, name) for row in training}) > 1:
            because = _told(rows, members, with_rates=name == "rates")
            raise TrainingError(f"workers {differs}", because, try_)


WITHOUT_RANK: Final = (
    "the same calls of the model, backward(), coddl.mean and the loader in every worker, whatever "
    "coddl.is_main() says"
)
DIFFERENCES: Final = (
    (
        "layout",
        "train different parameters",
        "freeze and unfreeze by epoch or loader.step, and build the model alike in every worker",
    ),
    (
        "order",
        "have different batches",
        "seed what the dataset or its split is made from: random_split(..., "
        "generator=torch.Generator().manual_seed(0)), and draw a sampler's order when it begins",
    ),
    (
        "rates",
        "have different learning rates",
        "track what sets the rate: coddl.track(scheduler=...); a step counter of your own belongs "
        "into coddl.state(...), or use loader.step and coddl.enumerate(loader)",
    ),
    (
        "applied",
        "have made different numbers of updates",
        "coddl.enumerate(loader) in the place of enumerate(loader): a worker that joins counts "
        "from the job's position, not from 0",
    ),
)


def _told(rows: Iterable[PeerRow], members: Sequence[int], *, with_rates: bool = False) -> str:
    return "; ".join(
        f"worker {worker} {DOING[row.kind]} in epoch {row.epoch}, step {row.step}"
        + (f", exchange {row.exchange}" if row.kind == "gradients" else "")
        + (f", with {row.layout // 2} channels" if row.kind == "norm" else "")
        + (
            f", with learning rate {first_rate(row.rates):.6g} in its first group"
            if with_rates and row.rates
            else ""
        )
        for worker, row in zip(members, rows, strict=True)
    )
