"""A training whose computing is waiting, so that many workers share a few cores.

A pass takes as long for each of its samples; an update takes some time besides, with any number of
workers; and gradients of a given size are really sent.
"""

import argparse
import time

import spot  # noqa: F401 - before anything takes time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import coddl

WIDTH = 250

options = argparse.ArgumentParser()
options.add_argument("--steps", type=int, default=100_000)
options.add_argument("--batch", type=int, default=12)
options.add_argument("--sample-s", type=float, default=0.02)
options.add_argument("--fixed-s", type=float, default=0.0)
options.add_argument("--gradient-mb", type=float, default=0.001)
asked = options.parse_args()

EPOCH_STEPS = 100

torch.set_num_threads(1)
torch.manual_seed(1)
samples = asked.batch * EPOCH_STEPS
data = TensorDataset(torch.randn(samples, WIDTH), torch.randn(samples, 1))
outputs = max(1, round(asked.gradient_mb * 1e6 / 4 / WIDTH))
net: nn.Module = nn.Linear(WIDTH, outputs, bias=False)
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
loader = DataLoader(data, batch_size=asked.batch)
net, optimizer, loader = coddl.prepare(net, optimizer, loader)
for _ in coddl.epochs(max(1, asked.steps // EPOCH_STEPS)):
    for x, _y in loader:
        time.sleep(asked.sample_s * len(x))
        net(x).square().mean().backward()
        time.sleep(asked.fixed_s)
        optimizer.step()
        optimizer.zero_grad()
