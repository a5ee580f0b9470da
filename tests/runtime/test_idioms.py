"""Training scripts as people write them: plain and ported, alone, resized and killed.

A script in idioms/ is both versions in one file. A line which differs ends in the plain line as a
comment, `# plain: for epoch in range(3):`, or in `# plain:` if the plain script has no such line.
"""

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.elastic import Elastic, environment

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

IDIOMS = Path(__file__).parent / "idioms"
HELPERS = {"forking", "reporting", "toy"}
PORTED_LINE = re.compile(r"^( *).*  # plain:(.*)$")
SEEDS = (0, 1, 2)
SLACK = 0.05  # of the loss: three seeds may lie closer together than another order of summation


@dataclass(frozen=True, slots=True)
class Idiom:
    """How a script is ported and tested; `kills` is the position of the worker that is killed."""

    changes: int = 3  # lines, besides `import coddl`
    kills: int = -1  # the last one; 0: the main worker
    pace_s: float = 0.06  # after each pass, while the job is changed
    before: Mapping[str, str] = field(default_factory=dict)  # environment of an earlier run


CASES = {
    "accumulation": Idiom(changes=4),
    "batchnorm_cnn": Idiom(),
    "best_checkpoint": Idiom(changes=5, kills=0),
    "checkpointing": Idiom(),
    "checkpointing_reentrant": Idiom(kills=0),
    "clipping": Idiom(),
    "compiled": Idiom(pace_s=0.25),
    "cycle": Idiom(kills=0),
    "early_stopping": Idiom(changes=4, kills=0),
    "ema": Idiom(kills=0),
    "epoch_schedule": Idiom(kills=0),
    "evaluation_loader": Idiom(changes=4),
    "gan": Idiom(),
    "grad_scaler": Idiom(kills=0),
    "lbfgs": Idiom(),
    "loader_processes": Idiom(),
    "max_steps": Idiom(changes=4, kills=0),
    "momentum_encoder": Idiom(changes=4),
    "no_dataset": Idiom(changes=4),
    "open_loop": Idiom(changes=5, kills=0),
    "own_loader": Idiom(kills=0),
    "param_group": Idiom(kills=0),
    "plateau_schedule": Idiom(kills=0),
    "progress_bar": Idiom(),
    "resume": Idiom(changes=4, before={"EPOCHS": "2"}),
    "short_last_batch": Idiom(),
    "skipped_batch": Idiom(),
    "skipped_slice": Idiom(kills=0),
    "step_schedule": Idiom(kills=0),
    "stream": Idiom(),
    "sync_batchnorm": Idiom(),
    "token_mean": Idiom(changes=4),
    "training_accuracy": Idiom(changes=4),
    "two_loaders": Idiom(),
    "unfreezing": Idiom(),
}
idioms = pytest.mark.parametrize("name", CASES)


def ported(name: str) -> str:
    return (IDIOMS / f"{name}.py").read_text(encoding="utf-8")


def plain(source: str) -> str:
    """Give the plain version of a ported script."""
    lines = []
    for line in source.splitlines():
        found = PORTED_LINE.match(line)
        if found is None:
            lines.append(line)
        elif text := found[2].strip():
            lines.append(found[1] + text)
    return "\n".join([*lines, ""])


def result_of(printed: str) -> dict[str, Any]:
    """Give what the script reported, which it must have done once."""
    lines = [line for line in printed.splitlines() if line.startswith("result ")]
    assert len(lines) == 1, f"{len(lines)} results:\n{printed}"
    result: dict[str, Any] = json.loads(lines[0].removeprefix("result "))
    return result


class Python:
    """Runs scripts by plain python; each begins in a process that has torch imported already."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, str(IDIOMS / "forking.py")],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        self._server.communicate()  # it ends with its input

    def run(self, folder: Path, name: str, source: str, **env: str) -> str:
        """Run a script; give what it printed."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        folder.mkdir(exist_ok=True)
        script = folder / f"{name}.py"
        script.write_text(source, encoding="utf-8")
        order = {"script": str(script), "cwd": str(folder), "env": env}
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        code = int(self._server.stdout.readline())
        assert code == 0, (folder / "stderr").read_text()
        return (folder / "stdout").read_text()

    def result(self, folder: Path, name: str, source: str, seed: int = 0) -> dict[str, Any]:
        """Run an idiom, and what goes before it, in a folder; give its result."""
        if before := CASES[name].before:
            self.run(folder, name, source, SEED=str(seed), **before)
        return result_of(self.run(folder, name, source, SEED=str(seed)))


