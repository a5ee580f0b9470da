"""How well passes of other sizes are predicted from the passes of one GPU that were measured.

    python -m benchmarks.slices --json                 on a GPU
    python -m benchmarks.slices --device cpu --models mlp

One training has batches of all sizes, in blocks, and measures its profile as any job does. The
profile then keeps the whole batch and a quarter of it, as a job has after a resize to four workers,
and predicts the times of all other sizes: `held_out`, the median of a few such trainings.
`from_whole` predicts them from the whole batch alone, as before any resize.

Every size is also a training by itself. `other_process` predicts one from the profiles of others: a
process may launch its passes more slowly than another one. Peaks of memory are those of these
trainings in all cases, because a worker measures one size for each size of its group.

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
from collections.abc import Container, Iterable, Iterator, Sequence
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


def profile_of(model: str, sizes: Sequence[int], device: str, steps: int) -> TrainingProfile:
    """Train with batches of these sizes on one worker, the largest first; give its profile."""
    with scratch() as folder, _job(model, sizes, device, folder) as job:
        _await_steps(job, folder, steps)
        while True:
            if told := job.events("profile"):
                profile = TrainingProfile.from_data(told[-1]["profile"])
                if {each.samples for each in profile.slices} >= {*sizes}:
                    return profile
            job.check()
            time.sleep(0.05)


def step_s(model: str, batch: int, device: str, backend: str, steps: int) -> float:
    """Train on workers that share the device; give the seconds of a step."""
    with scratch() as folder:
        with _job(model, [batch], device, folder, workers=WORKERS, backend=backend) as job:
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
        profiles[size] = profile_of(model, [size], options.device, options.steps)
        _tell(f"{model}, {size} samples: {_costs(profiles[size], size)}")
    apart = together(profiles.values())
    runs = list[TrainingProfile]()
    for number in range(options.runs):
        profile = profile_of(model, [*profiles], options.device, options.steps)
        # Its worker has measured one peak, among batches of several sizes.
        runs.append(replace(profile, memory=apart.memory, update_memory=apart.update_memory))
        _tell(f"{model}, all sizes, {number + 1}: {_all_costs(runs[-1])}")
    quarter = max(1, round(batch * KEPT[0] / KEPT[1]))
    found: dict[str, Any] = {
        "batch": batch,
        "sizes": _all_costs(apart),
        "runs": [_all_costs(each) for each in runs],
        "held_out": _errors(runs, {batch, quarter}),
        "from_whole": _errors(runs, {batch}),
        "other_process": _errors([apart], {batch, quarter}),
        "shared": {},
    }
    known = with_sizes(apart, {batch, quarter})
    for backend in options.backends:
        took_s = step_s(model, batch, options.device, backend, options.steps)
        arrangement = Arrangement((WORKERS,), on_a_gpu=WORKERS)
        line = replayed(known, arrangement, {"gpu": gpu_link(backend)})
        found["shared"][backend] = {
            "measured_s": took_s,
            "predicted_s": line.step_s,
            "error": line.step_s / took_s - 1.0,
            "exposed_s": line.exposed_s,
        }
        _tell(f"{model}, {WORKERS} workers, {backend}: {found['shared'][backend]}")
    return found


def together(profiles: Iterable[TrainingProfile]) -> TrainingProfile:
    """Put the sizes of several trainings into the profile of the first one."""
    first, *others = profiles
    for other in others:
        first = replace(
            first,
            slices=first.slices + other.slices,
            memory=first.memory + other.memory,
            update_memory=first.update_memory + other.update_memory,
        )
    return first


def with_sizes(profile: TrainingProfile, kept: Container[int]) -> TrainingProfile:
    """Leave out what a profile knows of other sizes."""
    return replace(
        profile,
        slices=tuple(each for each in profile.slices if each.samples in kept),
        memory=tuple(each for each in profile.memory if each.samples in kept),
        update_memory=tuple(each for each in profile.update_memory if each.samples in kept),
    )


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


def _all_costs(profile: TrainingProfile) -> dict[int, dict[str, float | None]]:
    return {each.samples: _costs(profile, each.samples) for each in profile.slices}


def _costs(profile: TrainingProfile, samples: int) -> dict[str, float | None]:
    (took,) = (each for each in profile.slices if each.samples == samples)
    own = with_sizes(profile, {samples})
    return {
        "forward_s": took.forward_s,
        "backward_s": took.backward_s,
        "forward_host_s": took.forward_host_s,
        "backward_host_s": took.backward_host_s,
        "update_s": profile.update_s,
        "other_s": profile.other_s,
        "data_s": profile.data_s,
        "peak_mb": own.memory[0].peak_bytes / 1e6 if own.memory else None,
        "update_peak_mb": own.update_memory[0].peak_bytes / 1e6 if own.update_memory else None,
    }


def _errors(profiles: Sequence[TrainingProfile], kept: set[int]) -> dict[int, dict[str, Any]]:
    """Predict the sizes that are not kept; tell how far off, as parts of the truth."""
    found = {}
    for samples in (each.samples for each in profiles[0].slices if each.samples not in kept):
        times = [_time_error(each, with_sizes(each, kept), samples) for each in profiles]
        found[samples] = {
            "time": statistics.median(times),
            "times": times,
            "memory": _memory_error(profiles[0], with_sizes(profiles[0], kept), samples),
        }
    return found


def _time_error(truth: TrainingProfile, known: TrainingProfile, samples: int) -> float:
    (took,) = (each for each in truth.slices if each.samples == samples)
    return pass_times(known).at(samples) / (took.forward_s + took.backward_s) - 1.0


def _memory_error(truth: TrainingProfile, known: TrainingProfile, samples: int) -> float | None:
    own = with_sizes(truth, {samples})
    predicted = peak_bytes(known)
    if predicted is None or not own.memory:
        return None
    return predicted.at(samples) / max(e.peak_bytes for e in own.memory + own.update_memory) - 1.0


def _job(
    model: str,
    sizes: Sequence[int],
    device: str,
    folder: Path,
    *,
    workers: int = 1,
    backend: str = "gloo",
) -> RunningJob:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    if backend == "nccl":
        env[ON_ONE_GPU] = "1"
    words = [model, device, ",".join(map(str, sizes)), str(folder / "times")]
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
    parser.add_argument("--runs", type=int, default=3, help="trainings that have all sizes")
    parser.add_argument(
        "--backends",
        nargs="*",
        choices=("gloo", "nccl"),
        help="of two workers that share the GPU (default: both; none on a CPU)",
    )
    options = parser.parse_args(words)
    if options.device == "cpu" and options.backends:
        parser.error("--backends needs a GPU that workers can share")
    if options.runs < 1:
        parser.error("--runs must be at least 1")
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
        for kind in ("held_out", "from_whole", "other_process"):
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
