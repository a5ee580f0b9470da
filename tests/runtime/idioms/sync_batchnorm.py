"""A convolutional network with SyncBatchNorm, which sees the global batch."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import coddl  # plain:
from tests.runtime.idioms import reporting


def images(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    patterns = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    random = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (samples,), generator=random)
    return patterns[y] + 4.0 * torch.randn(samples, 3, 8, 8, generator=random), y


torch.manual_seed(reporting.SEED)
loader = DataLoader(TensorDataset(*images(1536, 1)), batch_size=64, shuffle=True, drop_last=True)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(512, 4),
)
model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)  # plain:

for _epoch in coddl.epochs(4):  # plain: for _epoch in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        reporting.rest()

model.eval()
x, y = images(256, 2)
near = {"loss": float(F.cross_entropy(model(x), y))}
if coddl.is_main():  # plain: if True:
    reporting.report(model, near, passes=model.state_dict()["1.num_batches_tracked"])