@pytest.fixture(scope="module")
def python() -> Iterator[Python]:
    server = Python()
    yield server
    server.close()


def test_every_idiom_is_tested() -> None:
    assert {path.stem for path in IDIOMS.glob("*.py")} - HELPERS == set(CASES)


@idioms
def test_few_lines_are_changed_and_none_of_them_unmarked(name: str) -> None:
    source = ported(name)
    changed = [line for line in source.splitlines() if PORTED_LINE.match(line)]
    assert len(changed) - 1 == CASES[name].changes, "\n".join(changed)
    assert changed[0].startswith("import coddl")
    assert "coddl" not in plain(source)


@idioms
def test_a_script_alone_trains_as_before_it_was_ported(
    tmp_path: Path, name: str, python: Python
) -> None:
    want = python.result(tmp_path / "plain", name, plain(ported(name)))
    got = python.result(tmp_path / "ported", name, ported(name))
    assert got["weights"] == pytest.approx(want["weights"], rel=1e-5, abs=1e-7)
    assert got["counters"] == pytest.approx(want["counters"])
    assert got["near"] == pytest.approx(want["near"], rel=1e-5)


@idioms
def test_a_script_trains_as_well_when_it_is_resized_and_a_worker_is_killed(
    tmp_path: Path, name: str, python: Python
) -> None:
    idiom = CASES[name]
    source = plain(ported(name))
    seeds = [python.result(tmp_path / f"seed-{seed}", name, source, seed) for seed in SEEDS]
    folder, pace = tmp_path / "job", {"PACE_S": str(idiom.pace_s)}
    if idiom.before:
        python.run(folder, name, ported(name), **idiom.before)
    with Elastic(folder, str(IDIOMS / f"{name}.py"), workers=2, env=pace) as job:
        try:
            got = result_of(disturbed(job, idiom.kills))
        except Exception as error:
            error.add_note(job.story())
            raise
    assert got["counters"] == pytest.approx(seeds[0]["counters"]), job.story()
    for what in seeds[0]["near"]:
        assert_among(got["near"][what], [each["near"][what] for each in seeds], what)


@pytest.mark.parametrize("name", ["accumulation", "clipping", "short_last_batch", "token_mean"])
def test_resizes_alone_change_neither_the_order_of_samples_nor_the_weights(
    tmp_path: Path, name: str, python: Python
) -> None:
    want = python.result(tmp_path / "plain", name, plain(ported(name)))
    env = {"PACE_S": str(CASES[name].pace_s)}
    with Elastic(tmp_path / "job", str(IDIOMS / f"{name}.py"), workers=2, env=env) as job:
        for step, workers in ((3, 3), (12, 1)):
            job.wait_step(step)
            job.ask("resize", workers=workers)
        got = result_of(job.finish())
    assert got["counters"] == pytest.approx(want["counters"])
    assert got["weights"] == pytest.approx(want["weights"], rel=1e-5, abs=1e-5)


def disturbed(job: Elastic, kills: int) -> str:
    """Resize a job from 2 to 3 workers, kill one, and shrink it to 1; give what it printed."""
    job.wait_step(3)
    job.ask("resize", workers=3)
    job.wait_step(36)
    since = len(job.events)
    job.kill(sorted(job.pids())[kills])
    job.wait_kind("regrouped", since)
    job.settle(3)
    job.ask("resize", workers=1)
    return job.finish()


def assert_among(value: float, seeds: list[float], what: str) -> None:
    """Fail if a value lies further from those of the seeds than they lie apart."""
    low, high = min(seeds), max(seeds)
    slack = max(high - low, SLACK * abs(high))
    assert math.isfinite(value), what
    assert low - slack <= value <= high + slack, f"{what}: {value}, the seeds gave {seeds}"
