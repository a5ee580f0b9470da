"""A parameter group which is added to the optimizer after the first epoch."""

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

import coddl  # plain:
from tests.runtime.idioms import reporting, toy

torch.manual_seed(reporting.SEED)
loader = DataLoader(toy.regression(), batch_size=32, shuffle=True)
model = toy.mlp()
optimizer = torch.optim.Adam(model[2].parameters(), lr=1e-3)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)  # plain:

for epoch in coddl.epochs(4):  # plain: for epoch in range(4):
    if epoch >= 1 and len(optimizer.param_groups) == 1:
        optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 5e-4})
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        reporting.rest()

near = {"loss": toy.evaluate(model)}
if coddl.is_main():  # plain: if True:
    added = int(optimizer.state[next(model[0].parameters())]["step"])
    reporting.report(model, near, updates=reporting.updates(optimizer), added=added)
