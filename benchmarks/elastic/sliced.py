"""An elastic training of a model in models.py with batches of some sizes; notes each update.

Its samples are on the device: no loader is in the way of what passes cost.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain, cycle, islice, repeat
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch.utils.data import DataLoader, Sampler

import coddl
from benchmarks.elastic.models import recipe
from coddl.runtime.worker.inspection import PASSES, WARM_UP

SAMPLES = 1 << 20
BLOCK = PASSES + WARM_UP  # batches of a size, one after the other


class Blocks(Sampler[list[int]]):
    """Batches of each size in turn, the whole batch first.

    The smaller sizes come once before any pass is timed: on a GPU, the first pass of a size loads
    kernels.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.batch_size = sizes[0]
        self._sizes = sizes

    def __len__(self) -> int:
        return SAMPLES // self.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        untimed = islice(cycle(self._sizes[1:] or self._sizes), WARM_UP)
        blocks = chain.from_iterable(repeat(size, BLOCK) for size in cycle(self._sizes))
        first = 0
        for size in islice(chain(untimed, blocks), len(self)):
            yield [*range(first, first + size)]
            first += size


name, device, times_path = sys.argv[1], sys.argv[2], Path(sys.argv[4])
sizes = [int(size) for size in sys.argv[3].split(",")]
made = recipe(name, device)
samples = made.data.inputs.to(device), made.data.labels.to(device)
loader: Any = DataLoader(range(SAMPLES), batch_sampler=Blocks(sizes))  # type: ignore[arg-type]
model = made.model.to(device)
model, optimizer, loader = coddl.prepare(model, made.optimizer(model.parameters()), loader)
with times_path.open("a", buffering=1) as times:
    for _ in coddl.epochs(1):
        for numbers in loader:
            chosen = numbers.to(device) % made.data.different
            inputs, labels = (each[chosen] for each in samples)
            loss = F.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if coddl.is_main():
                times.write(f"{time.monotonic()}\n")
