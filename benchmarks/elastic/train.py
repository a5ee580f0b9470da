"""An elastic training; its main worker notes when each iteration was complete."""

import sys
import time
from pathlib import Path

import torch.nn.functional as F
from torch.autograd import backward

import coddl
from benchmarks.elastic.state25mb import GLOBAL_BATCH, MICRO_BATCH, training

model, optimizer, data = training()
model, optimizer, batches = coddl.prepare(
    model, optimizer, data, global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH, epochs=10**6
)
with Path(sys.argv[1]).open("a", buffering=1) as times:
    for inputs, labels in batches:
        backward(F.cross_entropy(model(inputs), labels))
        optimizer.step()
        optimizer.zero_grad()
        if batches.completes and coddl.is_main():
            times.write(f"{batches.step} {time.monotonic()}\n")
