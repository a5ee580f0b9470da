"""The rest of what a script may ask for, at once: several models, dict batches, loader processes,
a compiled model, unused parameters, two backward passes, tensors outside the models."""

import argparse
from typing import Any, cast

import pacing
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import coddl

options = argparse.ArgumentParser()
options.add_argument("--epochs", type=int, default=2)
options.add_argument("--pace-s", type=float, default=0.0)
options.add_argument(
    "--kind", choices=["two-losses", "gan", "compiled", "fused", "scaled", "edited"]
)
asked = options.parse_args()


class Data:
    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> dict[str, Any]:
        x = torch.sin(torch.arange(8) * (index % 37))
        return {"x": x + 0.1 * torch.randn(8), "y": (x.sum(), index)}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        self.sometimes = nn.Linear(8, 1)  # only if the batch holds a certain sample
        self.never = nn.Linear(8, 1)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        out: Tensor = self.body(batch["x"])
        if (batch["y"][1] % 64 == 0).any():
            out = out + self.sometimes(batch["x"])
        return out[:, 0]


torch.manual_seed(0)
whole = Net()
net: nn.Module = whole
other: nn.Module = Net()
settings: dict[str, Any] = {"global_batch": 32, "micro_batch": 4, "epochs": asked.epochs}
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
if asked.kind == "gan":
    made = tuple(torch.optim.AdamW(m.parameters(), 1e-2) for m in (net, other))
    (net, other), (first, second), batches = coddl.prepare(
        (net, other), made, Data(), **settings, loader_workers=1
    )
else:
    weight = nn.Parameter(torch.ones(()))  # learned, and part of no module
    optimizer = torch.optim.AdamW([*whole.parameters(), weight], 1e-2, weight_decay=0.1)
    if asked.kind in ("compiled", "fused"):
        net = whole.body
    if asked.kind == "compiled":
        net = cast(nn.Module, torch.compile(net, backend="aot_eager"))
    net, optimizer, batches = coddl.prepare(
        net, optimizer, Data(), **settings, fuse=asked.kind == "fused"
    )
if asked.kind == "scaled":
    coddl.track(scaler=scaler)

for batch in batches:
    target = batch["y"][0]
    if asked.kind == "gan":
        first.zero_grad()
        F.mse_loss(net(batch), target).backward()
        first.step()
        second.zero_grad()
        (F.mse_loss(other(batch), target) + net(batch).mean()).backward()
        second.step()
    elif asked.kind == "two-losses":
        F.mse_loss(net(batch) * weight, target).backward()
        (0.1 * net(batch).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    elif asked.kind == "scaled":
        scaler.scale(F.mse_loss(net(batch) * weight, target)).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    elif asked.kind == "edited":
        F.mse_loss(net(batch) * weight, target).backward()
        for parameter in whole.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)
        optimizer.step()
        optimizer.zero_grad()
    else:
        out = net(batch["x"])[:, 0]
        F.mse_loss(out * weight, target).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    pacing.rest(asked.pace_s)

if coddl.is_main():
    if asked.kind == "compiled":
        print("graphs", torch._dynamo.utils.counters["stats"]["unique_graphs"])
    values = [p for m in (net, other) for p in m.parameters()]
    print("weights", *(f"{x:.9e}" for p in values for x in p.flatten()[:32].tolist()))
