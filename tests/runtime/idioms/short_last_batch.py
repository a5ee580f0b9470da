"""Epochs whose last batch is a single sample."""

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

import coddl  # plain:
from tests.runtime.idioms import reporting, toy

torch.manual_seed(reporting.SEED)
loader = DataLoader(toy.regression(24 * 16 + 1), batch_size=16, shuffle=True, drop_last=False)
model = toy.mlp()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)  # plain:

for _epoch in coddl.epochs(4):  # plain: for _epoch in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        reporting.rest()

near = {"loss": toy.evaluate(model)}
if coddl.is_main():  # plain: if True:
    reporting.report(model, near, updates=reporting.updates(optimizer), batches=len(loader))
