"""Train a GAN, two models against each other, to draw points on a ring of eight spots."""

import math
import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

import coddl

epochs = int(sys.argv[1]) if sys.argv[1:] else 16
torch.manual_seed(0)

turn = torch.arange(8) * math.pi / 4
spots = torch.stack([turn.cos(), turn.sin()], 1)
seeded = torch.Generator().manual_seed(0)  # the same points in every worker
points = spots.repeat(1024, 1) + 0.08 * torch.randn(8192, 2, generator=seeded)


def network(inputs: int, outputs: int) -> nn.Module:
    hidden = [nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2)]
    return nn.Sequential(*hidden, nn.Linear(64, outputs))


def draw(count: int) -> Tensor:
    return painter(torch.randn(count, 8, device=spots.device))


@torch.no_grad()
def progress() -> str:
    distance, spot = torch.cdist(draw(1000), spots).min(1)
    near = distance < 0.25
    return f"{near.float().mean():.0%} of the points on {len(spot[near].unique())} of 8 spots"


painter, critic = network(8, 2), network(2, 1)
optimizers = optim.RMSprop(painter.parameters(), 5e-4), optim.RMSprop(critic.parameters(), 1e-3)
(painter, critic), (painter_optimizer, critic_optimizer), batches = coddl.prepare(
    (painter, critic), optimizers, points, global_batch=128, micro_batch=32, epochs=epochs
)
spots = spots.to(next(painter.parameters()).device)

for real in batches:
    drawn = draw(len(real))
    critic_loss = F.softplus(-critic(real)).mean() + F.softplus(critic(drawn.detach())).mean()
    critic_loss.backward()
    critic_optimizer.step()
    painter_loss = F.softplus(-critic(drawn)).mean()
    painter_loss.backward()
    painter_optimizer.step()
    critic_optimizer.zero_grad()
    painter_optimizer.zero_grad()
    coddl.log(critic=critic_loss, painter=painter_loss)
    if batches.completes and coddl.is_main() and batches.step % 50 == 0:
        print(f"step {batches.step}: {progress()}")

if coddl.is_main():
    print(f"finally {progress()}")
