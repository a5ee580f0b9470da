"""Models of common kinds and sizes, with data: full size for a GPU, small versions for a CPU."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import Dataset

SEED = 1

Sample = tuple[Tensor, Tensor]


class Samples(Dataset[Sample]):
    """A long dataset over a few random samples in memory, so that an epoch outlasts a run."""

    def __init__(self, inputs: Tensor, labels: Tensor, length: int) -> None:
        self.inputs, self.labels, self.length = inputs, labels, length
        self.different = len(inputs)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        index %= self.different
        return self.inputs[index], self.labels[index]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a training script has before its loop."""

    model: nn.Module
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    data: Samples
    batch: int


def resnet(depths: tuple[int, ...], width: int, classes: int) -> nn.Module:
    """Build a ResNet of bottleneck blocks; depths 3, 4, 6, 3 and width 64 give ResNet-50."""
    parts: OrderedDict[str, nn.Module] = OrderedDict(
        stem=nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
    )
    inputs = width
    for stage, depth in enumerate(depths):
        narrow = width * 2**stage
        for block in range(depth):
            stride = 2 if block == 0 and stage > 0 else 1
            parts[f"stage{stage}_block{block}"] = Bottleneck(inputs, narrow, stride)
            inputs = 4 * narrow
    parts["head"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
    return nn.Sequential(parts)


class Bottleneck(nn.Module):
    """The block of ResNet-50 (He et al., 2015)."""

    def __init__(self, inputs: int, narrow: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * narrow
        self.body = nn.Sequential(
            nn.Conv2d(inputs, narrow, 1, bias=False),
            nn.BatchNorm2d(narrow),
            nn.ReLU(inplace=True),
            nn.Conv2d(narrow, narrow, 3, stride, 1, bias=False),
            nn.BatchNorm2d(narrow),
            nn.ReLU(inplace=True),
            nn.Conv2d(narrow, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.skip = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x))


class Block(nn.Module):
    """A decoder block of GPT-2 (Radford et al., 2019)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """A decoder with tied embeddings; 12 layers, width 768 and 12 heads give GPT-2 small."""

    def __init__(self, layers: int, width: int, heads: int, words: int, tokens: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        nn.init.normal_(self.words.weight, std=0.02)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        logits: Tensor = self.head(self.norm(self.blocks(self.words(x) + self.places(places))))
        return logits


def sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return SGD(parameters, lr=1e-3, momentum=0.9, weight_decay=1e-4)


def adamw(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return AdamW(parameters, lr=1e-4)


def images(*, large: bool) -> Recipe:
    """ResNet-50 with 64 images of 224x224; a narrow ResNet with 32 of 48x48 on a CPU."""
    size, classes, batch = (224, 1000, 64) if large else (48, 10, 32)
    model = resnet((3, 4, 6, 3), 64, classes) if large else resnet((1, 1, 1, 1), 16, classes)
    inputs = torch.randn(128, 3, size, size)
    return Recipe(model, sgd, Samples(inputs, torch.randint(classes, (128,)), 1 << 17), batch)


def text(*, large: bool) -> Recipe:
    """GPT-2 small with 32 texts of 256 tokens; 2 narrow layers with 16 of 48 on a CPU."""
    words, tokens, batch = (50304, 256, 32) if large else (1024, 48, 16)
    model = Gpt(12, 768, 12, words, tokens) if large else Gpt(2, 128, 4, words, tokens)
    pool = torch.randint(words, (512, tokens + 1))
    return Recipe(model, adamw, Samples(pool[:, :-1], pool[:, 1:], 1 << 17), batch)


def rows(*, large: bool) -> Recipe:
    """Two linear layers, about 1 ms per step: what is added to a step shows most."""
    width, batch = (1024 if large else 256), 64
    model = nn.Sequential(nn.Linear(128, width), nn.ReLU(), nn.Linear(width, 10))
    data = Samples(torch.randn(4096, 128), torch.randint(10, (4096,)), 1 << 20)
    return Recipe(model, adamw, data, batch)


RECIPES = {"resnet": images, "gpt": text, "mlp": rows}


def recipe(name: str, device: str) -> Recipe:
    """Build a model and its data; the same numbers each time."""
    torch.manual_seed(SEED)
    return RECIPES[name](large=device == "cuda")
