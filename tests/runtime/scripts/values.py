"""Plain values in a loop over steps. Prints those that each worker has at each step."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import pacing
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import coddl

how = sys.argv[1]
torch.manual_seed(0)
x = torch.randn(320, 8)
loader: Any = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32)
model: Any = nn.Linear(8, 1)
optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.02)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)
state = coddl.state(count=0, owner=-1)
me = int(os.environ["CODDL_WORKER"])


def cycle() -> Iterator[Any]:
    while True:
        yield from loader


batches = cycle()
for step in coddl.steps(60):
    inputs, targets = next(batches) if how == "loader" else coddl.slice(x[:32], x[:32, :1])
    print(f"at {me} {step} {state.count} {state.owner}")
    state.count += 1
    if step % 10 == 5:
        state.owner = me
    nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
    optimizer.zero_grad()
    pacing.rest(0.02)
