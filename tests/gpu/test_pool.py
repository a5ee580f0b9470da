"""A pool on a machine with NVIDIA GPUs, as a user runs it: `make test-gpu`."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

SCRIPT = """
import sys, time
import torch
from torch import nn
import coddl

device = torch.device("cuda")
x = torch.randn(512, 128, generator=torch.Generator().manual_seed(0))
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(128, 2048), nn.ReLU(), nn.Linear(2048, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer, batches = coddl.prepare(
    model, optimizer, data, global_batch=64, epochs=int(sys.argv[1]), strict=True
)
for x, y in batches:
    nn.functional.mse_loss(model(x.to(device)), y.to(device)).backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.005)
if coddl.is_main():
    weights = sum(p.double().sum().item() for p in model.parameters())
    print("trained on", torch.cuda.get_device_name(), "weights", weights.hex())
"""
WAIT_S = 240.0


class Pool:
    """The command line, on a pool of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "work").mkdir()
        (folder / "work" / "train.py").write_text(SCRIPT)

    def coddl(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "coddl", *arguments],
            cwd=self.folder / "work",
            env={**os.environ, "CODDL_STATE_DIR": str(self.folder / "state")},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def json(self, *arguments: str) -> Any:  # Any: what JSON can hold
        return json.loads(self.coddl(*arguments, "-o", "json"))

    def submit(self, name: str, epochs: int) -> None:
        self.coddl("submit", "--name", name, "--gpus", "1", "train.py", str(epochs))

    def wait(self, name: str, *states: str) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while (state := self.json("describe", name)["state"]) not in states:
            assert time.monotonic() < deadline_s, f"{name} is {state}, not {states}"
            time.sleep(0.2)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    pool = Pool(tmp_path)
    pool.coddl("up", "--port", "0", "--cool-down", "1")
    try:
        yield pool
    finally:
        pool.coddl("down", "--cancel-jobs")


def test_two_jobs_share_a_node_and_take_turns_on_its_gpus(pool: Pool) -> None:
    [node] = pool.json("nodes")
    assert len(node["slots"]) == torch.cuda.device_count()
    assert torch.cuda.get_device_name() in node["slots"][0]["kind"]
    pool.submit("first", 25)
    pool.wait("first", "RUNNING")
    pool.submit("second", 25)
    if torch.cuda.device_count() == 1:
        pool.wait("second", "PENDING")
        assert pool.json("explain", "second")["code"] == "Resources"
        pool.coddl("policy", "afs-p:tie=keep,lease_h=0.003")
        pool.wait("second", "RUNNING")
        assert pool.json("describe", "first")["state"] in ("PREEMPTED", "STARTING", "RUNNING")
    for name in ("first", "second"):
        pool.wait(name, "SUCCEEDED")
    lines = [
        line
        for name in ("first", "second")
        for line in pool.coddl("logs", name).splitlines()
        if "trained on" in line
    ]
    assert torch.cuda.get_device_name() in lines[0]
    assert lines[0].split("weights")[1] == lines[1].split("weights")[1], "interrupted or not"
