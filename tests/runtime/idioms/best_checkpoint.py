"""An epoch loop with evaluation, which keeps the best weights in a file."""

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

import coddl  # plain: from types import SimpleNamespace
from tests.runtime.idioms import reporting, toy

torch.manual_seed(reporting.SEED)
loader = DataLoader(toy.regression(), batch_size=32, shuffle=True)
model = toy.mlp()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)  # plain:
state = coddl.state(best=float("inf"))  # plain: state = SimpleNamespace(best=float("inf"))

for _epoch in coddl.epochs(4):  # plain: for _epoch in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        reporting.rest()
    loss = toy.evaluate(model)
    if loss < state.best and coddl.is_main():  # plain: if loss < state.best:
        state.best = loss
        torch.save(model.state_dict(), "best.pt")

if coddl.is_main():  # plain: if True:
    model.load_state_dict(torch.load("best.pt"))
    assert abs(toy.evaluate(model) - state.best) < 1e-6, "the file does not hold the best weights"
    reporting.report(model, {"loss": state.best}, updates=reporting.updates(optimizer))
