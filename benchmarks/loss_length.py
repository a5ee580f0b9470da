"""How well the length of a training is predicted from its losses, on real small trainings.

    python -m benchmarks.loss_length --json

Each task is trained from several seeds. Its losses are thinned as a job's are, and at 20, 40, 60
and 80 % of its length the end is predicted from what was seen until then. A training ends

- `epochs told`: by the criterion of docs/estimate.md, with the epochs of its loader;
- `epochs unknown`: by the same without them, as in `coddl.steps()`;
- `early stopping`: by a rule of its own that the prediction does not know: its validation loss has
  not been 0.5 % below the lowest so far for 5 epochs.

`error` is the predicted end by the true one, less 1; `stated` the error that the prediction states,
as a part of the true end. `within` is the part of predictions whose error is not larger than that.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from benchmarks.elastic.job import machine
from coddl.agent.loss_spans import LossSpans
from coddl.core.columns import FloatColumn
from coddl.core.speed.training_length import (
    EPOCH_STEPS,
    STOP,
    LossPoint,
    half_fallen,
    predicted_length,
    with_loss,
)

PARTS: Final = (0.2, 0.4, 0.6, 0.8)  # of a training, at which its end is predicted
SEEDS: Final = 3
BATCH: Final = 64
EVERY: Final = 5  # steps that are logged together, as those of half a second are
PATIENCE, BETTER = 5, 0.005  # epochs of early stopping, and what counts as better, relative
HELD_OUT: Final = 0.2  # of the samples, for validation
TOLD, UNKNOWN, EARLY = RULES = ("epochs told", "epochs unknown", "early stopping")


@dataclass(frozen=True, slots=True)
class Task:
    """A training: what it has before its loop, and for how many steps it is watched at most."""

    model: nn.Module
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    inputs: Tensor
    targets: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]
    steps_max: int


class Recurrent(nn.Module):
    """A GRU whose last state is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(4, 24, batch_first=True)
        self.head = nn.Linear(24, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.cells(x)[1][0])
        return out


class Attentive(nn.Module):
    """A transformer layer over tokens that predicts the next one."""

    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        out: Tensor = self.head(self.layer(self.embed(x), src_mask=mask, is_causal=True))
        return out.transpose(1, 2)


