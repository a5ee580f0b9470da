"""An elastic training of a model of realistic size on data made in place; notes each iteration."""

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import coddl
from benchmarks.elastic.models import resnet


class Transformer(nn.Module):
    """A decoder of about 350 million parameters."""

    def __init__(self, width: int = 1024, depth: int = 24, words: int = 32000) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(
            width, 16, 4 * width, dropout=0.1, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.words(x)))
        return out


class GeneratedSamples(Dataset[tuple[Any, Any]]):
    """Samples made in place."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.image = torch.zeros(3, 224, 224)

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if self.kind == "resnet50":
            return self.image, index % 1000
        return torch.arange(index, index + 256) % 32000, torch.arange(
            index + 1, index + 257
        ) % 32000


kind, times_path = sys.argv[1:3]
device = "cuda" if torch.cuda.is_available() else "cpu"
with torch.device(device):
    model = resnet((3, 4, 6, 3), 64, 1000) if kind == "resnet50" else Transformer()
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
loader = DataLoader(GeneratedSamples(kind), batch_size=64, shuffle=True)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)
with Path(times_path).open("a", buffering=1) as times:
    for epoch in coddl.epochs(10**6):
        for step, (x, y) in coddl.enumerate(loader, start=epoch * len(loader)):
            with torch.autocast(device, torch.bfloat16):
                loss = F.cross_entropy(model(x.to(device)).flatten(0, -2), y.to(device).flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if coddl.is_main():
                if device == "cuda":
                    torch.cuda.synchronize()
                times.write(f"{step} {time.monotonic()}\n")
