"""Train a small CNN to tell at which of eight angles noisy stripes run."""

import math
import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import coddl

epochs = int(sys.argv[1]) if sys.argv[1:] else 8
torch.manual_seed(0)


def stripes(count: int, seed: int) -> torch.utils.data.TensorDataset:
    """Make 16x16 images and their classes; the seed makes them the same in every worker."""
    seeded = torch.Generator().manual_seed(seed)
    angle = torch.randint(8, (count,), generator=seeded)
    width, shift, noise = torch.rand(3, count, 1, 1, generator=seeded)
    turn = (angle * math.pi / 8).view(-1, 1, 1)
    along = torch.arange(16).view(16, 1) * turn.cos() + torch.arange(16) * turn.sin()
    images = torch.sin(along * (0.8 + width) + shift * 2 * math.pi)
    images += (1 + noise) * torch.randn(images.shape, generator=seeded)
    return torch.utils.data.TensorDataset(images.unsqueeze(1), angle)


def layer(inputs: int, outputs: int) -> nn.Module:
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))


@torch.no_grad()
def accuracy(images: Tensor, labels: Tensor) -> float:
    model.eval()
    right = model(images).argmax(1) == labels
    model.train()
    return right.float().mean().item()


model = nn.Sequential(layer(1, 16), layer(16, 32), nn.Flatten(), nn.Dropout(0.3), nn.Linear(512, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
model, optimizer, batches = coddl.prepare(
    model, optimizer, stripes(8192, seed=1), global_batch=256, micro_batch=32, epochs=epochs
)
held_out = [part.to(next(model.parameters()).device) for part in stripes(1024, seed=2).tensors]

for images, labels in batches:
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    coddl.log(loss=loss)
    if batches.completes and coddl.is_main() and batches.step % 32 == 31:  # 8192 / 256 an epoch
        print(f"epoch {batches.epoch + 1}: loss {loss:.3f}, accuracy {accuracy(*held_out):.1%}")

if coddl.is_main():
    torch.save(model.state_dict(), "image_classifier.pt")
    print(f"final accuracy {accuracy(*held_out):.1%}, weights in image_classifier.pt")
