"""Accuracy on the data of a second loader, after each epoch."""

from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

import coddl  # plain:
from tests.runtime.idioms import reporting, toy

torch.manual_seed(reporting.SEED)
loader = DataLoader(toy.classes(), batch_size=32, shuffle=True)
test: Any = DataLoader(toy.classes(250, seed=2), batch_size=64)
model = toy.mlp(4)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
model, optimizer, loader, test = coddl.prepare(model, optimizer, loader, eval=test)  # plain:

accuracy = 0.0
for _epoch in coddl.epochs(3):  # plain: for _epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        reporting.rest()
    with torch.no_grad():
        correct = sum(float((model(x).argmax(1) == y).sum()) for x, y in test)
    correct = coddl.sum(correct)  # plain:
    accuracy = correct / len(test.dataset)

x, y = toy.classes(250, seed=2).tensors
near = {"loss": float(F.cross_entropy(model(x), y)), "accuracy": accuracy}
if coddl.is_main():  # plain: if True:
    reporting.report(model, near, updates=reporting.updates(optimizer), batches=len(loader))
