"""Train a tiny transformer to write sentences, letter by letter."""

import random
import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import coddl

epochs = int(sys.argv[1]) if sys.argv[1:] else 3
torch.manual_seed(0)
nouns, verbs = ("fox", "dog", "owl", "bear", "wolf"), ("sees", "follows", "likes", "fears")
choose = random.Random(0).choice  # seeded: the same text in every worker
text = "".join(f"the {choose(nouns)} {choose(verbs)} the {choose(nouns)}. " for _ in range(4000))
LETTERS, WINDOW = sorted(set(text)), 32  # a window has 32 letters and the one after
windows = torch.tensor([LETTERS.index(each) for each in text]).unfold(0, WINDOW + 1, WINDOW)


class Writer(nn.Module):
    """Tells, at every place of a text, how likely each letter is to come next."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(len(LETTERS), width), nn.Embedding(WINDOW, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, len(LETTERS))

    def loss(self, window: Tensor) -> Tensor:
        past = nn.Transformer.generate_square_subsequent_mask(WINDOW, window.device)
        with torch.autocast(window.device.type, dtype=torch.bfloat16):
            hidden = self.letter(window[:, :-1]) + self.place.weight
            likely = self.out(self.layers(hidden, mask=past, is_causal=True))
            return F.cross_entropy(likely.flatten(0, 1), window[:, 1:].flatten())


model = Writer()
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer, batches = coddl.prepare(
    model, optimizer, windows[64:], global_batch=64, micro_batch=8, epochs=epochs, clip_norm=1.0
)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, batches.steps)
coddl.track(schedule=schedule)  # saved with the job, and stepped once per iteration

for window in batches:
    loss = model.loss(window)
    loss.backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    coddl.log(loss=loss, lr=schedule.get_last_lr()[0])
    if batches.completes and coddl.is_main() and batches.step % 20 == 0:
        print(f"step {batches.step}: perplexity {loss.exp():.2f}, gradient {batches.grad_norm:.2f}")

if coddl.is_main():
    loss = model.eval().loss(windows[:64].to(model.out.weight.device))
    print(f"final perplexity {loss.exp():.2f}, guessing would have {len(LETTERS)}")
