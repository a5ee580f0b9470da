"""Train a small classifier that gains as much from more workers as it is told to.

    python train.py STEPS SHARED_S SERIAL_S

A pause per micro-batch stands for a GPU's work: more workers share the micro-batches, so they
shorten it. A pause per step stands for what they don't shorten: reading data, slow links. So a demo
on a few cores shows what a pool of GPUs would do; all else is as in any other training.
"""

import sys
import time

import torch
from torch import nn

import coddl

steps, shared_s, serial_s = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
STEPS_PER_EPOCH, BATCH = 16, 64

torch.manual_seed(0)
x = torch.randn(STEPS_PER_EPOCH * BATCH, 32)
dataset = torch.utils.data.TensorDataset(x, (x.square().sum(1) > 32).long())
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer, batches = coddl.prepare(
    model, optimizer, dataset, global_batch=BATCH, micro_batch=8, epochs=steps // STEPS_PER_EPOCH
)

for samples, labels in batches:
    time.sleep(shared_s)
    loss = nn.functional.cross_entropy(model(samples), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    coddl.log(loss=loss)
    if batches.completes:
        time.sleep(serial_s)
        if coddl.is_main() and batches.step % STEPS_PER_EPOCH == 0:
            print(f"epoch {batches.epoch}: loss {loss:.3f}")
