"""Train a small classifier that gains as much from more workers as its options say.

    python train.py STEPS SHARED_S SERIAL_S

SHARED_S is a pause per 8 samples and stands for a GPU's work: each worker has its slice of the
batch, so more workers shorten it. SERIAL_S is a pause per step and stands for what they don't
shorten: reading data, slow links. So a demo on a few cores shows what a pool of GPUs would do; all
else is as in any other training.
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import coddl

steps, shared_s, serial_s = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
STEPS_PER_EPOCH, BATCH = 16, 64

torch.manual_seed(0)
x = torch.randn(STEPS_PER_EPOCH * BATCH, 32)
dataset = TensorDataset(x, (x.square().sum(1) > 32).long())
loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)

for epoch in coddl.epochs(steps // STEPS_PER_EPOCH):
    for samples, labels in loader:
        time.sleep(shared_s * len(samples) / 8 + serial_s)
        loss = nn.functional.cross_entropy(model(samples), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        coddl.log(loss=loss)
    if coddl.is_main():
        print(f"epoch {epoch}: loss {loss:.3f}")
