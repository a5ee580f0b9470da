"""A training with as much state as asked for, that notes each step.

When it ended and began, the GPU memory that the process had then, and which process it was.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import coddl

options = argparse.ArgumentParser()
options.add_argument("--noted", type=Path, required=True, help="a file: a line per step")
options.add_argument("--state-mb", type=int, default=16, help="of weights and Adam's moments")
options.add_argument("--steps", type=int, default=10**9)
options.add_argument("--uses", type=int, default=1, help="of each sample in a step: work of a GPU")
options.add_argument("--rest-s", type=float, default=0.0, help="between two steps")
asked = options.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH = 4096 if asked.state_mb >= 1000 else 512
layers = max(1, round(asked.state_mb * 1e6 / (12 * WIDTH * WIDTH)))

torch.manual_seed(1)
with torch.device(device):
    model: Any = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
optimizer: Any = torch.optim.Adam(model.parameters(), 1e-5)
data = TensorDataset(torch.randn(1024, WIDTH))
loader: Any = DataLoader(data, batch_size=64)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)
made = 0
with asked.noted.open("a", buffering=1) as noted:
    for _ in coddl.epochs(-(-asked.steps // len(loader))):
        for (x,) in loader:
            begin_s = time.monotonic()
            model(x.to(device).repeat(asked.uses, 1)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if device == "cuda":
                torch.cuda.synchronize()
            bytes_ = torch.cuda.memory_reserved() if device == "cuda" else 0
            noted.write(f"{time.monotonic()} {begin_s} {bytes_} {os.getpid()}\n")
            time.sleep(asked.rest_s)
