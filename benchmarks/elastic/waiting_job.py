"""A training that waits in proportion to its slice instead of computing.

A step on n workers takes batch / n * sample_s + fixed_s, so that many workers share a few cores.
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import coddl

options = argparse.ArgumentParser()
options.add_argument("--steps", type=int, required=True)
options.add_argument("--batch", type=int, required=True)
options.add_argument("--sample-s", type=float, required=True)
options.add_argument("--fixed-s", type=float, required=True)
asked = options.parse_args()

torch.set_num_threads(1)
torch.manual_seed(1)
data = TensorDataset(torch.randn(asked.batch * asked.steps, 8))
net: nn.Module = nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
loader = DataLoader(data, batch_size=asked.batch)
net, optimizer, loader = coddl.prepare(net, optimizer, loader)
for _ in coddl.epochs(1):
    for (x,) in loader:
        time.sleep(asked.sample_s * len(x) + asked.fixed_s)
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
