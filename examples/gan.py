"""Train a GAN, two models against each other, to draw points on a ring of eight spots."""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import coddl

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=12)
options = parser.parse_args()

turn = torch.arange(8) * math.pi / 4
SPOTS = torch.stack([turn.cos(), turn.sin()], 1)
seeded = torch.Generator().manual_seed(0)  # the same points in every worker
points = SPOTS.repeat(2048, 1) + 0.05 * torch.randn(8 * 2048, 2, generator=seeded)


def network(inputs: int, outputs: int) -> nn.Module:
    hidden = [nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2)]
    return nn.Sequential(*hidden, nn.Linear(64, outputs))


def draw(count: int, device: torch.device) -> Tensor:
    return generator(torch.randn(count, 8, device=device))


@torch.no_grad()
def progress(device: torch.device) -> str:
    """Say how many of the points drawn lie near a spot, and on how many spots."""
    distance, spot = torch.cdist(draw(1000, device), SPOTS.to(device)).min(1)
    near = distance < 0.2
    return f"{near.float().mean():.0%} of points on {spot[near].unique().numel()} of 8 spots"


generator, critic = network(8, 2), network(2, 1)
optimizers = (
    torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9)),
    torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.9)),
)
(generator, critic), (generator_steps, critic_steps), batches = coddl.prepare(
    (generator, critic), optimizers, points, global_batch=128, micro_batch=32, epochs=options.epochs
)

for real in batches:
    drawn = draw(len(real), real.device)
    critic_loss = F.softplus(-critic(real)).mean() + F.softplus(critic(drawn.detach())).mean()
    critic_loss.backward()
    critic_steps.step()
    generator_loss = F.softplus(-critic(drawn)).mean()
    generator_loss.backward()
    generator_steps.step()
    for each in (generator_steps,critic_steps): each.zero_grad()
    coddl.log(critic=critic_loss, generator=generator_loss)
    if batches.completes and coddl.is_main() and batches.step % 100 == 0:
        print(f"step {batches.step}: {progress(real.device)}")
if coddl.is_main():
    print(f"finally {progress(real.device)}")
