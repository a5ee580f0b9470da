"""A small training whose steps take as long as they are told, and whose weights tell all."""

import argparse
import hashlib
import os
import time
from pathlib import Path

import spot  # noqa: F401 - before anything takes time
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import coddl

EPOCH_STEPS = 10

options = argparse.ArgumentParser()
options.add_argument("--steps", type=int, default=100)
options.add_argument("--global-batch", type=int, default=12, help="of as many virtual nodes")
options.add_argument("--pace", type=Path, help="a file: seconds per pass, divided among workers")
options.add_argument("--still-s", type=float, default=0.0, help="per iteration, with any number")
options.add_argument("--strict", action="store_true")
options.add_argument("--diary", type=Path, help="a file for every step that was made")
options.add_argument("--result", type=Path)
asked = options.parse_args()

print(f"rank {os.environ.get('RANK', '0')} of job {os.environ.get('CODDL_JOB_ID', 'none')}")
torch.set_num_threads(1)
torch.manual_seed(1)
samples = asked.global_batch * EPOCH_STEPS
data = TensorDataset(torch.randn(samples, 16), torch.randint(0, 4, (samples,)))
net: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
optimizer = torch.optim.Adam(net.parameters(), 3e-3)
net, optimizer, batches = coddl.prepare(
    net,
    optimizer,
    data,
    global_batch=asked.global_batch,
    micro_batch=1,
    epochs=asked.steps // EPOCH_STEPS,
    strict=asked.strict,
)


def take_time() -> None:
    """Compute nothing for as long as is asked for now."""
    if asked.pace is not None:
        time.sleep(float(asked.pace.read_text()))
    if batches.completes:
        time.sleep(asked.still_s)


def write_down() -> None:
    """Note a step that is made; a line is written whole, whoever else writes."""
    if asked.diary is None or not batches.completes or not coddl.is_main():
        return
    diary = os.open(asked.diary, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.write(diary, f"{batches.step}\n".encode())
    os.close(diary)


for x, y in batches:
    F.cross_entropy(net(x), y).backward()
    take_time()
    optimizer.step()
    optimizer.zero_grad()
    write_down()

digest = hashlib.sha256()
for value in net.state_dict().values():
    digest.update(value.cpu().numpy().tobytes())
if coddl.is_main():
    if asked.result is not None:
        draft = asked.result.with_suffix(f".{os.getpid()}")
        draft.write_text(digest.hexdigest())
        draft.replace(asked.result)
    print(f"hash {digest.hexdigest()}")
