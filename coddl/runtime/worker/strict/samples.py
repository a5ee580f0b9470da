"""Micro-batches by name: (epoch, step, virtual node) tells the samples and their random numbers.

So the position in the data is a step number, a resize moves no samples, and a micro-batch can be
handed out again after a failure.
"""

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate

from coddl.runtime.errors import TrainingError
from coddl.runtime.vnodes import Batch, seed_of
from coddl.runtime.worker.batches import moved

# Purposes, so that the same (epoch, step, node) gives unrelated streams for each.
ORDER, SAMPLES, FORWARD = 1, 2, 3

Item = Any  # a sample or a batch: whatever the user's dataset holds
Collate = Callable[[list[Item]], Item]


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Names one pass: an iteration and the virtual node that runs in it."""

    step: int
    node: int


class Samples(Dataset[Item]):
    """The user's dataset, indexed by `Key`; also inside loader processes."""

    def __init__(self, dataset: Any, cut: Batch, seed: int, collate: Collate | None) -> None:
        self.steps_per_epoch = _steps_per_epoch(dataset, cut)
        self._dataset = dataset
        self._cut = cut
        self._seed = seed
        self._collate = collate or default_collate
        self._order: tuple[int, list[int]] = (-1, [])

    def _indices_of(self, step: int, node: int) -> list[int]:
        epoch, within = divmod(step, self.steps_per_epoch)
        if self._order[0] != epoch:
            generator = torch.Generator().manual_seed(seed_of(self._seed, epoch, ORDER))
            length = len(self._dataset)
            self._order = (epoch, torch.randperm(length, generator=generator).tolist())
        start = within * self._cut.global_batch + node * self._cut.micro_batch
        return self._order[1][start : start + self._cut.micro_batch]

    def __getitem__(self, key: Key) -> Item:
        seed_everything(seed_of(self._seed, key.step, key.node, SAMPLES))
        return self._collate([self._dataset[i] for i in self._indices_of(key.step, key.node)])


def _steps_per_epoch(dataset: Any, cut: Batch) -> int:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise TrainingError(
            f"a {type(dataset).__name__} can't be trained on elastically",
            "it can only be iterated, and samples must be found by their number at any size",
            "a dataset with __len__ and __getitem__; list(dataset) if it fits into memory",
        )
    if len(dataset) < cut.global_batch:
        raise TrainingError(
            f"the dataset has {len(dataset)} samples",
            f"one global batch takes {cut.global_batch}",
            f"global_batch={max(1, len(dataset))} or less, or more data",
        )
    return len(dataset) // cut.global_batch


def seed_everything(seed: int) -> None:
    """Seed what datasets draw from: torch on the CPU, Python, NumPy if it is there."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)


class _Keys(Sampler[Key]):
    """The keys a worker will ask for, as far as one can tell now; loader processes run ahead."""

    def __init__(self, ahead: Callable[[], Iterator[Key]]) -> None:
        self._ahead = ahead

    def __iter__(self) -> Iterator[Key]:
        return self._ahead()


class Loader:
    """Fetches passes; with loader processes, ahead of time."""

    def __init__(
        self,
        samples: Samples,
        workers: int,
        device: torch.device,
        ahead: Callable[[], Iterator[Key]],
    ) -> None:
        self._samples = samples
        self._device = device
        self._workers = workers
        self._ahead = ahead
        self._asked: list[Key] = []
        self._stream: Iterator[Item] | None = None

    def fetch(self, key: Key, *, inline: bool = False) -> Item:
        """Return the batch of a pass, on the model's device; `inline` without loader processes."""
        batch = self._fetched(key) if self._workers and not inline else self._samples[key]
        if self._device.type == "cpu":
            return batch
        return moved(batch, self._device)

    def _fetched(self, key: Key) -> Item:
        if self._stream is None:
            self._stream = self._started()
        while self._asked and self._asked[0] <= key:
            asked, batch = self._asked.pop(0), next(self._stream)
            if asked == key:
                return batch  # others were of virtual nodes that have moved away meanwhile
        return self._samples[key]  # just moved here, or handed out again: it was not fetched ahead

    def _started(self) -> Iterator[Item]:
        def noted() -> Iterator[Key]:
            for key in self._ahead():
                self._asked.append(key)
                yield key

        return iter(
            DataLoader(
                self._samples,
                batch_size=None,
                sampler=_Keys(noted),
                num_workers=self._workers,
                pin_memory=self._device.type == "cuda",
            )
        )

    def close(self) -> None:
        """End the loader processes."""
        self._stream = None
