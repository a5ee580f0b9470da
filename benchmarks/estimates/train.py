"""An elastic training of a paced model; its main worker notes when each update was complete."""

import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import coddl
from benchmarks.elastic.models import Samples
from benchmarks.estimates.models import BATCH, CLASSES, COMPUTED, paced

times_path, kind, updates = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
model, inputs = paced(kind)
labels = torch.randint(CLASSES, (len(inputs),))
# The last batch of an epoch has half of the samples: passes of two sizes tell what a sample costs.
data = Samples(inputs, labels, (updates - 1) * BATCH + BATCH // 2)
loader = DataLoader(data, BATCH, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
# BatchNorm would have slices of 16 samples at least; what it learns here does not matter.
model, optimizer, loader = coddl.prepare(model, optimizer, loader, min_slice=1)
with times_path.open("a", buffering=1) as times:
    for epoch in coddl.epochs(10**6):
        for step, (x, y) in coddl.enumerate(loader, start=epoch * len(loader)):
            F.cross_entropy(model(x), y[:COMPUTED]).backward()
            optimizer.step()
            optimizer.zero_grad()
            if coddl.is_main():
                times.write(f"{step} {time.monotonic()}\n")
