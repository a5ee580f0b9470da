"""Activation checkpointing, of blocks with dropout."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

import coddl  # plain:
from tests.runtime.idioms import reporting, toy


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(toy.FEATURES, 32), nn.Linear(32, 1)
        blocks = (nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Dropout(0.1)) for _ in range(3))
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        out: Tensor = self.last(x)
        return out


torch.manual_seed(reporting.SEED)
loader = DataLoader(toy.regression(), batch_size=32, shuffle=True)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)  # plain:

for _epoch in coddl.epochs(3):  # plain: for _epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        reporting.rest()

near = {"loss": toy.evaluate(model)}
if coddl.is_main():  # plain: if True:
    reporting.report(model, near, updates=reporting.updates(optimizer))
