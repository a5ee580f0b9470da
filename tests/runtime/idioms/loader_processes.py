"""A loader with two processes, which augment the samples at random."""

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import coddl  # plain:
from tests.runtime.idioms import reporting, toy


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self) -> None:
        self.x, self.y = toy.regression().tensors

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index] + 0.05 * torch.randn(toy.FEATURES), self.y[index]


torch.manual_seed(reporting.SEED)
loader = DataLoader(Augmented(), batch_size=32, shuffle=True, num_workers=2)
model = toy.mlp()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)  # plain:

for _epoch in coddl.epochs(3):  # plain: for _epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        reporting.rest()

near = {"loss": toy.evaluate(model)}
if coddl.is_main():  # plain: if True:
    reporting.report(model, near, updates=reporting.updates(optimizer))