class Factors(nn.Module):
    """A product of two embeddings."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(count, width), nn.Embedding(count, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = (self.users(x[:, 0]) * self.items(x[:, 1])).sum(1)
        return out


def logistic() -> Task:
    """Noisy linear classes, plain SGD."""
    x = torch.randn(4096, 32)
    y = (x @ torch.randn(32) + 2 * torch.randn(4096) > 0).long()
    return Task(nn.Linear(32, 2), lambda p: SGD(p, 0.02), x, y, F.cross_entropy, 8_000)


def mlp() -> Task:
    """Classes by another network, SGD with momentum."""
    x = torch.randn(4096, 16)
    with torch.no_grad():
        y = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))(x).argmax(1)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    return Task(model, lambda p: SGD(p, 0.02, momentum=0.9), x, y, F.cross_entropy, 8_000)


def cnn() -> Task:
    """Patterns under noise, Adam with a small rate."""
    y = torch.randint(0, 4, (2048,))
    x = torch.randn(4, 1, 12, 12)[y] + 1.5 * torch.randn(2048, 1, 12, 12)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(200, 4)
    )
    return Task(model, lambda p: Adam(p, 2e-4), x, y, F.cross_entropy, 9_000)


def rnn() -> Task:
    """The sign of a sum over time: a plateau, then a fall."""
    x = torch.randn(2048, 12, 4)
    y = (x[:, :, 0].sum(1) > 0).long()
    return Task(Recurrent(), lambda p: Adam(p, 5e-4), x, y, F.cross_entropy, 6_000)


def autoencoder() -> Task:
    """Reconstruction of points near a plane, with noise."""
    x = torch.randn(2048, 4) @ torch.randn(4, 24) + 0.3 * torch.randn(2048, 24)
    model = nn.Sequential(nn.Linear(24, 4), nn.Linear(4, 24))
    return Task(model, lambda p: Adam(p, 1e-3), x, x, F.mse_loss, 8_000)


def transformer() -> Task:
    """The next token of a chain whose tokens follow one another by chance."""
    words, length = 16, 12
    chances = torch.softmax(2 * torch.randn(words, words), 1)
    columns = [torch.randint(0, words, (1024,))]
    for _ in range(length):
        columns.append(torch.multinomial(chances[columns[-1]], 1)[:, 0])
    tokens = torch.stack(columns, 1)
    model = Attentive(words)
    made = (tokens[:, :-1], tokens[:, 1:])
    return Task(model, lambda p: Adam(p, 3e-4), *made, F.cross_entropy, 3_000)


def factorization() -> Task:
    """Ratings of items by users, from embeddings of both."""
    users, items = torch.randint(0, 64, (4096,)), torch.randint(0, 64, (4096,))
    tastes, traits = torch.randn(64, 4), torch.randn(64, 4)
    y = (tastes[users] * traits[items]).sum(1) + 0.5 * torch.randn(4096)
    x = torch.stack((users, items), 1)
    return Task(Factors(64, 8), lambda p: Adam(p, 5e-3), x, y, F.mse_loss, 8_000)


def deep() -> Task:
    """A noisy wave, by a deep narrow network."""
    x = torch.rand(2048, 2) * 4 - 2
    y = torch.sin(2 * x[:, :1]) * x[:, 1:] + 0.1 * torch.randn(2048, 1)
    layers = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4)]
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), *layers, nn.Linear(16, 1))
    return Task(model, lambda p: SGD(p, 0.05, momentum=0.9), x, y, F.mse_loss, 9_000)


TASKS: Final[Mapping[str, Callable[[], Task]]] = {
    "logistic": logistic,
    "mlp": mlp,
    "cnn": cnn,
    "rnn": rnn,
    "autoencoder": autoencoder,
    "transformer": transformer,
    "factorization": factorization,
    "deep": deep,
}


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen of a training."""

    losses: FloatColumn  # of each step
    validation: FloatColumn  # after each epoch
    epoch_steps: int


