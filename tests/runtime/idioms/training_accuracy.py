"""Accuracy on the training data, counted while training, over the length of the dataset."""

from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

import coddl  # plain:
from tests.runtime.idioms import reporting, toy

torch.manual_seed(reporting.SEED)
loader: Any = DataLoader(toy.classes(), batch_size=32, shuffle=True)
model = toy.mlp(4)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)  # plain:

accuracy = 0.0
for _epoch in coddl.epochs(4):  # plain: for _epoch in range(4):
    correct = 0.0
    for x, y in loader:
        logits = model(x)
        optimizer.zero_grad()
        F.cross_entropy(logits, y).backward()
        optimizer.step()
        right = (logits.argmax(1) == y).sum()
        correct += float(coddl.sum(right))  # plain: correct += float(right)
        reporting.rest()
    accuracy = correct / len(loader.dataset)

x, y = toy.classes(256, seed=2).tensors
near = {"loss": float(F.cross_entropy(model(x), y)), "accuracy": accuracy}
if coddl.is_main():  # plain: if True:
    reporting.report(model, near, updates=reporting.updates(optimizer))
