"""Gradients clipped by their norm, which is watched."""

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

import coddl  # plain:
from tests.runtime.idioms import reporting, toy

torch.manual_seed(reporting.SEED)
loader = DataLoader(toy.regression(), batch_size=32, shuffle=True)
model = toy.mlp()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)  # plain:

norm = torch.tensor(0.0)
for _epoch in coddl.epochs(3):  # plain: for _epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        last = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        norm = 0.8 * norm + 0.2 * last
        optimizer.step()
        reporting.rest()

near = {"loss": toy.evaluate(model), "norm": float(norm)}
if coddl.is_main():  # plain: if True:
    reporting.report(model, near)
