"""A DataLoader with a sampler that holds the split, and a collate function."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, SubsetRandomSampler

import coddl  # plain:
from tests.runtime.idioms import reporting, toy

Row = dict[str, list[float]]


def collate(rows: list[Row]) -> tuple[Tensor, Tensor]:
    x = torch.tensor([row["x"] for row in rows])
    return (x - 0.1) / 1.1, torch.tensor([row["y"] for row in rows])


torch.manual_seed(reporting.SEED)
x, y = toy.regression(1200).tensors
dataset: Any = [{"x": x[i].tolist(), "y": y[i].tolist()} for i in range(1200)]
dataset[1024:] = [{"x": row["x"], "y": [100.0]} for row in dataset[1024:]]  # never trained on
sampler = SubsetRandomSampler(range(1024))
loader = DataLoader(dataset, batch_size=32, sampler=sampler, collate_fn=collate)
model = toy.mlp()
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
    reporting.report(model, near, updates=reporting.updates(optimizer), batches=len(loader))
