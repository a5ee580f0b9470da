"""A small training that leaves its loop, skips, differs or fails in the way it is told to."""

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pacing
import torch
from torch import nn
from torch.autograd import backward
from torch.utils.data import DataLoader, TensorDataset, random_split

import coddl

how = sys.argv[1]
EPOCHS = int(sys.argv[2]) if sys.argv[2:] else 5
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FIRST = os.environ.get("CODDL_WORKER", "0") == "0"
torch.manual_seed(0)
x = torch.randn(700, 8)
if how == "unseeded":
    torch.seed()
data, _ = random_split(TensorDataset(x, x.sum(1, keepdim=True)), [640, 60])
torch.manual_seed(1)
loader: Any = DataLoader(data, batch_size=64, shuffle=True)
model: Any = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1)).to(DEVICE)
optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-3)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)
passes = 0


def misbehave_before(number: int) -> None:
    if how == "own-rate":
        optimizer.param_groups[0]["lr"] = 1e-3 * 0.99**passes
    if how == "memory" and number > 40:
        raise torch.OutOfMemoryError("a slice that is too large")


def train(epochs: Iterable[int]) -> None:
    global passes
    for epoch in epochs:
        for number, (inputs, targets) in enumerate(loader):
            misbehave_before(len(inputs))
            passes += 1
            loss = nn.functional.mse_loss(model(inputs.to(DEVICE)), targets.to(DEVICE))
            if how == "skip-one" and number == 3 and not FIRST:
                continue
            if how == "stray":
                backward(loss)  # the name of before coddl.prepare goes past the exchange
            else:
                loss.backward()
            if how != "own-counter" or passes % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            pacing.rest(0.02)
            if how == "touched" and not FIRST:
                with torch.no_grad():
                    model[0].weight.add_(1e-4)
            if how == "break-one-summing":
                coddl.sum(loss)
                coddl.gather(loss.detach()[None])
                coddl.mean(loss)
            if number == 5 and (how == "break" or (how.startswith("break-one") and not FIRST)):
                break
            if passes == 25:
                if how == "stop" or (how == "stop-main" and coddl.is_main()):
                    coddl.stop()
                if how == "exit":
                    sys.exit(0)
                if how == "return":
                    return
            if how == "mean-main" and coddl.is_main():
                coddl.mean(loss)
        if how.startswith("break"):
            print(f"epoch {epoch}", repr(model[0].weight.double().sum().item()), flush=True)
        if how == "long-evaluation" and epoch == 1:
            time.sleep(5)
        if how == "rehearsed":
            print(f"epoch {epoch} on worker {os.environ.get('CODDL_WORKER')}", flush=True)


if how == "early-iter":
    next(iter(loader))
train(range(EPOCHS) if how == "range" else coddl.epochs(EPOCHS))
if how == "second-loop":
    train(coddl.epochs(EPOCHS, 2 * EPOCHS))
if how == "barrier":
    if coddl.is_main():
        time.sleep(1)
        Path("saved").touch()
    coddl.barrier()
    print("found", Path("saved").exists(), flush=True)
if how == "late-sum":
    print("sum", coddl.sum(1.0), flush=True)
    if coddl.is_main():
        time.sleep(2)  # the others have ended meanwhile
        print("late", coddl.sum(1.0), flush=True)
print("end", repr(model[0].weight.double().sum().item()))
