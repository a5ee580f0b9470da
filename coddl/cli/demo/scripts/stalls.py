"""Train a small model whose steps are almost all waiting: more workers gain it nothing.

    python stalls.py [STEPS] [SECONDS PER STEP]

Every worker waits for its data as long as a lone one would, as behind a slow disk.
"""

import sys
import time

import torch
from torch import nn

import coddl

steps = int(sys.argv[1]) if sys.argv[1:] else 100
disk_s = float(sys.argv[2]) if sys.argv[2:] else 0.1

torch.manual_seed(0)
x = torch.randn(64 * 16, 16)
dataset = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer, batches = coddl.prepare(
    model, optimizer, dataset, global_batch=64, micro_batch=8, epochs=-(-steps // 16)
)

for samples, labels in batches:
    loss = nn.functional.mse_loss(model(samples), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    coddl.log(loss=loss)
    if batches.completes:
        time.sleep(disk_s)
