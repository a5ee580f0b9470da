"""Finds out when workers train different things: data, learning rates, weights."""

import math
import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import IterableDataset

from coddl.runtime.errors import TrainingError
from coddl.runtime.worker import randomness
from coddl.runtime.worker.rows import rate_bits

TOLERANCE: Final = 1e-5
SAMPLES_READ: Final = 3
WHOLE: Final = 10_000_000  # parameters up to which a check looks at all; else at a part, in turn
PARTS: Final = 8
JUMP: Final = 10.0  # a learning rate that changes by more, from a save to the next update, jumps


def rates_of(optimizers: Sequence[Optimizer]) -> int:
    """Return one number that identifies all learning rates; it has the first (`rows.first_rate`).

    Those on a device are left out, as reading them would wait.
    """
    rates = [
        group.get("lr")
        for optimizer in optimizers
        for group in optimizer.param_groups
        if not isinstance(group.get("lr"), Tensor)
    ]
    first = float(rates[0]) if rates and rates[0] is not None else math.nan
    return zlib.crc32(repr(rates).encode()) >> 1 << 32 | rate_bits(first)


class Guard:
    """Compares this worker with the others, and with the job as it was saved."""

    def __init__(
        self, optimizers: Sequence[Optimizer], parameters: Callable[[], list[Tensor]]
    ) -> None:
        self._optimizers = optimizers
        self._parameters = parameters
        self._data: int | None = None  # identifies the datasets
        self._first: list[float] | None = None  # learning rates of the job's first update
        self._expected: list[float] | None = None  # and as they were saved, in a job that goes on
        self._norm: float | None = None  # of weights that no optimizer has updated

    def fingerprint(self, datasets: Sequence[Any]) -> int:
        """Return a number that identifies the datasets: by lengths, and samples under a fixed seed.

        As they were when this was asked first: a script may change them with every epoch.
        """
        if self._data is None:
            told = [self._read(dataset) for dataset in datasets]
            self._data = zlib.crc32(repr(told).encode())
        return self._data

    def _read(self, dataset: Any) -> Any:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            return type(dataset).__name__
        length = len(dataset)
        numbers = sorted({0, length // 2, length - 1})[:SAMPLES_READ] if length else []
        try:
            first = [_sample(dataset, number) for number in numbers]
            same = first == [_sample(dataset, number) for number in numbers]
        except (TypeError, KeyError, IndexError):  # indexed by something else than numbers
            return length
        return (length, first if same else "changes by itself")

    def norm(self, turn: int) -> float:
        """Return the norm of one part of the parameters, another one each time."""
        parameters = self._parameters()
        parts = 1 if sum(p.numel() for p in parameters) <= WHOLE else PARTS
        part = [p.detach() for p in parameters[turn % parts :: parts]] or [torch.zeros(1)]
        norms = torch._foreach_norm(part)
        return float(torch.stack([norm.double() for norm in norms]).norm())

    def has_moved(self) -> bool:
        """Return whether weights are others than when this was asked before."""
        before, self._norm = self._norm, self.norm(0)
        return before is not None and before != self._norm

    def compare(self, norms: Sequence[float], members: Sequence[int]) -> None:
        """Raise if the workers' weights have grown apart."""
        low, high = min(norms), max(norms)
        if high - low <= TOLERANCE * max(abs(high), 1e-12) or high != high:
            return
        told = "; ".join(f"worker {w} has {n:.8g}" for w, n in zip(members, norms, strict=True))
        raise TrainingError(
            "the workers' weights have grown apart",
            f"norms of the same parameters differ: {told}",
            "the same updates in every worker: an EMA, a target network or hand-written updates "
            "must not depend on coddl.is_main(), and what they use belongs into coddl.track(...)",
        )

    def rates(self) -> list[list[float] | None]:
        """Return the learning rates of the first update, and those of now, to be saved."""
        return [self._first, self._now()]

    def _now(self) -> list[float]:
        return [float(g.get("lr", 0.0)) for o in self._optimizers for g in o.param_groups]

    def take(self, rates: Sequence[list[float] | None], *, is_saved: bool) -> None:
        """Know the rates of another worker; those of a saved job are what the next update has."""
        self._first = rates[0]
        self._expected = rates[1] if is_saved else None

    def check_update(self) -> None:
        """Before an update: in a job that goes on, raise if a schedule has begun anew."""
        if self._first is None:
            self._first = self._now()
        if self._expected is None:
            return
        expected, self._expected = self._expected, None
        for first, before, now in zip(self._first, expected, self._now(), strict=False):
            begins_anew = now == first and abs(now - before) > 0.01 * max(now, before)
            jumps = before > 0 and now > 0 and not 1 / JUMP <= now / before <= JUMP
            if begins_anew or jumps:
                raise TrainingError(
                    f"the learning rate jumped from {before:g} to {now:g}",
                    "the job goes on from a saved state, and the script sets another rate than "
                    "the one that was saved",
                    "coddl.track(scheduler=...), or a step counter in coddl.state(...) or from "
                    "loader.step, so that the script knows where the job is",
                )


def shapes_of(dataset: Any) -> str:
    """Identify datasets whose samples differ in size, as far as the first one shows."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        return ""
    try:
        return _sample(dataset, 0, contents=False)
    except (TypeError, KeyError, IndexError):  # empty, or indexed by something else than numbers
        return ""


def _sample(dataset: Any, number: int, *, contents: bool = True) -> str:
    mine = randomness.capture()
    try:
        random.seed(0)
        randomness.reseed(0)
        return _told(dataset[number], contents=contents)
    finally:
        randomness.restore(mine)


def _told(sample: Any, *, contents: bool) -> str:
    """Describe a sample: equal ones have equal descriptions; without contents, those of a size."""
    if isinstance(sample, Tensor):
        total = float(sample.double().sum()) if sample.numel() and contents else 0.0
        return f"{tuple(sample.shape)}{sample.dtype}{total!r}"
    if isinstance(sample, dict):
        return repr([(key, _told(part, contents=contents)) for key, part in sample.items()])
    if isinstance(sample, list | tuple):
        return repr([_told(part, contents=contents) for part in sample])
    if contents and isinstance(sample, str | int | float | bool | None):
        return repr(sample)
    return type(sample).__name__
