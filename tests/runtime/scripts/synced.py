"""A training with SyncBatchNorm, which does something odd in one of its steps if told to.

In double precision: what several workers compute is what one does, to rounding.
"""

import argparse
import os
from typing import Any

import pacing
import saboteur
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import coddl

options = argparse.ArgumentParser()
options.add_argument("how", nargs="?")
options.add_argument("--without", type=int, nargs=2, default=(0, 0), help="samples of the odd step")
options.add_argument("--pace-s", type=float, default=0.0)
asked = options.parse_args()
how, ODD, BATCH = asked.how, saboteur.STEP, 24
IS_FIRST = os.environ.get("CODDL_WORKER", "0") == "0"

saboteur.arm()
torch.set_default_dtype(torch.float64)
torch.manual_seed(1)
device = "cuda" if torch.cuda.is_available() else "cpu"
data = TensorDataset(3.0 + torch.randn(482, 3, 4, 4), torch.randint(0, 4, (482,)))
loader: Any = DataLoader(data, BATCH, shuffle=True)  # the last batch has two samples
convolution = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
head = [nn.Flatten(), nn.Linear(128, 16), nn.BatchNorm1d(16, momentum=None), nn.Linear(16, 4)]
layers = nn.Sequential(nn.BatchNorm2d(3, affine=False), convolution, *head)
model: Any = nn.SyncBatchNorm.convert_sync_batchnorm(layers).to(device)
compiled: Any = torch.compile(model, backend="eager")
if how == "compiled":
    compiled(data.tensors[0][:BATCH].to(device))  # by torch's own forward
optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
reduction = "sum" if how == "sum" else "mean"
loader = coddl.prepare(model, optimizer, loader, reduction=reduction)[-1]


def computed(x: Tensor) -> Tensor:
    if how == "checkpointed":
        return model[2:](checkpoint(model[:2], x, use_reentrant=False))  # type: ignore[no-any-return]
    return compiled(x) if how == "compiled" else model(x)  # type: ignore[no-any-return]


for epoch in coddl.epochs(3):
    for number, (x, y) in coddl.enumerate(loader):
        is_odd = epoch * len(loader) + number == ODD
        if is_odd:
            first, last = asked.without
            x, y = (torch.cat([part[:first], part[last:]]) for part in (x, y))
        pacing.rest(asked.pace_s)
        x, y = x.to(device), y.to(device)
        if is_odd and how == "skips-before" and not IS_FIRST:
            continue
        if is_odd and how == "differs" and IS_FIRST:
            computed(x)
        loss = F.cross_entropy(computed(x), y, reduction=reduction)
        if is_odd and how == "skips-after" and not IS_FIRST:
            continue
        if how == "sum":
            (loss / BATCH).backward()
        elif how == "weighted":
            coddl.backward(loss, weight=len(x))
        else:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if is_odd and how == "breaks" and not IS_FIRST:
            break

if coddl.is_main():
    state = torch.cat([value.flatten().double() for value in model.state_dict().values()])
    print("state", *(repr(value) for value in state.tolist()))
    model.eval()
    loss = F.cross_entropy(model(data.tensors[0].to(device)), data.tensors[1].to(device))
    print("loss", float(loss))
