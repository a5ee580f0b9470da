"""Train a tiny transformer to write sentences, letter by letter."""

import math
import random
import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import coddl

epochs = int(sys.argv[1]) if sys.argv[1:] else 3
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
nouns, verbs = ("fox", "dog", "owl", "bear", "wolf"), ("sees", "follows", "likes", "fears")
choose = random.Random(0).choice  # seeded: the same text in every worker
text = "".join(f"the {choose(nouns)} {choose(verbs)} the {choose(nouns)}. " for _ in range(4000))
LETTERS, CONTEXT = sorted(set(text)), 32
tokens = torch.tensor([LETTERS.index(letter) for letter in text])
windows = tokens.unfold(0, CONTEXT + 1, CONTEXT)  # 32 letters and the one after


class Writer(nn.Module):
    """Predicts, at every position of a text, the letter that comes next."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.letter, self.position = nn.Embedding(len(LETTERS), width), nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, len(LETTERS))

    def forward(self, window: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT, window.device)
        with torch.autocast(device, dtype=torch.bfloat16):
            hidden = self.letter(window[:, :-1]) + self.position.weight
            logits = self.out(self.layers(hidden, mask=mask, is_causal=True))
            return F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())


@torch.no_grad()
def perplexity(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> float:
    model.eval()
    total = 0.0
    for (window,) in loader:  # with `eval=`, this worker's part of the batches
        total += model(window.to(device)).item() * len(window)
    model.train()
    return math.exp(coddl.sum(total) / len(loader.dataset))  # type: ignore[arg-type]


model: nn.Module = Writer().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
train_loader = DataLoader(TensorDataset(windows[64:]), batch_size=64, shuffle=True)
test_loader = DataLoader(TensorDataset(windows[:64]), batch_size=16)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, epochs * len(train_loader))

model, optimizer, train_loader, scheduler, test_loader = coddl.prepare(
    model, optimizer, train_loader, scheduler, eval=test_loader
)

for epoch in coddl.epochs(epochs):
    for step, (window,) in coddl.enumerate(train_loader):
        loss = model(window.to(device))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        coddl.log(loss=loss, lr=scheduler.get_last_lr()[0])
        if step % 20 == 0 and coddl.is_main():
            print(f"epoch {epoch}, step {step}: loss {loss:.2f}, gradient {norm:.2f}")
    found = perplexity(model, test_loader)
    if coddl.is_main():
        print(f"epoch {epoch}: perplexity {found:.2f}")

if coddl.is_main():
    torch.save(model.state_dict(), "char_lm.pt")
    print(f"final perplexity {found:.2f}, guessing would have {len(LETTERS)}")
