"""A small real training: CNN, BatchNorm, dropout, Adam, schedule, clipping, EMA. Prints a hash."""

import argparse
import hashlib

import pacing
import saboteur
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import coddl

options = argparse.ArgumentParser()
options.add_argument("--epochs", type=int, default=4)
options.add_argument("--strict", action="store_true")
options.add_argument("--pace-s", type=float, default=0.0)
options.add_argument("--micro-batch", type=int, default=8)
options.add_argument("--trace", action="store_true")
asked = options.parse_args()

saboteur.arm()
torch.manual_seed(1)
data = TensorDataset(torch.randn(1024, 3, 8, 8), torch.randint(0, 10, (1024,)))
net = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Flatten(),
    nn.Dropout(0.2),
    nn.Linear(512, 10),
)
optimizer = torch.optim.Adam(net.parameters(), 3e-3)
net, optimizer, batches = coddl.prepare(
    net,
    optimizer,
    data,
    global_batch=64,
    micro_batch=asked.micro_batch,
    epochs=asked.epochs,
    strict=asked.strict,
    clip_norm=1.0,
)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, batches.steps)
average = torch.optim.swa_utils.AveragedModel(net, avg_fn=lambda a, p, _n: 0.9 * a + 0.1 * p)
coddl.track(schedule=schedule, average=average)

for x, y in batches:
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
    average.update_parameters(net)
    pacing.rest(asked.pace_s + saboteur.slowness_s())
    shown = coddl.mean(loss)
    if asked.trace and batches.completes and coddl.is_main():
        assert batches.grad_norm is not None
        norm = float(batches.grad_norm)
        print(f"trace {batches.step} {shown!r} {schedule.get_last_lr()[0]!r} {norm!r}", flush=True)

digest = hashlib.sha256()
for state in (net.state_dict(), average.state_dict()):
    for value in state.values():
        digest.update(value.cpu().numpy().tobytes())
for one in optimizer.state_dict()["state"].values():
    for value in one.values():
        digest.update(value.cpu().numpy().tobytes())
if coddl.is_main():
    print(f"hash {digest.hexdigest()}")
    print("weights", *(f"{w:.9e}" for w in list(net.parameters())[-2].flatten()[:64].tolist()))
