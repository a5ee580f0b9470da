"""A GAN: two models, each with its optimizer, in turn."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import coddl  # plain:
from tests.runtime.idioms import reporting

torch.manual_seed(reporting.SEED)
points = torch.randn(1024, 2, generator=torch.Generator().manual_seed(1)) * 0.5 + 2.0
loader = DataLoader(TensorDataset(points), batch_size=64, shuffle=True, drop_last=True)
maker = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
judge = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
make = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.9))
judging = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.9))
maker, judge, make, judging, loader = coddl.prepare(maker, judge, make, judging, loader)  # plain:

for _epoch in coddl.epochs(8):  # plain: for _epoch in range(8):
    for (real,) in loader:
        fake = maker(torch.randn(len(real), 4))
        judging.zero_grad()
        loss = F.softplus(-judge(real)).mean() + F.softplus(judge(fake.detach())).mean()
        loss.backward()
        judging.step()

        make.zero_grad()
        loss = F.softplus(-judge(fake)).mean()
        loss.backward()
        make.step()
        reporting.rest()

made = maker(torch.randn(512, 4, generator=torch.Generator().manual_seed(2))).detach()
near = {"loss": float((made.mean(0) - points.mean(0)).norm())}
if coddl.is_main():  # plain: if True:
    counted = {"made": reporting.updates(make), "judged": reporting.updates(judging)}
    reporting.report(nn.ModuleList([maker, judge]), near, **counted)
