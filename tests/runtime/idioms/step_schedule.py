"""A learning-rate schedule which is stepped with every update, and never handed to prepare."""

import torch
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader

import coddl  # plain:
from tests.runtime.idioms import reporting, toy

torch.manual_seed(reporting.SEED)
loader = DataLoader(toy.regression(), batch_size=32, shuffle=True)
model = toy.mlp()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)  # plain:
schedule = OneCycleLR(optimizer, max_lr=2e-3, total_steps=3 * len(loader) + 1)

for _epoch in coddl.epochs(3):  # plain: for _epoch in range(3):
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        reporting.rest()

near = {"loss": toy.evaluate(model)}
if coddl.is_main():  # plain: if True:
    lr, steps = schedule.get_last_lr()[0], schedule.last_epoch
    reporting.report(model, near, updates=reporting.updates(optimizer), lr=lr, steps=steps)
