"""Trainings in which a pass is not simply one batch and one update. Prints the weights."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pacing
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import coddl

how = sys.argv[1]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(320, 8)
loader: Any = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32, shuffle=True)
first: Any = nn.Linear(8, 1).to(DEVICE)
second: Any = nn.Linear(8, 1).to(DEVICE)
optimizers: Any = [torch.optim.SGD(m.parameters(), lr=0.02) for m in (first, second)]
first, second, *optimizers, loader = coddl.prepare(first, second, *optimizers, loader)


def cycle() -> Iterator[Any]:
    while True:
        yield from loader


def loss_of(batch: Any) -> torch.Tensor:
    inputs, targets = (each.to(DEVICE) for each in batch)
    mse = nn.functional.mse_loss
    return mse(first(inputs), targets) + mse(second(inputs), targets)


def die_among_others(step: int) -> None:
    """Kill the second worker in step 10, once the first is in it, too."""
    if step == 10:
        Path(f"in-step-{os.environ['CODDL_WORKER']}").touch()
        if os.environ["CODDL_WORKER"] == "1":
            while not Path("in-step-0").exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)


if how == "kept back":  # four batches an update, of which the last is exchanged
    batches = cycle()
    for step in coddl.steps(60):
        with coddl.no_sync():
            for number in range(3):
                loss_of(next(batches)).backward()
                if number == 1:
                    die_among_others(step)
        loss_of(next(batches)).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        pacing.rest(0.02)
elif how == "by hand":  # its optimizers are never asked
    batches = cycle()
    for _ in coddl.steps(60):
        loss_of(next(batches)).backward()
        for parameter in (*first.parameters(), *second.parameters()):
            parameter.data.add_(parameter.grad, alpha=-0.02)
            parameter.grad = None
        pacing.rest(0.02)
elif how == "steps":
    batches = cycle()
    for _ in coddl.steps(60):
        loss_of(next(batches)).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        pacing.rest(0.02)
else:  # one optimizer steps in every pass, the other in every second one
    for _ in coddl.epochs(6):
        for number, batch in coddl.enumerate(loader):
            loss_of(batch).backward()
            optimizers[0].step()
            optimizers[0].zero_grad()
            if number % 2:
                optimizers[1].step()
                optimizers[1].zero_grad()
            pacing.rest(0.02)
if coddl.is_main():
    both = [*first.parameters(), *second.parameters()]
    print("weights", *(f"{w:.9e}" for p in both for w in p.flatten().tolist()))
