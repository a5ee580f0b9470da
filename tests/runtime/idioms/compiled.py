"""A compiled model."""

from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

import coddl  # plain:
from tests.runtime.idioms import reporting, toy

torch.manual_seed(reporting.SEED)
loader = DataLoader(toy.regression(), batch_size=32, shuffle=True)
model: Any = torch.compile(toy.mlp(), backend="aot_eager")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)  # plain:

for _epoch in coddl.epochs(3):  # plain: for _epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        reporting.rest()

near = {"loss": toy.evaluate(model)}
if coddl.is_main():  # plain: if True:
    reporting.report(model, near, updates=reporting.updates(optimizer))
