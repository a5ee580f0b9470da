"""LBFGS, whose line search evaluates a closure several times per step."""

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

import coddl  # plain:
from tests.runtime.idioms import reporting, toy

torch.manual_seed(reporting.SEED)
loader = DataLoader(toy.regression(), batch_size=256, shuffle=True)
model = toy.mlp()
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2, line_search_fn="strong_wolfe")
model, optimizer, loader = coddl.prepare(model, optimizer, loader)  # plain:

for _epoch in coddl.epochs(25):  # plain: for _epoch in range(25):
    for x, y in loader:

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        reporting.rest()

near = {"loss": toy.evaluate(model)}
if coddl.is_main():  # plain: if True:
    reporting.report(model, near, iterations=next(iter(optimizer.state.values()))["n_iter"])
