"""What both sides of `resize.py` train: 25 MB of parameters and optimizer state."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

GLOBAL_BATCH = 16
FEATURES, WIDTH, CLASSES = 256, 1000, 16


def training() -> tuple[nn.Module, torch.optim.Optimizer, TensorDataset]:
    """Make model, optimizer and data; Adam keeps two numbers for each parameter."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(FEATURES, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH * 4 // 5),
        nn.ReLU(),
        nn.Linear(WIDTH * 4 // 5, CLASSES),
    )
    inputs = torch.randn(4096, FEATURES)
    data = TensorDataset(inputs, torch.randint(CLASSES, (len(inputs),)))
    return model, torch.optim.Adam(model.parameters(), lr=1e-4, fused=True), data
