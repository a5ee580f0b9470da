"""How long a job waits for its first step: from the server's 201 to a finished optimizer step.

    python -m benchmarks.submit --json

A pool of two slots stands idle; a first job, which does not count, has found its process warm. Ten
scripts that it has never seen are submitted one after the other, each when the one before has gone.
A script notes when its first step was complete; the wait is from the moment the server's answer
arrived until then. The reference is the same script by plain `python` on the same machine, from
start to first step, between the others.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.elastic.job import machine
from coddl.api.client import Client, find
from coddl.api.code import pack

SCRIPT = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import coddl

torch.manual_seed({number})
data = TensorDataset(torch.randn(256, 64), torch.randint(0, 10, (256,)))
loader = DataLoader(data, batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer, loader = coddl.prepare(model, optimizer, loader)
for epoch in coddl.epochs(1):
    for x, y in loader:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        with open({noted!r}, "a") as file:
            file.write(f"{{time.time()}}\\n")
        break
"""
WAIT_S = 120.0


def coddl(*arguments: str) -> str:
    """Run a command of ours."""
    done = subprocess.run(
        [sys.executable, "-m", "coddl", *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout


def first_step_s(noted: Path) -> float:
    """Wait for a script's first step; tell when it was."""
    deadline_s = time.monotonic() + WAIT_S
    while not (noted.exists() and noted.read_text().endswith("\n")):
        if time.monotonic() > deadline_s:
            raise SystemExit(f"no step within {WAIT_S:.0f} s")
        time.sleep(0.005)
    return float(noted.read_text().splitlines()[0])


def by_python_s(folder: Path, number: int) -> float:
    """Start a script alone; tell how long its first step took to come."""
    noted = folder / f"alone-{number}"
    script = folder / f"alone-{number}.py"
    script.write_text(SCRIPT.format(number=number, noted=str(noted)))
    start_s = time.time()
    subprocess.run([sys.executable, str(script)], check=True, capture_output=True)
    return first_step_s(noted) - start_s


def submitted_s(folder: Path, state: Path, number: int) -> float:
    """Submit a new script; return the seconds until its first step."""
    project = folder / f"project-{number}"
    project.mkdir()
    noted = folder / f"pooled-{number}"
    (project / "train.py").write_text(SCRIPT.format(number=number, noted=str(noted)))
    archive = pack(project, folder / f"project-{number}.tar.gz")
    with Client(find("", str(state))) as client:
        with archive.path.open("rb") as file:
            client.send_code(archive.hash, file)
        job = client.submit({"script": "train.py", "code": archive.hash, "gpus": 1})
        answered_s = time.time()
        wait_s = first_step_s(noted) - answered_s
        while client.get(f"/jobs/{job['id']}")["state"] != "SUCCEEDED":
            time.sleep(0.05)
    return wait_s


def measure(jobs: int) -> dict[str, Any]:
    """Submit that many jobs, and run as many scripts by plain python."""
    with tempfile.TemporaryDirectory(prefix="coddl-bench-") as name:
        folder, state = Path(name), Path(name) / "state"
        coddl("up", "--slots", "2", "--port", "0", "--state-dir", str(state))
        try:
            submitted_s(folder, state, jobs)  # by its end the pool is warm
            pooled_s, alone_s = [], []
            for number in range(jobs):
                pooled_s.append(submitted_s(folder, state, number))
                alone_s.append(by_python_s(folder, number))
        finally:
            coddl("down", "--state-dir", str(state))
    return {
        "machine": machine(),
        "jobs": jobs,
        "first_step_s": statistics.median(pooled_s),
        "first_step_s_all": [round(each, 3) for each in pooled_s],
        "python_s": statistics.median(alone_s),
        "ratio": statistics.median(alone_s) / statistics.median(pooled_s),
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--jobs", type=int, default=10)
    options = parser.parse_args()
    found = measure(options.jobs)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"submit to first step  median of {found['jobs']}: {found['first_step_s']:.2f} s")
    print(f"python script.py      median of {found['jobs']}: {found['python_s']:.2f} s")
    print(f"ratio                 {found['ratio']:.1f}")


if __name__ == "__main__":
    main()
