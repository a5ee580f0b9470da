"""Batches with a loss that is not finite are skipped: some batches of the data are broken."""

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

import coddl  # plain:
from tests.runtime.idioms import reporting, toy

torch.manual_seed(reporting.SEED)
dataset = toy.regression()
for broken in (3, 11, 17, 30):
    dataset.tensors[0][32 * broken : 32 * (broken + 1)] = float("nan")
loader = DataLoader(dataset, batch_size=32)
model = toy.mlp()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)  # plain:

for _epoch in coddl.epochs(3):  # plain: for _epoch in range(3):
    for x, y in loader:
        reporting.rest()
        loss = F.mse_loss(model(x), y)
        if not torch.isfinite(loss):
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

near = {"loss": toy.evaluate(model)}
if coddl.is_main():  # plain: if True:
    reporting.report(model, near, updates=reporting.updates(optimizer))
