"""Training without a number of epochs: it ends when its loss has hardly fallen for two."""

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

import coddl  # plain: from types import SimpleNamespace
from tests.runtime.idioms import reporting, toy

torch.manual_seed(reporting.SEED)
loader = DataLoader(toy.regression(), batch_size=32, shuffle=True)
model = toy.mlp()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)  # plain:
state = coddl.state(best=9.9, bad=0)  # plain: state = SimpleNamespace(best=9.9, bad=0)

for _epoch in coddl.epochs():  # plain: for _epoch in iter(int, 1):
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        reporting.rest()
    loss = toy.evaluate(model)
    coddl.log(loss=loss)  # plain:
    state.bad = 0 if loss < 0.75 * state.best else state.bad + 1
    state.best = min(loss, state.best)
    if state.bad == 2:
        break

near = {"loss": toy.evaluate(model), "best": state.best}
if coddl.is_main():  # plain: if True:
    reporting.report(model, near, updates=reporting.updates(optimizer), bad=state.bad)
