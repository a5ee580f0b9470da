"""A job that notes each of its steps, for benchmarks of nodes that engines bring."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from coddl.api.client import Client
from coddl.api.code import pack

BATCH = 12
WAIT_S = 120.0
SCRIPT = """
import os, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import coddl

torch.manual_seed(1)
data = TensorDataset(torch.randn(96_000, 8), torch.randn(96_000, 1))
loader = DataLoader(data, batch_size={batch})
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
model, optimizer, loader = coddl.prepare(model, optimizer, loader)
for epoch in coddl.epochs(10):
    for x, y in loader:
        nn.functional.mse_loss(model(x), y).backward()
        time.sleep(0.02 * len(x))
        optimizer.step()
        optimizer.zero_grad()
        if coddl.is_main():
            with open({noted!r}, "a") as file:
                file.write(f"{{time.time()}} {{len(x)}} {{os.environ['CODDL_ATTEMPT']}}\\n")
"""


def awaited(look: Callable[[], object], pause_s: float = 0.005, limit_s: float = WAIT_S) -> float:
    """Return the seconds until something is so."""
    begin_s = time.monotonic()
    while not look():
        if time.monotonic() - begin_s > limit_s:
            raise SystemExit(f"it did not come within {limit_s:.0f} s")
        time.sleep(pause_s)
    return time.monotonic() - begin_s


class Step(NamedTuple):
    """A step that a job has made."""

    at_s: float
    samples: int  # of its first worker: fewer, the more workers there are
    attempt: int  # one more each time the job is started


def steps_of(noted: Path) -> list[Step]:
    """Give the steps that a job has made."""
    if not noted.exists():
        return []
    lines = [line.split() for line in noted.read_text().splitlines(True) if line.endswith("\n")]
    return [Step(float(at_s), int(samples), int(attempt)) for at_s, samples, attempt in lines]


def hand_in(client: Client, noted: Path, gpus: Mapping[str, int]) -> int:
    """Submit a job that notes its steps in a file; give its number."""
    project = noted.with_name(f"{noted.name}-project")
    project.mkdir()
    (project / "train.py").write_text(SCRIPT.format(noted=str(noted), batch=BATCH))
    archive = pack(project, project.with_suffix(".tar.gz"))
    with archive.path.open("rb") as file:
        client.send_code(archive.hash, file)
    job = client.submit({"script": "train.py", "code": archive.hash, "gpus": gpus})
    return int(job["id"])
