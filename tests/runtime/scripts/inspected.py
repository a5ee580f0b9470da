"""A training whose phases take known times at least: forward, backward, update, loading."""

import argparse
import time
from typing import Any

import pacing
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import coddl

options = argparse.ArgumentParser()
options.add_argument("--epochs", type=int, default=4)
options.add_argument("--samples", type=int, default=8 * 9 + 4)
options.add_argument("--pace-s", type=float, default=0.0)
options.add_argument("--strict", action="store_true")
options.add_argument("--micro-batch", type=int)
asked = options.parse_args()

FORWARD_S, BACKWARD_S, UPDATE_S, LOG_S, SAMPLE_S = 0.004, 0.006, 0.003, 0.002, 0.0005


class Takes(torch.autograd.Function):
    """Changes nothing, and takes its time."""

    @staticmethod
    def forward(_context: Any, x: Tensor) -> Tensor:
        time.sleep(FORWARD_S)
        return x.clone()

    @staticmethod
    def backward(_context: Any, *gradients: Tensor) -> Tensor:
        time.sleep(BACKWARD_S)
        return gradients[0]


class SlowSamples(Dataset[tuple[Tensor, Tensor]]):
    """Samples that take their time to load."""

    def __len__(self) -> int:
        return int(asked.samples)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        time.sleep(SAMPLE_S)
        return torch.full((4,), float(number)), torch.zeros(1)


class SlowSgd(torch.optim.SGD):
    """An optimizer that takes its time."""

    def step(self, closure: Any = None) -> Any:
        time.sleep(UPDATE_S)
        return super().step(closure)


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = SlowSgd(net.parameters(), lr=1e-4, momentum=0.9)
original = torch.autograd.backward


def passed(x: Tensor, y: Tensor) -> None:
    """Make a pass of an ordinary loop."""
    optimizer.zero_grad()
    hidden = Takes.apply(net[0](x))  # type: ignore[no-untyped-call]
    nn.functional.mse_loss(net[2](net[1](hidden)), y).backward()
    optimizer.step()
    time.sleep(LOG_S)
    pacing.rest(asked.pace_s)


if asked.strict:
    settings: Any = {"global_batch": 8, "micro_batch": asked.micro_batch, "epochs": asked.epochs}
    *_, batches = coddl.prepare(net, optimizer, SlowSamples(), strict=True, **settings)
    for batch in batches:
        passed(*batch)
else:
    loader = DataLoader(SlowSamples(), batch_size=8, shuffle=True)
    net, optimizer, loader = coddl.prepare(net, optimizer, loader, micro_batch=asked.micro_batch)
    for _ in coddl.epochs(asked.epochs):
        for x, y in loader:
            passed(x, y)
    hooks = [p for p in net.parameters() if getattr(p, "_post_accumulate_grad_hooks", None)]
    print(f"left behind: {len(hooks)} hooks, backward replaced: {torch.autograd.backward}")
print("weights", sum(p.sum().item() for p in net.parameters()))
