"""A training whose weights are its own account: which sample, at which step, with which dice.

Each sample has its own weights, and SGD adds exactly what a pass says about it. So the final
weights are the set of (sample, step, dice of the virtual node) that updates were made of: a sample
lost, used twice, at another step or in another virtual node shows in them, bit for bit.
"""

import argparse

import pacing
import saboteur
import torch
from torch import Tensor, nn

import coddl

options = argparse.ArgumentParser()
options.add_argument("--samples", type=int, default=1024)
options.add_argument("--epochs", type=int, default=2)
options.add_argument("--pace-s", type=float, default=0.003)
options.add_argument("--loader-workers", type=int, default=0)
asked = options.parse_args()


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
account = Account()
V = 8
optimizer = torch.optim.SGD(account.parameters(), lr=float(V))  # undoes the mean over V
account, optimizer, batches = coddl.prepare(
    account,
    optimizer,
    Numbers(),
    global_batch=32,
    micro_batch=4,
    epochs=asked.epochs,
    loader_workers=asked.loader_workers,
)
for index, dice in batches:
    row = batches.epoch
    gain = (
        account.used[row, index].sum()
        + (account.step[row, index] * (batches.step + 1)).sum()
        + (account.mask[row, index] * torch.rand(4)).sum()
        + (account.augmented[row, index] * dice).sum()
    )
    (-gain).backward()
    optimizer.step()
    optimizer.zero_grad()
    pacing.rest(asked.pace_s)
if coddl.is_main():
    used = account.used.detach()
    print("used", int(used.min()), int(used.max()))
    torch.save(account.state_dict(), "ledger.pt")
    print("ledger", [hash(tuple(p.flatten().tolist())) for p in account.parameters()])
