"""A progress bar around the loader, with its length, its items, and a running loss."""

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

import coddl  # plain:
from tests.runtime.idioms import reporting, toy


class Bar:
    """What tqdm does with an iterable."""

    def __init__(self, iterable: Any) -> None:
        self.iterable, self.total, self.text = iterable, len(iterable), ""

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[Any]:
        for n, item in enumerate(self.iterable, 1):
            yield item
            sys.stderr.write(f"\r{n}/{self.total} {self.text}")
        sys.stderr.write("\n")


torch.manual_seed(reporting.SEED)
loader = DataLoader(toy.regression(), batch_size=32, shuffle=True)
model = toy.mlp()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)  # plain:

for _epoch in coddl.epochs(3):  # plain: for _epoch in range(3):
    bar = Bar(loader)
    for x, y in bar:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        bar.text = f"loss {loss.item():.4f}"
        reporting.rest()

near = {"loss": toy.evaluate(model)}
if coddl.is_main():  # plain: if True:
    reporting.report(model, near, updates=reporting.updates(optimizer), batches=len(loader))
