"""A training on a GPU whose memory is capped, so that a batch of 64 samples does not fit."""

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import coddl

options = argparse.ArgumentParser()
options.add_argument("--memory-gb", type=float, default=7.0)
options.add_argument("--micro-batch", type=int)
asked = options.parse_args()

_, total_bytes = torch.cuda.mem_get_info()
torch.cuda.set_per_process_memory_fraction(asked.memory_gb * 1e9 / total_bytes)
torch.manual_seed(0)
WIDTH = 1024


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.gelu(self.inner(nn.functional.layer_norm(x, (WIDTH,))))


model: Any = nn.Sequential(*(Block() for _ in range(16)), nn.Linear(WIDTH, 1)).cuda()
optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-4)
seeds = TensorDataset(torch.arange(640))
loader: Any = DataLoader(seeds, batch_size=64, shuffle=True)
model, optimizer, loader = coddl.prepare(model, optimizer, loader, micro_batch=asked.micro_batch)


def made(numbers: Tensor) -> Tensor:
    """Make samples of 512 tokens each from their numbers."""
    spread = torch.arange(WIDTH, device="cuda") * numbers.cuda().view(-1, 1, 1)
    return torch.sin(spread + torch.arange(512, device="cuda").view(1, -1, 1))


loss = torch.zeros(())
for epoch in coddl.epochs(8):
    for (numbers,) in loader:
        target = (numbers.cuda() % 7).float().view(-1, 1, 1)
        loss = (model(made(numbers)) - target).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        held_out = torch.arange(16)
        errors = model(made(held_out)) - (held_out.cuda() % 7).float().view(-1, 1, 1)
    if coddl.is_main():
        print(f"epoch {epoch} error {errors.square().mean().item()!r}", flush=True)
