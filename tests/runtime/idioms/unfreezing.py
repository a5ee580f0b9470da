"""A layer which is frozen in the first epoch."""

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

import coddl  # plain:
from tests.runtime.idioms import reporting, toy

torch.manual_seed(reporting.SEED)
loader = DataLoader(toy.regression(), batch_size=32, shuffle=True)
model = toy.mlp()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model[0].requires_grad_(False)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)  # plain:

for epoch in coddl.epochs(4):  # plain: for epoch in range(4):
    if epoch >= 1:
        model[0].requires_grad_(True)
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        reporting.rest()

near = {"loss": toy.evaluate(model)}
if coddl.is_main():  # plain: if True:
    thawed = int(optimizer.state[next(model[0].parameters())]["step"])
    reporting.report(model, near, updates=reporting.updates(optimizer), thawed=thawed)
