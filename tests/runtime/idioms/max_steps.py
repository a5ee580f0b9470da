"""A step counter of the script's own, which ends the training in the middle of an epoch."""

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

import coddl  # plain: from types import SimpleNamespace
from tests.runtime.idioms import reporting, toy

MAX_STEPS = 110

torch.manual_seed(reporting.SEED)
loader = DataLoader(toy.regression(), batch_size=32, shuffle=True)
model = toy.mlp()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)  # plain:
state = coddl.state(steps=0)  # plain: state = SimpleNamespace(steps=0)

for _epoch in coddl.epochs(100):  # plain: for _epoch in range(100):
    for x, y in loader:
        optimizer.param_groups[0]["lr"] = 1e-3 * min(1.0, (state.steps + 1) / 20)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        reporting.rest()
        state.steps += 1
        if state.steps >= MAX_STEPS:
            break
    if state.steps >= MAX_STEPS:
        break

near = {"loss": toy.evaluate(model)}
if coddl.is_main():  # plain: if True:
    reporting.report(model, near, updates=reporting.updates(optimizer), steps=state.steps)
