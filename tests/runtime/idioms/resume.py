"""A script which saves its own checkpoint after each epoch, and goes on from one it finds."""

import os
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

import coddl  # plain:
from tests.runtime.idioms import reporting, toy

EPOCHS = int(os.environ.get("EPOCHS", "5"))
CHECKPOINT = Path("checkpoint.pt")

torch.manual_seed(reporting.SEED)
loader = DataLoader(toy.regression(), batch_size=32, shuffle=True)
model = toy.mlp()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
start = 0
if CHECKPOINT.exists():
    saved = torch.load(CHECKPOINT)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    start = saved["epoch"] + 1
model, optimizer, loader = coddl.prepare(model, optimizer, loader)  # plain:

for epoch in coddl.epochs(start, EPOCHS):  # plain: for epoch in range(start, EPOCHS):
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        reporting.rest()
    if coddl.is_main():  # plain: if True:
        saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(saved, "checkpoint.new")
        os.replace("checkpoint.new", CHECKPOINT)

near = {"loss": toy.evaluate(model)}
if coddl.is_main():  # plain: if True:
    reporting.report(model, near, updates=reporting.updates(optimizer))
