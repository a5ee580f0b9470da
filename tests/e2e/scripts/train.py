"""A small training whose steps take as long as they are told, and whose weights tell all."""

import argparse
import hashlib
import os
import time
from pathlib import Path

import spot  # noqa: F401 - before anything takes time
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import coddl

EPOCH_STEPS = 10

options = argparse.ArgumentParser()
options.add_argument("--steps", type=int, default=100)
options.add_argument("--global-batch", type=int, default=12)
options.add_argument("--pace", type=Path, help="a file: seconds per sample, divided among workers")
options.add_argument("--still-s", type=float, default=0.0, help="per iteration, with any number")
options.add_argument("--strict", action="store_true", help="a virtual node per sample")
options.add_argument("--diary", type=Path, help="a file for every step that was made")
options.add_argument("--short", type=Path, help="a file: if it is there, memory runs out, once")
options.add_argument("--result", type=Path)
asked = options.parse_args()

number, job = os.environ.get("CODDL_WORKER", "0"), os.environ.get("CODDL_JOB_ID", "none")
print(f"worker {number} of job {job}, rank {os.environ.get('RANK')}")
torch.set_num_threads(1)
torch.manual_seed(1)
samples = asked.global_batch * EPOCH_STEPS
data = TensorDataset(torch.randn(samples, 16), torch.randint(0, 4, (samples,)))
net: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
optimizer = torch.optim.Adam(net.parameters(), 3e-3)
epochs = asked.steps // EPOCH_STEPS


def train(x: Tensor, y: Tensor, *, completes: bool = True) -> None:
    """Make a pass of the loop, and compute nothing for as long as is asked for now."""
    if asked.short is not None and asked.short.exists():
        asked.short.unlink()
        raise torch.OutOfMemoryError("CUDA out of memory")
    F.cross_entropy(net(x), y).backward()
    if asked.pace is not None:
        time.sleep(float(asked.pace.read_text()) * len(x))
    if completes:
        time.sleep(asked.still_s)
    optimizer.step()
    optimizer.zero_grad()


def write_down(step: int) -> None:
    """Note a step that is made; a line is written whole, whatever other processes write."""
    if asked.diary is None or not coddl.is_main():
        return
    diary = os.open(asked.diary, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.write(diary, f"{step}\n".encode())
    os.close(diary)


if asked.strict:
    net, optimizer, batches = coddl.prepare(
        net,
        optimizer,
        data,
        global_batch=asked.global_batch,
        micro_batch=1,
        epochs=epochs,
        strict=True,
    )
    for x, y in batches:
        train(x, y, completes=batches.completes)
        if batches.completes:
            write_down(batches.step)
else:
    loader = DataLoader(data, batch_size=asked.global_batch, shuffle=True)
    net, optimizer, loader = coddl.prepare(net, optimizer, loader)
    for epoch in coddl.epochs(epochs):
        for step, (x, y) in coddl.enumerate(loader, start=epoch * EPOCH_STEPS):
            train(x, y)
            write_down(step)

digest = hashlib.sha256()
for value in net.state_dict().values():
    digest.update(value.cpu().numpy().tobytes())
if coddl.is_main():
    if asked.result is not None:
        draft = asked.result.with_suffix(f".{os.getpid()}")
        draft.write_text(digest.hexdigest())
        draft.replace(asked.result)
    print(f"hash {digest.hexdigest()}")
