"""What every idiom script shares with its tests: the seed, the pace, and the line of results."""

import importlib
import json
import os

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

SEED = int(os.environ.get("SEED", "0"))
PACE_S = float(os.environ.get("PACE_S", "0"))
WEIGHTS = 200  # how many values of the model are compared


def rest() -> None:
    """Wait after a pass, so that a test can resize the job, until there is a file "hurry"."""
    if PACE_S:  # the plain script has none of ours
        importlib.import_module("tests.runtime.scripts.pacing").rest(PACE_S)


def updates(optimizer: Optimizer) -> int:
    """Count the updates that an Adam has made, by its own state."""
    return max(int(state["step"]) for state in optimizer.state.values())


def report(model: nn.Module, near: dict[str, float], **counters: float | Tensor) -> None:
    """Print the results: what may vary with the seed (`near`), and what may not (`counters`)."""
    values = torch.cat([v.flatten().double() for v in model.state_dict().values()])
    assert values.isfinite().all(), "the weights are not finite"
    numbers = {name: float(count) for name, count in counters.items()}
    step = max(1, len(values) // WEIGHTS)
    result = {"near": near, "counters": numbers, "weights": values[::step].tolist()}
    print("result", json.dumps(result), flush=True)  # noqa: T201
