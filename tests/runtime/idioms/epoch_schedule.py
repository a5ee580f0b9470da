"""A learning-rate schedule which is stepped once per epoch, and handed to prepare."""

import torch
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader

import coddl  # plain:
from tests.runtime.idioms import reporting, toy

torch.manual_seed(reporting.SEED)
loader = DataLoader(toy.regression(), batch_size=32, shuffle=True)
model = toy.mlp()
optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3)
schedule = CosineAnnealingLR(optimizer, T_max=5)
model, optimizer, loader, schedule = coddl.prepare(model, optimizer, loader, schedule)  # plain:

for _epoch in coddl.epochs(4):  # plain: for _epoch in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        reporting.rest()
    schedule.step()

near = {"loss": toy.evaluate(model)}
if coddl.is_main():  # plain: if True:
    lr = schedule.get_last_lr()[0]
    reporting.report(model, near, updates=reporting.updates(optimizer), lr=lr)
