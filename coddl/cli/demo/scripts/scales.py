"""Train a small classifier whose steps are almost all computing: it gains from every worker.

    python scales.py [STEPS] [SECONDS PER MICRO-BATCH]

On a machine without GPUs the computing is stood in for by a pause per micro-batch, as long as a
GPU might take; so a demo on two cores shows what a pool of GPUs would.
"""

import sys
import time

import torch
from torch import nn

import coddl

steps = int(sys.argv[1]) if sys.argv[1:] else 100
device_s = float(sys.argv[2]) if sys.argv[2:] else 0.02

torch.manual_seed(0)
x = torch.randn(64 * 16, 32)
dataset = torch.utils.data.TensorDataset(x, (x.square().sum(1) > 32).long())
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer, batches = coddl.prepare(
    model, optimizer, dataset, global_batch=64, micro_batch=8, epochs=-(-steps // 16)
)

for samples, labels in batches:
    time.sleep(device_s)
    loss = nn.functional.cross_entropy(model(samples), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    coddl.log(loss=loss)
    if batches.completes and coddl.is_main() and batches.step % 25 == 0:
        print(f"step {batches.step}: loss {loss:.3f}")
