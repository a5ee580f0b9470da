"""How well passes of other sizes are predicted from the passes of one GPU that were measured.

    python -m benchmarks.slices --json                 on a GPU
    python -m benchmarks.slices --device cpu --models mlp

Every size is a training by itself, which measures its profile as any job does. The profile then
keeps the whole batch and a quarter of it, as a job has after a resize to four workers, and predicts
the times and the peak of memory of all other sizes: `held_out`. `from_whole` predicts them from the
whole batch alone, as before any resize.

Each measurement is told on stderr when it is done.

shared  two workers that share the GPU, over each backend: the step measured, and replayed from that
        profile with the link that `coddl inspect` measures
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.elastic.job import RunningJob, machine, scratch
from coddl.agent.inspection.hardware import look_at_hardware
from coddl.agent.inspection.inspecting import InspectionOptions, inspected
from coddl.agent.inspection.sweeps import QUICK
from coddl.core.speed.inspection import LinkSpeed
from coddl.core.speed.profile import TrainingProfile
from coddl.core.speed.replay import Arrangement, replayed
from coddl.core.speed.slices import pass_times, peak_bytes
from coddl.runtime.supervisor.environment import ON_ONE_GPU

BATCHES: Final = {"resnet": 64, "gpt": 32, "mlp": 64}  # those of the models, on a GPU
PARTS: Final = ((1, 4), (1, 2), (1, 3), (1, 8))  # of the batch, besides all of it
KEPT: Final = (1, 4)
WORKERS: Final = 2


def profile_of(model: str, batch: int, device: str, steps: int) -> TrainingProfile:
    """Train with batches of a size on one worker; give its profile."""
    with scratch() as folder, _job(model, batch, device, folder) as job:
        _await_steps(job, folder, steps)
        while not job.events("profile"):
            job.check()
            time.sleep(0.05)
        return TrainingProfile.from_data(job.last("profile")["profile"])


def step_s(model: str, batch: int, device: str, backend: str, steps: int) -> float:
    """Train on workers that share the device; give the seconds of a step."""
    with scratch() as folder:
        with _job(model, batch, device, folder, workers=WORKERS, backend=backend) as job:
            _await_steps(job, folder, steps)
        times = _times(folder)[steps // 3 :]
    return (times[-1] - times[0]) / (len(times) - 1)


def sizes_of(batch: int) -> Iterator[int]:
    """Give the sizes of slices, the largest first."""
    yield batch
    yield from dict.fromkeys(max(1, round(batch * a / b)) for a, b in PARTS)


def measure(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure a model at all sizes, and predict some from others."""
    batch = options.batch or BATCHES[model]
    profiles = dict[int, TrainingProfile]()
    for size in sizes_of(batch):
        profiles[size] = profile_of(model, size, options.device, options.steps)
        _tell(f"{model}, {size} samples: {_costs(profiles[size], size)}")
    whole = profiles[batch]
    quarter = profiles[max(1, round(batch * KEPT[0] / KEPT[1]))]
    known = replace(
        whole,
        slices=tuple(sorted((*whole.slices, *quarter.slices))),
        memory=tuple(sorted((*whole.memory, *quarter.memory))),
    )
    others = {size: each for size, each in profiles.items() if each not in (whole, quarter)}
    found: dict[str, Any] = {
        "batch": batch,
        "sizes": {size: _costs(each, size) for size, each in profiles.items()},
        "held_out": {size: _errors(known, each, size) for size, each in others.items()},
        "from_whole": {size: _errors(whole, each, size) for size, each in others.items()},
        "shared": {},
    }
    for backend in options.backends:
        took_s = step_s(model, batch, options.device, backend, options.steps)
        together = Arrangement((WORKERS,), on_a_gpu=WORKERS)
        line = replayed(known, together, {"gpu": gpu_link(backend)})
        found["shared"][backend] = {
            "measured_s": took_s,
            "predicted_s": line.step_s,
            "error": line.step_s / took_s - 1.0,
            "exposed_s": line.exposed_s,
        }
        _tell(f"{model}, {WORKERS} workers, {backend}: {found['shared'][backend]}")
    return found


