"""A training that writes down what each worker was handed, and by which loader process.

A line of `batches-WORKER` is a pass: epoch, step, samples. A line of `processes-WORKER` is a loader
process: its number, and whether the worker had joined when it was started.
"""

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pacing
import saboteur
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import coddl
from coddl.runtime.worker import prepare
from coddl.runtime.worker.session import TrainingSession

options = argparse.ArgumentParser()
options.add_argument("kind", choices=["samples", "batches", "stream", "stateful"])
options.add_argument("--loader-workers", type=int, default=0)
options.add_argument("--epochs", type=int, default=2)
options.add_argument("--steps", type=int, default=100)  # per epoch
options.add_argument("--pace-s", type=float, default=0.05)
options.add_argument("--accumulate", type=int, default=1)
options.add_argument("--persistent", action="store_true")
options.add_argument("--out-of-order", action="store_true")
options.add_argument("--linger", action="store_true")
asked = options.parse_args()
BATCH = 12
SAMPLES = asked.steps * BATCH
WORKER = os.environ.get("CODDL_WORKER", "0")


def session() -> TrainingSession:
    made = prepare._session
    assert isinstance(made, TrainingSession)
    return made


def note(file: str, *words: object) -> None:
    with Path(f"{file}-{WORKER}").open("a") as record:
        record.write(" ".join(map(str, words)) + "\n")


class Samples(Dataset[Tensor]):
    """Samples that tell their number, and the epoch that the dataset was told of."""

    epoch = -1

    def __len__(self) -> int:
        return int(SAMPLES if asked.kind == "samples" else asked.steps)

    def __getitem__(self, number: int) -> Tensor:
        if asked.out_of_order and number % 24 == 0:
            time.sleep(0.1)  # the others overtake its batch
        if asked.kind == "samples":
            return torch.tensor([number, self.epoch])
        return torch.tensor([[number * BATCH + n, self.epoch] for n in range(BATCH)])


class Stream(IterableDataset[Tensor]):
    """The same in a stream."""

    epoch = -1

    def __iter__(self) -> Iterator[Tensor]:
        for number in range(SAMPLES):
            note("read", number)
            yield torch.tensor([number, self.epoch])


class StatefulStream(Stream):
    """A stream that can be read on from where another one was."""

    at = 0

    def __iter__(self) -> Iterator[Tensor]:
        while self.at < SAMPLES:
            self.at += 1
            note("read", self.at - 1)
            yield torch.tensor([self.at - 1, self.epoch])
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def initialise(_: int) -> None:
    if not session().rehearses:
        note("processes", os.getpid(), session()._membership._started)


def collated(samples: list[Tensor]) -> Tensor:
    if WORKER != "0" and not session().rehearses and len(samples) > 1:
        Path("ahead").touch()
    return torch.stack(samples)


def linger() -> None:
    """Stay in the last pass of a group until a joiner has loaded its first batch."""
    deadline_s = time.monotonic() + 60
    while session()._membership._next is not None:
        if Path("ahead").exists():
            Path("lingered").touch()
            return
        assert time.monotonic() < deadline_s, "nothing was read ahead"
        time.sleep(0.01)


saboteur.arm()
torch.manual_seed(0)
makes = {"samples": Samples, "batches": Samples, "stream": Stream, "stateful": StatefulStream}
data: Any = makes[asked.kind]()
model: Any = nn.Linear(1, 1)
optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-9)
more: dict[str, Any] = {"num_workers": asked.loader_workers, "shuffle": True}
if asked.loader_workers:
    more |= {"worker_init_fn": initialise, "persistent_workers": asked.persistent}
if asked.kind in ("samples", "stream", "stateful"):
    more["collate_fn"] = collated
if "stat" in asked.kind or "stream" in asked.kind:
    del more["shuffle"]
if asked.out_of_order:
    more["in_order"] = False
loader: Any = DataLoader(data, None if asked.kind == "batches" else BATCH, **more)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)

for epoch in coddl.epochs(asked.epochs):
    data.epoch = epoch
    for step, batch in coddl.enumerate(loader):
        if not session().rehearses:
            note("batches", epoch, step, *batch[:, 0].tolist())
            assert asked.persistent or set(batch[:, 1].tolist()) == {epoch}, "an old dataset"
        model(batch[:, :1].float()).mean().backward()
        if (step + 1) % asked.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
        pacing.rest(asked.pace_s)
        if asked.linger and not session().rehearses:
            linger()
