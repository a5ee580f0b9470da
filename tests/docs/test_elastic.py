"""What the pages on elastic training say is run."""

import inspect
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("torch")

import coddl
from coddl.runtime.worker.prepare import prepare
from coddl.runtime.worker.strict.prepare import DEFAULTS, Batches
from tests.runtime.harness import wait_until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "elastic.md").read_text(encoding="utf-8")
PORTING = (ROOT / "docs" / "port-a-script.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(python|console|diff)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PATIENCE_S = 90.0


def write_scripts(page: str, folder: Path) -> None:
    """Write the scripts of a page; a diff is two: plain.py and train.py."""
    for kind, text in BLOCK.findall(page):
        if kind == "python":
            (folder / text.splitlines()[0].removeprefix("# file: ")).write_text(text)
        elif kind == "diff":
            for name, other in (("plain.py", "+"), ("train.py", "-")):
                lines = [line[1:] for line in text.splitlines() if not line.startswith(other)]
                (folder / name).write_text("\n".join(lines))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a place to work in, with the examples and sockets of its own."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    with tempfile.TemporaryDirectory(prefix="coddl-") as short:  # sockets allow no long paths
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        yield tmp_path


@pytest.mark.slow
def test_every_command_of_the_page_runs(folder: Path) -> None:
    write_scripts(PAGE, folder)
    ran = 0
    for kind, text in BLOCK.findall(PAGE):
        if kind != "console":
            continue
        lines = [line.removeprefix("$ ") for line in text.splitlines()]
        if lines[0].endswith(" &"):
            with started(lines.pop(0).removesuffix(" &"), folder):
                assert [run(line, folder) for line in lines][-1].startswith("demo: resumed with 3")
        else:
            for line in lines:
                run(line, folder)
        ran += len(lines)
    assert ran > 0
    assert (folder / "model.pt").exists()
    assert '"exchange"' in (folder / "trace.json").read_text()


@pytest.mark.slow
def test_every_command_of_the_page_on_porting_runs(folder: Path) -> None:
    write_scripts(PORTING, folder)
    consoles = [text for kind, text in BLOCK.findall(PORTING) if kind == "console"]
    for line in "".join(consoles).splitlines():
        run(line.removeprefix("$ "), folder)
    assert (folder / "model.pt").exists()


@pytest.mark.slow
def test_the_script_before_the_change_runs_too(folder: Path) -> None:
    write_scripts(PAGE, folder)
    run("python -W error plain.py", folder)


@pytest.mark.slow
def test_the_script_for_torchrun_runs_too(folder: Path) -> None:
    write_scripts(PORTING, folder)
    command = "python -m torch.distributed.run --standalone --nproc-per-node=2 plain.py"
    for is_last in (False, False, True):  # torch itself aborts now and then as gloo is torn down
        try:
            run(command, folder)
            break
        except AssertionError as error:
            if is_last or "terminate called without an active exception" not in f"{error}":
                raise
    assert (folder / "model.pt").exists()


def test_three_lines_make_a_script_elastic() -> None:
    text = next(text for kind, text in BLOCK.findall(PAGE) if kind == "diff")
    assert len([line for line in text.splitlines() if line.startswith("+")]) == 3


def run(line: str, folder: Path) -> str:
    done = subprocess.run(
        words(line), cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def words(line: str) -> list[str]:
    program, *rest = line.split()
    return [sys.executable, *(["-m", "coddl.cli.main"] if program == "coddl" else []), *rest]


@contextmanager
def started(line: str, folder: Path) -> Iterator[None]:
    """Run a job beside what is done meanwhile, once it trains; then stop it."""
    log = folder / "log"
    with (
        log.open("w") as file,
        subprocess.Popen(words(line), cwd=folder, stdout=file, stderr=subprocess.STDOUT) as job,
    ):
        try:
            wait_until(lambda: "coddl: started" in log.read_text(), "the job's start")
            yield
        finally:
            job.terminate()
            job.wait(PATIENCE_S)


def test_every_option_of_run_is_documented() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "coddl.cli.main", "run", "--help"],
        capture_output=True, text=True, check=True, env={"COLUMNS": "200", "TERM": "dumb"},
    ).stdout  # fmt: skip
    # `--epochs` is an option of the script in an example there.
    for option in set(re.findall(r"--[a-z][a-z-]+", shown)) - {"--help", "--output", "--epochs"}:
        assert f"`{option}" in PAGE, option


def test_every_name_a_script_uses_is_documented() -> None:
    arguments = [
        p.name for p in inspect.signature(prepare).parameters.values() if p.kind == p.KEYWORD_ONLY
    ]
    assert [name for name in (*arguments, *DEFAULTS) if f"`{name}`" not in PAGE] == []
    looks = [f"batches.{name}" for name in vars(Batches) if not name.startswith("_")]
    elsewhere = ("__version__", "simulate", "Client")  # no part of a training script
    calls = [f"coddl.{name}(" for name in coddl.__all__ if name not in elsewhere]
    assert [name for name in (*looks, *calls) if f"| `{name}" not in PAGE] == []
