"""Train a small classifier whose steps take as long as if there was much to compute."""

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import coddl

SAMPLE_S = 0.004  # of computing that a GPU would do

steps = int(sys.argv[1]) if sys.argv[1:] else 100
torch.manual_seed(0)
inputs = torch.randn(steps * 32, 16)
data = TensorDataset(inputs, (inputs.sum(dim=1) > 0).long())
model: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = DataLoader(data, batch_size=32, shuffle=True)

model, optimizer, loader = coddl.prepare(model, optimizer, loader)
for _ in coddl.epochs(1):
    for batch, labels in loader:
        time.sleep(SAMPLE_S * len(batch))
        loss = F.cross_entropy(model(batch), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        coddl.log(loss=loss)
