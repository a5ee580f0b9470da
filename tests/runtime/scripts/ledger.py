"""A training whose weights are its own account: which sample, at which step, with which dice.

Each sample has its own weights, and SGD adds exactly what a pass says about it. So the final
weights are the set of (sample, step) that updates were made of, and with --strict of the dice of
its virtual node: a sample lost, used twice or at another step shows in them.
"""

import argparse
from collections.abc import Iterator
from typing import Any, cast

import pacing
import saboteur
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import coddl

options = argparse.ArgumentParser()
options.add_argument("--samples", type=int, default=1024)
options.add_argument("--epochs", type=int, default=2)
options.add_argument("--pace-s", type=float, default=0.003)
options.add_argument("--loader-workers", type=int, default=0)
options.add_argument("--strict", action="store_true")
asked = options.parse_args()
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Numbers:
    """Samples that tell their number, and a number from an augmentation's dice."""

    def __len__(self) -> int:
        return int(asked.samples)

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        return index, torch.rand(())


class Account(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        shape = (asked.epochs, asked.samples)
        self.used = nn.Parameter(torch.zeros(shape))
        self.step = nn.Parameter(torch.zeros(shape))
        self.mask = nn.Parameter(torch.zeros(shape))
        self.augmented = nn.Parameter(torch.zeros(shape))


saboteur.arm()
account = Account().to(DEVICE)
V, BATCH = 8, 32
if asked.strict:
    optimizer = torch.optim.SGD(account.parameters(), lr=float(V))  # undoes the mean over V
    *_, batches = coddl.prepare(
        account,
        optimizer,
        Numbers(),
        global_batch=BATCH,
        micro_batch=BATCH // V,
        epochs=asked.epochs,
        loader_workers=asked.loader_workers,
        strict=True,
    )
else:
    optimizer = torch.optim.SGD(account.parameters(), lr=float(BATCH))  # undoes the mean
    data: Any = DataLoader(
        cast(Any, Numbers()), BATCH, shuffle=True, num_workers=asked.loader_workers
    )
    loader = coddl.prepare(account, optimizer, data)[-1]


def passes() -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Give (epoch, step, samples, their dice)."""
    if asked.strict:
        for index, dice in batches:
            yield batches.epoch, batches.step, index, dice
    else:
        for epoch in coddl.epochs(asked.epochs):
            for number, (index, dice) in coddl.enumerate(loader):
                yield epoch, epoch * len(loader) + number, index.to(DEVICE), dice.to(DEVICE)


for row, step, index, dice in passes():
    gain = account.used[row, index].sum() + (account.step[row, index] * (step + 1)).sum()
    if asked.strict:
        gain = gain + (account.mask[row, index] * torch.rand(len(index), device=DEVICE)).sum()
        gain = gain + (account.augmented[row, index] * dice).sum()
    else:
        gain = gain / len(index)
    (-gain).backward()
    optimizer.step()
    optimizer.zero_grad()
    pacing.rest(asked.pace_s)
if coddl.is_main():
    used = account.used.detach()
    missing = int((used.round() == 0).sum())
    print("used", round(float(used[used > 0.5].min())), round(float(used.max())), flush=True)
    print("missing", missing)
    steps = account.step.detach().round()
    print("steps", int(steps.sum()), [int(s) for s in (steps > 0).sum(1)])
    torch.save(account.state_dict(), "ledger.pt")
    print("ledger", [hash(tuple(p.flatten().tolist())) for p in account.parameters()])
