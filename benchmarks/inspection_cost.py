"""What the inspection of a training adds to its first 100 updates.

    python -m benchmarks.inspection_cost --json

One model in one process: blocks of 100 updates, with an inspector that begins anew in each block,
without one, and without one once more. They alternate, so that whatever else the machine does
affects all alike. `ratio` is the median of a block's time by that of the block without next to it,
with a bootstrap interval of 95 %; `noise` is what the same measure gives for the second block
without. `cpu_ratio` is the same of processor time, in which waiting for a core does not show;
`best_ratio` compares the fastest blocks. `added_us` is the difference between those.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.nn.functional as F

from benchmarks.elastic.job import machine
from benchmarks.elastic.models import RECIPES, recipe
from benchmarks.plain import interval
from coddl.runtime.wire import Message
from coddl.runtime.worker.backward import Backward, NoExchange
from coddl.runtime.worker.gradients import grouped
from coddl.runtime.worker.inspection import PassClock, PassInspector, Phase

UPDATES: Final = 100
PAIRS: Final = 20
INSPECTED, WITHOUT, CONTROL = TWINS = ("inspected", "without", "control")

Seconds = tuple[float, float]  # elapsed, and processor time of this process


class Loop:
    """A training whose blocks of updates can be timed, inspected or not."""

    def __init__(self, model: str, device: str, updates: int) -> None:
        made = recipe(model, device)
        self.told: list[Message] = []
        self._updates = updates
        self._device = torch.device(device)
        self._model = made.model.to(device)
        self._optimizer = made.optimizer(self._model.parameters())
        self._batch = made.batch
        inputs, labels = made.data.inputs[: made.batch], made.data.labels[: made.batch]
        self._x, self._y = inputs.to(device), labels.to(device)
        self._inspector: PassInspector | None = None
        # A session has these hooks in any case.
        self._optimizer.register_step_pre_hook(lambda *_: self._mark("other"))
        self._optimizer.register_step_post_hook(lambda *_: self._mark("update"))

    def block(self, *, is_inspected: bool) -> Seconds:
        """Make the updates of a block; gives how long they took."""
        with self._inspection() if is_inspected else self._nothing():
            self._settle()
            start_s, start_cpu_s = time.perf_counter(), time.process_time()
            for _ in range(self._updates):
                self._update()
            self._settle()
            return time.perf_counter() - start_s, time.process_time() - start_cpu_s

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    @contextmanager
    def _nothing(self) -> Iterator[None]:
        yield

    @contextmanager
    def _inspection(self) -> Iterator[None]:
        """Inspect as a session does: a pass begins, backward, an update, the pass has ended."""
        inspector = PassInspector(
            PassClock(self._device),
            lambda: grouped(list(self._model.parameters())),
            Backward(NoExchange()).observe,
            self.told.append,
        )
        self._inspector = inspector
        yield
        self._inspector = None

    def _update(self) -> None:
        if self._inspector is not None:
            self._inspector.begin(self._batch)
        on_gpu = self._device.type == "cuda"
        with torch.autocast(self._device.type, torch.bfloat16, enabled=on_gpu):
            loss = F.cross_entropy(self._model(self._x).flatten(0, -2), self._y.flatten())
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._mark("other")

    def _mark(self, phase: Phase) -> None:
        if self._inspector is not None:
            self._inspector.mark(phase)


def ratios(rounds: list[dict[str, Seconds]], twin: str, clock: int = 0) -> list[float]:
    """Give a twin's time by that without an inspector, per round."""
    return [each[twin][clock] / each[WITHOUT][clock] for each in rounds]


def measure(model: str, device: str, pairs: int, updates: int = UPDATES) -> dict[str, Any]:
    """Compare blocks of one model."""
    loop = Loop(model, device, updates)
    loop.block(is_inspected=True)
    loop.told.clear()
    orders = itertools.islice(itertools.cycle(itertools.permutations(TWINS)), pairs)
    rounds = [
        {twin: loop.block(is_inspected=twin == INSPECTED) for twin in order} for order in orders
    ]
    assert len(loop.told) >= pairs, "each block that is inspected tells, a slow one twice"
    ours, noise = ratios(rounds, INSPECTED), ratios(rounds, CONTROL)
    best_s = {twin: min(each[twin][0] for each in rounds) for twin in TWINS}
    without_s = statistics.median(each[WITHOUT][0] for each in rounds)
    return {
        "ratio": statistics.median(ours),
        "ci95": interval(ours),
        "noise": statistics.median(noise),
        "noise_ci95": interval(noise),
        "cpu_ratio": statistics.median(ratios(rounds, INSPECTED, clock=1)),
        "best_ratio": best_s[INSPECTED] / best_s[WITHOUT],
        "added_us": (best_s[INSPECTED] - best_s[WITHOUT]) * 1e6,
        "updates_per_s": updates / without_s,
        "pairs": pairs,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=[*RECIPES], help="one model")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is a GPU")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of blocks per model")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cpu":
        torch.set_num_threads(1)  # other processes disturb several threads more than one
    found = {}
    for model in [options.only] if options.only else RECIPES:
        result = found[model] = measure(model, device, options.pairs)
        if not options.json:
            (low, high), (least, most) = result["ci95"], result["noise_ci95"]
            print(
                f"{model:8} {result['ratio']:.4f} [{low:.4f}, {high:.4f}]  noise "
                f"{result['noise']:.4f} [{least:.4f}, {most:.4f}]  "
                f"cpu {result['cpu_ratio']:.4f}  best {result['best_ratio']:.4f}  "
                f"{result['added_us']:+.0f} µs in {UPDATES} updates, "
                f"{result['updates_per_s']:.0f} updates/s without",
                flush=True,
            )
    if options.json:
        print(json.dumps({"models": found, "machine": machine() | {"device": device}}))


if __name__ == "__main__":
    main()
