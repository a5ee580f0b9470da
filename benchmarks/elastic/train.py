"""An elastic training; its main worker notes when each iteration was complete."""

import sys
import time
from pathlib import Path

import torch.nn.functional as F
from torch.utils.data import DataLoader

import coddl
from benchmarks.elastic.state25mb import GLOBAL_BATCH, training

times_path, processes = Path(sys.argv[1]), int(sys.argv[2])
model, optimizer, data = training()
loader = DataLoader(
    data, GLOBAL_BATCH, shuffle=True, num_workers=processes, persistent_workers=processes > 0
)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)
with times_path.open("a", buffering=1) as times:
    for epoch in coddl.epochs(10**6):
        for step, (inputs, labels) in coddl.enumerate(loader, start=epoch * len(loader)):
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            if coddl.is_main():
                times.write(f"{step} {time.monotonic()}\n")
