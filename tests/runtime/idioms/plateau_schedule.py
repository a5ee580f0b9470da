"""A learning rate which falls when the evaluation loss no longer does."""

import torch
from torch.nn import functional as F
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader

import coddl  # plain:
from tests.runtime.idioms import reporting, toy

torch.manual_seed(reporting.SEED)
loader = DataLoader(toy.regression(), batch_size=32, shuffle=True)
model = toy.mlp()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)  # plain:
schedule = ReduceLROnPlateau(optimizer, factor=0.1, patience=0, threshold=0.25)

for _epoch in coddl.epochs(4):  # plain: for _epoch in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        reporting.rest()
    schedule.step(toy.evaluate(model))

near = {"loss": toy.evaluate(model)}
if coddl.is_main():  # plain: if True:
    lr = optimizer.param_groups[0]["lr"]
    reporting.report(model, near, updates=reporting.updates(optimizer), lr=lr)
