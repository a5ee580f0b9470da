"""Train a GAN, two models against each other, to draw points on a ring of eight spots."""

import math
import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader, TensorDataset

import coddl

epochs = int(sys.argv[1]) if sys.argv[1:] else 16
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

turn = torch.arange(8) * math.pi / 4
spots = torch.stack([turn.cos(), turn.sin()], 1)
seeded = torch.Generator().manual_seed(0)  # the same points in every worker
points = spots.repeat(1024, 1) + 0.08 * torch.randn(8192, 2, generator=seeded)


def network(inputs: int, outputs: int) -> nn.Module:
    hidden = [nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2)]
    return nn.Sequential(*hidden, nn.Linear(64, outputs)).to(device)


def draw(count: int) -> Tensor:
    return generator(torch.randn(count, 8, device=device))


@torch.no_grad()
def progress() -> str:
    distance, spot = torch.cdist(draw(1000).cpu(), spots).min(1)
    near = distance < 0.25
    return f"{near.float().mean():.0%} of the points on {len(spot[near].unique())} of 8 spots"


generator, critic = network(8, 2), network(2, 1)
generator_optimizer = optim.RMSprop(generator.parameters(), lr=5e-4)
critic_optimizer = optim.RMSprop(critic.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(points), batch_size=128, shuffle=True)

generator, critic, generator_optimizer, critic_optimizer, loader = coddl.prepare(
    generator, critic, generator_optimizer, critic_optimizer, loader
)

for epoch in coddl.epochs(epochs):
    for (real,) in loader:
        real = real.to(device)
        drawn = draw(len(real))
        critic_loss = F.softplus(-critic(real)).mean() + F.softplus(critic(drawn.detach())).mean()
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()

        generator_loss = F.softplus(-critic(drawn)).mean()
        generator_optimizer.zero_grad()
        generator_loss.backward()
        generator_optimizer.step()
        coddl.log(critic=critic_loss, generator=generator_loss)
    if coddl.is_main():
        print(f"epoch {epoch}: {progress()}")

if coddl.is_main():
    torch.save(generator.state_dict(), "gan.pt")
    print(f"finally {progress()}")
