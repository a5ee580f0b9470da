"""Two loaders in step: labelled samples, and unlabelled ones of which there are more."""

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import coddl  # plain:
from tests.runtime.idioms import reporting, toy

torch.manual_seed(reporting.SEED)
known = DataLoader(toy.regression(480), batch_size=16, shuffle=True)
bare = TensorDataset(toy.regression(960, seed=3).tensors[0])
other = DataLoader(bare, batch_size=24, shuffle=True)
model = toy.mlp()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model, optimizer, known, other = coddl.prepare(model, optimizer, known, other)  # plain:

for _epoch in coddl.epochs(4):  # plain: for _epoch in range(4):
    for (x, y), (u,) in zip(known, other, strict=False):
        smooth = F.mse_loss(model(u + 0.1 * torch.randn_like(u)), model(u).detach())
        loss = F.mse_loss(model(x), y) + 0.1 * smooth
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        reporting.rest()

near = {"loss": toy.evaluate(model)}
if coddl.is_main():  # plain: if True:
    reporting.report(model, near, updates=reporting.updates(optimizer))
