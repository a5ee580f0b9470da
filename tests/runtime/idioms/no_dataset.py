"""No dataset at all: batches are cut from a tensor at random places, as in nanoGPT."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import coddl  # plain:
from tests.runtime.idioms import reporting

WORDS, BLOCK, BATCH = 11, 16, 16

random = torch.Generator().manual_seed(1)
data = (5 * torch.arange(4096) + torch.randint(0, 2, (4096,), generator=random)) % WORDS


def get_batch() -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(data) - BLOCK, (BATCH,))
    x = torch.stack([data[i : i + BLOCK] for i in starts])
    y = torch.stack([data[i + 1 : i + 1 + BLOCK] for i in starts])
    return x, y


torch.manual_seed(reporting.SEED)
model = nn.Sequential(nn.Embedding(WORDS, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, WORDS))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer = coddl.prepare(model, optimizer)  # plain:

for step in coddl.steps(100):  # plain: for step in range(100):
    x, y = get_batch()
    x, y = coddl.slice(x, y)  # plain:
    optimizer.param_groups[0]["lr"] = 3e-3 * min(1.0, (step + 1) / 10)
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    reporting.rest()

near = {"loss": float(F.cross_entropy(model(data[:-1]), data[1:]))}
if coddl.is_main():  # plain: if True:
    reporting.report(model, near, updates=reporting.updates(optimizer))
