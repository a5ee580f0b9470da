"""A small real training: CNN, BatchNorm, dropout, Adam, schedule, clipping, EMA. Prints a hash."""

import argparse
import hashlib
from collections.abc import Iterator
from typing import Any

import pacing
import saboteur
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import coddl

options = argparse.ArgumentParser()
options.add_argument("--epochs", type=int, default=4)
options.add_argument("--strict", action="store_true")
options.add_argument("--pace-s", type=float, default=0.0)
options.add_argument("--micro-batch", type=int, default=8)
options.add_argument("--loader-workers", type=int, default=0)
options.add_argument("--exact", action="store_true", help="nothing depends on the slice")
options.add_argument("--trace", action="store_true")
options.add_argument("--track-model", action="store_true", help="in an object that contains it")
asked = options.parse_args()

saboteur.arm()
torch.manual_seed(1)
data = TensorDataset(torch.randn(1024, 3, 8, 8), torch.randint(0, 10, (1024,)))
net: nn.Module = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1),
    nn.Identity() if asked.exact else nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Flatten(),
    nn.Dropout(0.0 if asked.exact else 0.2),
    nn.Linear(512, 10),
)
optimizer = torch.optim.Adam(net.parameters(), 3e-3)
STEPS = 16 * asked.epochs
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
average = torch.optim.swa_utils.AveragedModel(net, avg_fn=lambda a, p, _n: 0.9 * a + 0.1 * p)
batches: Any = None  # of a strict training


class Trainer:
    """Contains the model, as trainers of one's own do."""

    def state_dict(self) -> dict[str, Any]:
        return {"model": net.state_dict(), "optimizer": optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])


def strict() -> Iterator[tuple[int, bool, Tensor, Tensor]]:
    """Give (step, whether the update is made now, batch) of a strict training."""
    global batches
    settings = {"micro_batch": asked.micro_batch, "epochs": asked.epochs, "clip_norm": 1.0}
    *_, batches = coddl.prepare(net, optimizer, data, global_batch=64, strict=True, **settings)
    coddl.track(schedule=schedule, average=average)
    for x, y in batches:
        yield batches.step, batches.completes, x, y


def plain() -> Iterator[tuple[int, bool, Tensor, Tensor]]:
    """Give the same of an ordinary one."""
    loader: Any = DataLoader(data, 64, shuffle=True, num_workers=asked.loader_workers)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = coddl.prepare(net.to(device), optimizer, loader, min_slice=1)[-1]
    coddl.track(average=average.to(device))
    for epoch in coddl.epochs(asked.epochs):
        for x, y in loader:
            yield epoch * len(loader) + loader.step, True, x.to(device), y.to(device)


for step, completes, x, y in strict() if asked.strict else plain():
    if asked.track_model:
        asked.track_model = False
        coddl.track(trainer=Trainer())
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    norm = None if asked.strict else nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
    average.update_parameters(net)
    pacing.rest(asked.pace_s + saboteur.slowness_s())
    shown = coddl.mean(loss)
    if asked.trace and completes and coddl.is_main():
        rate = schedule.get_last_lr()[0]
        number = float(batches.grad_norm if norm is None else norm)
        print(f"trace {step} {shown!r} {rate!r} {number!r}", flush=True)

digest = hashlib.sha256()
for state in (net.state_dict(), average.state_dict()):
    for value in state.values():
        digest.update(value.cpu().numpy().tobytes())
for one in optimizer.state_dict()["state"].values():
    for value in one.values():
        digest.update(value.cpu().numpy().tobytes())
if coddl.is_main():
    print(f"hash {digest.hexdigest()}")
    print(f"counts {schedule.last_epoch} {int(average.n_averaged)} {schedule.get_last_lr()[0]!r}")
    print("weights", *(f"{w:.9e}" for w in list(net.parameters())[-2].flatten()[:64].tolist()))
