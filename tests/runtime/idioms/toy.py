"""Data and models small enough to train in a second; the data does not depend on the seed."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

FEATURES = 16


def regression(samples: int = 1024, seed: int = 1) -> TensorDataset:
    """Give inputs and a smooth function of them, with noise."""
    slope = torch.randn(FEATURES, 1, generator=torch.Generator().manual_seed(0)) / 4
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, FEATURES, generator=random)
    noise = 0.05 * torch.randn(samples, 1, generator=random)
    return TensorDataset(x, torch.tanh(x @ slope) + noise)


def classes(samples: int = 1024, seed: int = 1) -> TensorDataset:
    """Give points around four centers which overlap, and the number of each point's center."""
    centers = torch.randn(4, FEATURES, generator=torch.Generator().manual_seed(0))
    random = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (samples,), generator=random)
    return TensorDataset(centers[y] + 1.5 * torch.randn(samples, FEATURES, generator=random), y)


def mlp(outputs: int = 1) -> nn.Sequential:
    """Give a network with one hidden layer."""
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, outputs))


@torch.no_grad()
def evaluate(model: nn.Module) -> float:
    """Give the loss of a regression on data that it has not seen."""
    model.eval()
    x, y = held_out()
    loss = float(F.mse_loss(model(x), y))
    model.train()
    return loss


def held_out() -> tuple[Tensor, ...]:
    """Give the regression's evaluation data."""
    return regression(256, seed=2).tensors
