"""An elastic training of a model in models.py with batches of a size; notes each update.

Its samples are on the device: no loader is in the way of what passes cost.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch.utils.data import DataLoader

import coddl
from benchmarks.elastic.models import recipe

name, device, batch, times_path = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
made = recipe(name, device)
samples = made.data.inputs.to(device), made.data.labels.to(device)
loader: Any = DataLoader(range(1 << 20), batch_size=batch)  # type: ignore[arg-type]  # a Sequence
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