_links: dict[str, LinkSpeed] = {}


def gpu_link(backend: str) -> LinkSpeed:
    """Measure the link between workers that share the GPU; once."""
    if backend not in _links:
        if backend == "nccl":
            os.environ[ON_ONE_GPU] = "1"
        with scratch() as folder:
            options = InspectionOptions(state_dir=folder, extent=QUICK)
            _links[backend] = inspected(look_at_hardware(None), options, _tell).links["gpu"]
        os.environ.pop(ON_ONE_GPU, None)
    return _links[backend]


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _costs(profile: TrainingProfile, samples: int) -> dict[str, float | None]:
    (took,) = (each for each in profile.slices if each.samples == samples)
    peaks = [each.peak_bytes for each in profile.memory if each.samples == samples]
    return {
        "forward_s": took.forward_s,
        "backward_s": took.backward_s,
        "forward_host_s": took.forward_host_s,
        "backward_host_s": took.backward_host_s,
        "update_s": profile.update_s,
        "other_s": profile.other_s,
        "data_s": profile.data_s,
        "peak_mb": peaks[0] / 1e6 if peaks else None,
    }


def _errors(known: TrainingProfile, truth: TrainingProfile, samples: int) -> dict[str, Any]:
    """Tell how far a pass and its peak of memory are predicted off, as parts of the truth."""
    (took,) = (each for each in truth.slices if each.samples == samples)
    time_error = pass_times(known).at(samples) / (took.forward_s + took.backward_s) - 1.0
    peak = peak_bytes(known)
    memory_error = None if peak is None else peak.at(samples) / truth.memory[0].peak_bytes - 1.0
    return {"time": time_error, "memory": memory_error}


def _job(
    model: str, batch: int, device: str, folder: Path, *, workers: int = 1, backend: str = "gloo"
) -> RunningJob:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    if backend == "nccl":
        env[ON_ONE_GPU] = "1"
    words = [model, device, str(batch), str(folder / "times")]
    return RunningJob("sliced.py", words, workers, env)


def _times(folder: Path) -> list[float]:
    path = folder / "times"
    return [float(line) for line in path.read_text().splitlines()] if path.exists() else []


def _await_steps(job: RunningJob, folder: Path, steps: int) -> None:
    while len(_times(folder)) < steps:
        job.check()
        time.sleep(0.05)


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--models", nargs="+", choices=sorted(BATCHES), default=sorted(BATCHES))
    parser.add_argument("--batch", type=int, help="default: that of the model")
    parser.add_argument("--steps", type=int, default=60, help="of each training")
    parser.add_argument(
        "--backends",
        nargs="*",
        choices=("gloo", "nccl"),
        help="of two workers that share the GPU (default: both; none on a CPU)",
    )
    options = parser.parse_args(words)
    if options.device == "cpu" and options.backends:
        parser.error("--backends needs a GPU that workers can share")
    if options.backends is None:
        options.backends = [] if options.device == "cpu" else ["nccl", "gloo"]
    return options


def main() -> None:
    """Measure, and print."""
    options = parsed()
    found: dict[str, Any] = {"machine": machine(), "models": {}}
    for model in options.models:
        found["models"][model] = each = measure(model, options)
        if options.json:
            continue
        print(f"{model}, {each['batch']} samples")
        for kind in ("held_out", "from_whole"):
            for what in ("time", "memory"):
                errors = [e[what] for e in each[kind].values() if e[what] is not None]
                if errors:
                    print(f"  {kind} {what}: {_words(errors)}")
        for backend, shared in each["shared"].items():
            print(
                f"  {WORKERS} workers on the GPU, {backend}: {shared['measured_s'] * 1e3:.1f} ms, "
                f"predicted {shared['error']:+.1%}"
            )
    if options.json:
        print(json.dumps(found, indent=2))


def _words(errors: Sequence[float]) -> str:
    off = [abs(each) for each in errors]
    return f"{statistics.fmean(off):.1%} off in the mean, at most {max(off):.1%}"


if __name__ == "__main__":
    main()