def trained(task: Task, steps_max: int) -> Watched:
    """Train for so many steps, and to the end of an epoch."""
    held_out = int(len(task.inputs) * HELD_OUT)
    valid, train = torch.randperm(len(task.inputs)).split([held_out, len(task.inputs) - held_out])
    optimizer = task.optimizer(task.model.parameters())
    losses: list[float] = []
    validation: list[float] = []
    epoch_steps = -(-len(train) // BATCH)
    while len(losses) < steps_max:
        for chosen in train[torch.randperm(len(train))].split(BATCH):
            loss = task.loss(task.model(task.inputs[chosen]), task.targets[chosen])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        with torch.no_grad():
            guess = task.model(task.inputs[valid])
            validation.append(task.loss(guess, task.targets[valid]).item())
    return Watched(np.array(losses), np.array(validation), epoch_steps)


def told(losses: FloatColumn) -> list[tuple[int, tuple[LossPoint, ...]]]:
    """Give the losses that a pool would have, after each few steps."""
    spans, points, found = LossSpans(), tuple[LossPoint, ...](), []
    for step in range(EVERY, len(losses) + 1, EVERY):
        mean = float(losses[step - EVERY : step].mean())
        if (point := spans.add(step - EVERY // 2, mean, EVERY)) is not None:
            points = with_loss(points, point)
        found.append((step, points))
    return found


def converged_at(losses: FloatColumn, epoch_steps: int) -> int | None:
    """Give the step at which a training has converged by the criterion, on its real losses.

    The mean of the last epoch is no more than STOP.fall of the largest loss below the mean of the
    epoch STOP.window epochs before. An epoch is the script's, or as many steps as the loss took to
    fall half of the way so far, whichever is longer.
    """
    sums = np.concatenate(([0.0], np.cumsum(losses)))
    for step, points in told(losses):
        steps = np.array([point.step for point in points], np.float64)
        seen = np.array([point.loss for point in points])
        epoch = max(epoch_steps, round(half_fallen(steps, seen)))
        if step < (STOP.window + 1) * epoch:
            continue
        before = step - STOP.window * epoch
        last, first = (sums[at] - sums[at - epoch] for at in (step, before))
        if (first - last) / epoch <= STOP.fall * seen.max():
            return step
    return None


def stopped_at(watched: Watched) -> int | None:
    """Give the step at which early stopping ends a training."""
    best, bad = np.inf, 0
    for epoch, loss in enumerate(watched.validation.tolist(), start=1):
        is_better = loss < best * (1.0 - BETTER)
        best, bad = (loss, 0) if is_better else (best, bad + 1)
        if bad == PATIENCE:
            return epoch * watched.epoch_steps
    return None


def predictions(losses: FloatColumn, end: int, epoch_steps: int | None) -> dict[str, Any]:
    """Predict the end of a training at some parts of it."""
    seen = told(losses[:end])
    found: dict[str, Any] = {}
    for part in PARTS:
        step = int(part * end)
        points = [each for at, each in seen if at <= step]
        length = predicted_length(points[-1], epoch_steps) if points else None
        found[f"{part:.0%}"] = None if length is None else {
            "error": (step + length.left(step)) / end - 1.0,
            "stated": length.error(step) * length.left(step) / end,
        }  # fmt: skip
    return found


def measure(name: str, seed: int, steps_max: int | None = None) -> list[dict[str, Any]]:
    """Train a task, and predict its end by each rule."""
    torch.manual_seed(seed)
    task = TASKS[name]()
    watched = trained(task, steps_max or task.steps_max)
    epoch_steps = watched.epoch_steps
    ends = {
        TOLD: converged_at(watched.losses, epoch_steps),
        UNKNOWN: converged_at(watched.losses, EPOCH_STEPS),
        EARLY: stopped_at(watched),
    }
    return [
        {
            "task": name,
            "seed": seed,
            "rule": rule,
            "steps": end,
            "epoch_steps": epoch_steps,
            "at": {}
            if end is None
            else predictions(watched.losses, end, None if rule == UNKNOWN else epoch_steps),
        }
        for rule, end in ends.items()
    ]


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sum errors up, by rule and by the part of the training that was seen."""
    found: dict[str, Any] = {}
    for rule in RULES:
        ended = [run for run in runs if run["rule"] == rule and run["steps"] is not None]
        found[rule] = {"trainings": len(ended)}
        for part in (f"{each:.0%}" for each in PARTS):
            made = [run["at"][part] for run in ended if run["at"][part] is not None]
            off = [abs(each["error"]) for each in made]
            within = [abs(each["error"]) <= each["stated"] for each in made]
            found[rule][part] = {
                "predicted": len(made),
                "mean": statistics.mean(off) if off else None,
                "median": statistics.median(off) if off else None,
                "worst": max(off, default=None),
                "within": statistics.mean(within) if within else None,
            }
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=[*TASKS], help="one task")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="trainings of each task")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    runs: list[dict[str, Any]] = []
    for name in [options.only] if options.only else TASKS:
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            runs += measure(name, seed)
            if not options.json:
                print(*map(_line, runs[-len(RULES) :]), sep="\n", flush=True)
    found = summary(runs)
    if options.json:
        print(json.dumps({"summary": found, "runs": runs, "machine": machine()}))
        return
    for rule, parts in found.items():
        for part in (f"{each:.0%}" for each in PARTS):
            each = parts[part]
            if each["predicted"]:
                print(
                    f"{rule:15} {part}: {each['predicted']} of {parts['trainings']} predicted, "
                    f"mean {each['mean']:.0%}, median {each['median']:.0%}, "
                    f"worst {each['worst']:.0%}, within the stated error {each['within']:.0%}"
                )


def _line(run: dict[str, Any]) -> str:
    parts = "  ".join(
        f"{part} " + ("none" if each is None else f"{each['error']:+.0%} ± {each['stated']:.0%}")
        for part, each in run["at"].items()
    )
    return f"{run['task']:13} {run['seed']} {run['rule']:15} {run['steps']} steps  {parts}"


if __name__ == "__main__":
    main()
