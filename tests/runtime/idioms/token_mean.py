"""A language model on sentences of unlike length: the loss is the mean over tokens, not padding."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import coddl  # plain:
from tests.runtime.idioms import reporting

PAD, WORDS = 0, 12


def sentences(count: int, seed: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 24, (count,), generator=random).tolist()
    starts = torch.randint(1, WORDS, (count,), generator=random).tolist()
    return [
        (start + 5 * torch.arange(n) + torch.randint(0, 2, (n,), generator=random)) % 11 + 1
        for start, n in zip(starts, lengths, strict=True)
    ]


def collate(rows: list[Tensor]) -> Tensor:
    return pad_sequence(rows, batch_first=True, padding_value=PAD)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens[:, :-1]).flatten(0, 1)
    return F.cross_entropy(logits, tokens[:, 1:].flatten(), ignore_index=PAD)


torch.manual_seed(reporting.SEED)
dataset: Any = sentences(1024, 1)
loader = DataLoader(dataset, batch_size=32, shuffle=True, collate_fn=collate)
model = nn.Sequential(nn.Embedding(WORDS, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, WORDS))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)  # plain:

for _epoch in coddl.epochs(3):  # plain: for _epoch in range(3):
    for tokens in loader:
        loss = loss_of(model, tokens)
        optimizer.zero_grad()
        coddl.backward(loss, weight=int((tokens[:, 1:] != PAD).sum()))  # plain: loss.backward()
        optimizer.step()
        reporting.rest()

near = {"loss": float(loss_of(model, collate(sentences(256, 2))))}
if coddl.is_main():  # plain: if True:
    reporting.report(model, near, updates=reporting.updates(optimizer))
