"""A small training without a number of epochs: it ends when its loss hardly falls any more."""

import argparse
import os
import time
from pathlib import Path

import spot  # noqa: F401 - before anything takes time
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import coddl

BATCH, EPOCH_STEPS = 64, 10
HARDLY = 2e-4  # of the first epoch's loss, from one epoch to the next

options = argparse.ArgumentParser()
options.add_argument("--pace", type=Path, help="a file: seconds per step")
options.add_argument("--diary", type=Path, help="a file for every step that was made")
asked = options.parse_args()

torch.set_num_threads(1)
torch.manual_seed(1)
x = torch.randn(BATCH * EPOCH_STEPS, 16)
y = (x @ torch.randn(16) > 0).long()
net = nn.Linear(16, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.02)
loader = DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)
net, optimizer, loader = coddl.prepare(net, optimizer, loader)
state = coddl.state(first=0.0, last=0.0)

for epoch in coddl.epochs():
    total = 0.0
    for step, (samples, labels) in coddl.enumerate(loader, start=epoch * EPOCH_STEPS):
        loss = F.cross_entropy(net(samples), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        coddl.log(loss=loss)
        total += coddl.mean(loss)
        time.sleep(float(asked.pace.read_text()))
        if coddl.is_main():
            diary = os.open(asked.diary, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
            os.write(diary, f"{step}\n".encode())
            os.close(diary)
    state.first = state.first or total
    if epoch and state.last - total < HARDLY * state.first:
        break
    state.last = total
