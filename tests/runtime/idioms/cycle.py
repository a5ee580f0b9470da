"""An endless iterator over the loader, and a loop over steps."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

import coddl  # plain:
from tests.runtime.idioms import reporting, toy


def cycle(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


torch.manual_seed(reporting.SEED)
loader = DataLoader(toy.regression(768), batch_size=32, shuffle=True)
model = toy.mlp()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)  # plain:

batches = cycle(loader)
for step in coddl.steps(100):  # plain: for step in range(100):
    x, y = next(batches)
    optimizer.param_groups[0]["lr"] = 1e-3 * (1 - step / 200)
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
    reporting.rest()

near = {"loss": toy.evaluate(model)}
if coddl.is_main():  # plain: if True:
    lr = optimizer.param_groups[0]["lr"]
    reporting.report(model, near, updates=reporting.updates(optimizer), lr=lr)
