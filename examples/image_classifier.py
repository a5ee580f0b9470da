"""Train a small CNN to classify noisy stripes by their angle, and keep the best weights."""

import math
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import coddl

epochs = int(sys.argv[1]) if sys.argv[1:] else 8
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def stripes(count: int, seed: int) -> TensorDataset:
    """Make 16x16 images and their classes; the seed makes them the same in every worker."""
    seeded = torch.Generator().manual_seed(seed)
    angle = torch.randint(8, (count,), generator=seeded)
    width, shift, noise = torch.rand(3, count, 1, 1, generator=seeded)
    turn = (angle * math.pi / 8).view(-1, 1, 1)
    along = torch.arange(16).view(16, 1) * turn.cos() + torch.arange(16) * turn.sin()
    images = torch.sin(along * (0.8 + width) + shift * 2 * math.pi)
    images += (1 + noise) * torch.randn(images.shape, generator=seeded)
    return TensorDataset(images.unsqueeze(1), angle)


def block(inputs: int, outputs: int) -> nn.Module:
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader[tuple[torch.Tensor, ...]]) -> float:
    model.eval()
    correct = 0
    for images, labels in loader:
        predicted = model(images.to(device)).argmax(1).cpu()
        correct += (predicted == labels).sum().item()
    model.train()
    return correct / len(loader.dataset)  # type: ignore[arg-type]


model = nn.Sequential(block(1, 16), block(16, 32), nn.Flatten(), nn.Dropout(0.3), nn.Linear(512, 8))
model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
train_loader = DataLoader(stripes(8192, seed=1), batch_size=256, shuffle=True)
test_loader = DataLoader(stripes(1024, seed=2), batch_size=256)

model, optimizer, train_loader = coddl.prepare(model, optimizer, train_loader)
best = coddl.state(accuracy=0.0)

for epoch in coddl.epochs(epochs):
    for images, labels in train_loader:
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        coddl.log(loss=loss)
    scheduler.step()
    accuracy = evaluate(model, test_loader)
    if coddl.is_main():
        print(f"epoch {epoch + 1}: loss {loss:.3f}, accuracy {accuracy:.1%}")
        if accuracy > best.accuracy:
            torch.save(model.state_dict(), "image_classifier.pt")
    best.accuracy = max(best.accuracy, accuracy)

if coddl.is_main():
    print(f"final accuracy {accuracy:.1%}, best weights in image_classifier.pt")
