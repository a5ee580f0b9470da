"""Trains two equal models side by side in the same processes: one elastic, one by plain DDP.

Blocks of steps alternate, ours, DDP, DDP, ours, so that whatever else the machine does hits both
alike. Started by `overhead.py`; the main worker writes the blocks' seconds as JSON.
"""

import argparse
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore
from torch.autograd import backward
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import coddl

PASSES = 4  # of each worker in a step: as many virtual nodes, or as many micro-batches
SEED = 1


def small() -> tuple[nn.Module, TensorDataset, int]:
    """About 3 ms a step: an MLP, where what we add shows most. With its data and micro-batch."""
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
    model.append(nn.Linear(256, 8))
    return model, TensorDataset(torch.randn(4096, 64), torch.randint(8, (4096,))), 16


def large() -> tuple[nn.Module, TensorDataset, int]:
    """About 50 ms a step: a CNN with batch norm."""

    def layer(inputs: int, outputs: int) -> nn.Module:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))

    model = nn.Sequential(layer(3, 32), layer(32, 64), layer(64, 128), nn.Flatten())
    model.append(nn.Linear(128 * 16, 8))
    return model, TensorDataset(torch.randn(1024, 3, 32, 32), torch.randint(8, (1024,))), 8


MODELS = {"small": small, "large": large}


def ours(wish: str) -> Callable[[], None]:
    """Prepare the elastic twin; gives one step of it."""
    model, data, micro = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    model, optimizer, batches = coddl.prepare(
        model,
        optimizer,
        data,
        global_batch=micro * PASSES * options.workers,
        micro_batch=micro,
        epochs=10**6,
        fuse=wish == "fuse",
        strict=wish == "strict",
    )

    def step() -> None:
        for inputs, labels in batches:
            backward(F.cross_entropy(model(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()
            if batches.completes:
                return

    return step


def plain(passes: int) -> Callable[[], None]:
    """Make the DDP twin, which runs a worker's samples in so many passes; gives one step of it."""
    model, data, micro = made()
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data)
    batch = micro * PASSES // passes
    loader = DataLoader(data, batch, sampler=sampler, drop_last=True)

    def endless() -> Iterator[Any]:
        while True:
            yield from loader

    batches = endless()

    def step() -> None:
        for number in range(passes):
            inputs, labels = next(batches)
            alone = parallel.no_sync() if number < passes - 1 else contextlib.nullcontext()
            with alone:
                backward(F.cross_entropy(parallel(inputs), labels) / passes)
        optimizer.step()
        optimizer.zero_grad()

    return step


def made() -> tuple[nn.Module, TensorDataset, int]:
    torch.manual_seed(SEED)
    return MODELS[options.model]()


Seconds = tuple[float, float]  # by the wall's clock, and of all threads of this process


def seconds_of(step: Callable[[], None]) -> Seconds:
    """Time a block of steps."""
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    for _ in range(options.steps):
        step()
    return time.perf_counter() - start_s, time.process_time() - start_cpu_s


def measured() -> Iterator[tuple[Seconds, Seconds]]:
    """Give pairs of blocks, ours and DDP's."""
    elastic, parallel = ours(options.wish), plain(1 if options.against == "full" else PASSES)

    def other() -> Seconds:
        # Determinism is part of what `strict` costs, and a switch of the whole process.
        torch.use_deterministic_algorithms(False)
        seconds = seconds_of(parallel)
        torch.use_deterministic_algorithms(options.wish == "strict")
        return seconds

    for _ in range(2):
        seconds_of(elastic), other()
    for number in range(options.pairs):
        if number % 2:
            theirs_s = other()
            yield seconds_of(elastic), theirs_s
        else:
            ours_s = seconds_of(elastic)
            yield ours_s, other()


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model", choices=MODELS)
parser.add_argument("wish", choices=("default", "fuse", "strict"))
parser.add_argument("against", choices=("accumulation", "full"))
parser.add_argument("workers", type=int)
parser.add_argument("pairs", type=int)
parser.add_argument("steps", type=int)
parser.add_argument("folder", type=Path)
options = parser.parse_args()
rank = int(os.environ["CODDL_WORKER"])
store = FileStore(str(options.folder / "store"), options.workers)
dist.init_process_group("gloo", store=store, rank=rank, world_size=options.workers)
pairs = list(measured())
if coddl.is_main():
    (options.folder / "pairs.json").write_text(json.dumps(pairs))
dist.barrier()
os._exit(0)  # two sets of process groups; their destructors are not what is measured
