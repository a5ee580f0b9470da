"""Trains equal models side by side in one process: one prepared by CoDDL, two plain ones.

Started by `plain.py` with a plan as JSON. The loops are generators that give way after each step;
blocks of steps alternate, so that whatever else the machine does affects all alike. The main
worker writes the seconds of each block as JSON.
"""

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, DistributedSampler

import coddl
from benchmarks.elastic.models import Recipe, recipe
from coddl.runtime.worker.group import POLL_S

BACKWARD = torch.autograd.backward
EPOCHS = 10**6
WARM_BLOCKS = 2
MEMORY_STEPS = 12
SETTLE_S = 0.1  # loader processes of the twin that ran last fill their queue meanwhile
# Each twin is as often first as last, follows each other twin as often, and never itself.
PREPARED, PLAIN, CONTROL = TWINS = ("prepared", "plain", "control")
ORDERS = (
    (PREPARED, PLAIN, CONTROL),
    (PLAIN, CONTROL, PREPARED),
    (CONTROL, PREPARED, PLAIN),
    (PREPARED, CONTROL, PLAIN),
    (CONTROL, PLAIN, PREPARED),
    (PLAIN, PREPARED, CONTROL),
)

Batches = DataLoader[tuple[Tensor, Tensor]]
Seconds = tuple[float, float]  # elapsed, and processor time of all threads of this process


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to train, and how it is measured."""

    model: str
    compiled: bool
    device: str
    loader_workers: int
    workers: int
    rounds: int
    steps: int  # in a block
    alone: str  # the only twin, to measure its peak memory; "": all of them
    folder: str
    backend: str  # of several workers
    waits: bool  # instead of the prepared script: a plain one that waits for each backward

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"


def prepared(plan: Plan) -> Iterator[None]:
    """The plain script with two lines changed: `prepare`, and `epochs` in place of `range`."""
    model, optimizer, loader = training(plan)
    model, optimizer, loader = coddl.prepare(model, optimizer, loader)
    for _ in coddl.epochs(EPOCHS):
        for x, y in loader:
            train(plan, model, optimizer, x, y)
            yield


def plain(plan: Plan) -> Iterator[None]:
    """The plain script."""
    model, optimizer, loader = training(plan)
    for _ in range(EPOCHS):
        for x, y in loader:
            train(plan, model, optimizer, x, y)
            yield


def waiting(plan: Plan) -> Iterator[None]:
    """The plain script, with a host that waits for the GPU as an exchange over NCCL does."""
    model, optimizer, loader = training(plan)
    for _ in range(EPOCHS):
        for x, y in loader:
            train(plan, model, optimizer, x, y, waits=True)
            yield


def parallel(plan: Plan) -> Iterator[None]:
    """The plain script with DDP; each worker's batch is as large as its slice of the other's."""
    made = recipe(plan.model, plan.device)
    sampler: DistributedSampler[tuple[Tensor, Tensor]] = DistributedSampler(made.data)
    loader: Batches = DataLoader(
        made.data,
        made.batch // plan.workers,
        sampler=sampler,
        num_workers=plan.loader_workers,
        pin_memory=plan.on_gpu,
        drop_last=True,
    )
    model: nn.Module = DistributedDataParallel(made.model.to(plan.device))
    if plan.compiled:
        model = cast(nn.Module, torch.compile(model))
    optimizer = made.optimizer(model.parameters())
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            train(plan, model, optimizer, x, y)
            yield


def training(plan: Plan) -> tuple[nn.Module, Optimizer, Batches]:
    made: Recipe = recipe(plan.model, plan.device)
    loader: Batches = DataLoader(
        made.data,
        made.batch,
        shuffle=True,
        num_workers=plan.loader_workers,
        pin_memory=plan.on_gpu,
        drop_last=True,
    )
    model = made.model.to(plan.device)
    if plan.compiled:
        model = cast(nn.Module, torch.compile(model))
    return model, made.optimizer(model.parameters()), loader


def train(
    plan: Plan,
    model: nn.Module,
    optimizer: Optimizer,
    x: Tensor,
    y: Tensor,
    *,
    waits: bool = False,
) -> None:
    x, y = x.to(plan.device, non_blocking=True), y.to(plan.device, non_blocking=True)
    with torch.autocast(plan.device, torch.bfloat16, enabled=plan.on_gpu):
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
    loss.backward()
    if waits and plan.on_gpu:
        done = torch.cuda.Event()
        done.record()
        while not done.query():
            time.sleep(POLL_S)
    optimizer.step()
    optimizer.zero_grad()


def settled(plan: Plan) -> None:
    """Wait until no twin has anything under way."""
    if plan.on_gpu:
        torch.cuda.synchronize()
    if plan.loader_workers:
        time.sleep(SETTLE_S)
    if plan.workers > 1:
        dist.barrier()


@contextmanager
def untouched() -> Iterator[None]:
    """Give a plain script torch's own `backward`; with peers, ours stands in for it everywhere."""
    ours, torch.autograd.backward = torch.autograd.backward, BACKWARD
    try:
        yield
    finally:
        torch.autograd.backward = ours


def block(plan: Plan, loop: Iterator[None]) -> Seconds:
    """Time a block of steps."""
    settled(plan)
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    for _ in range(plan.steps):
        next(loop)
    if plan.on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - start_s, time.process_time() - start_cpu_s


def rounds(plan: Plan) -> list[dict[str, Seconds]]:
    """Time one block of each twin per round."""
    other: Callable[[Plan], Iterator[None]] = parallel if plan.workers > 1 else plain
    ours = waiting(plan) if plan.waits else prepared(plan)
    loops = {PREPARED: ours, PLAIN: other(plan), CONTROL: other(plan)}

    def run(twin: str) -> Seconds:
        with nullcontext() if twin == PREPARED else untouched():
            return block(plan, loops[twin])

    for _ in range(WARM_BLOCKS):
        for twin in TWINS:
            run(twin)
    orders = (ORDERS[number % len(ORDERS)] for number in range(plan.rounds))
    return [{twin: run(twin) for twin in order} for order in orders]


def peak_bytes(plan: Plan) -> int:
    """Train one twin alone; gives the most GPU memory that its tensors took."""
    loop = prepared(plan) if plan.alone == PREPARED else plain(plan)
    for _ in range(MEMORY_STEPS):
        next(loop)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def main() -> None:
    plan = Plan(**json.loads(sys.argv[1]))
    folder = Path(plan.folder)
    rank = 0
    if plan.workers > 1:
        rank = int(os.environ["CODDL_WORKER"])
        store = FileStore(str(folder / "store"), plan.workers)
        dist.init_process_group(plan.backend, store=store, rank=rank, world_size=plan.workers)
    found = peak_bytes(plan) if plan.alone else rounds(plan)
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    if plan.workers > 1:
        dist.barrier()
    for loader_process in multiprocessing.active_children():
        loader_process.terminate()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # in the middle of several epochs; how they are torn down is not measured


if __name__ == "__main__":
    main()
