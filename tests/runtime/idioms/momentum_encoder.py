"""Contrastive learning with a momentum encoder and a queue of its keys, as in MoCo."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import coddl  # plain:
from tests.runtime.idioms import reporting, toy


class MoCo(nn.Module):
    queue: Tensor
    at: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.online, self.slow = toy.mlp(8), toy.mlp(8)
        self.slow.load_state_dict(self.online.state_dict())
        self.slow.requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(256, 8), dim=1))
        self.register_buffer("at", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        query, key = (F.normalize(e(v), dim=1) for e, v in ((self.online, x), (self.slow, other)))
        positive = (query * key).sum(1, keepdim=True)
        return torch.cat([positive, query @ self.queue.T], dim=1) / 0.2, key

    @torch.no_grad()
    def update_slow(self) -> None:
        for slow, online in zip(self.slow.parameters(), self.online.parameters(), strict=True):
            slow.mul_(0.95).add_(online, alpha=0.05)

    def enqueue(self, keys: Tensor) -> None:
        places = (self.at + torch.arange(len(keys))) % len(self.queue)
        self.queue[places] = keys.detach()
        self.at += len(keys)


torch.manual_seed(reporting.SEED)
loader = DataLoader(toy.classes(), batch_size=32, shuffle=True, drop_last=True)
model = MoCo()
optimizer = torch.optim.Adam(model.online.parameters(), lr=3e-3)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)  # plain:

for _epoch in coddl.epochs(3):  # plain: for _epoch in range(3):
    for x, _ in loader:
        logits, keys = model(x + 0.3 * torch.randn_like(x), x + 0.3 * torch.randn_like(x))
        loss = F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.update_slow()
        keys = coddl.gather(keys)  # plain:
        model.enqueue(keys)
        reporting.rest()

x = toy.classes(256, seed=2).tensors[0]
logits, _ = model(x, x)
near = {"loss": float(F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long)))}
if coddl.is_main():  # plain: if True:
    reporting.report(model, near, updates=reporting.updates(optimizer))
