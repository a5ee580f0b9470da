"""Whether this machine can run agents and jobs."""

import contextlib
import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coddl.core.errors import UserError
from coddl.engines.doctor.results import CheckResult, failure_of, fine

PYTHON_LEAST: Final = (3, 11)
TORCH_LEAST: Final = (2, 11)
TORCH_S: Final = 120.0  # a first import from a cold network disk
SHM: Final = Path("/dev/shm")
SHM_LEAST_BYTES: Final = 1 << 30  # images of a job's state are handed over there
FREE_LEAST_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """A folder that a pool keeps things in, or its parent if it does not exist yet."""

    path: str
    trouble: str = ""  # why it can't be used
    free_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What was found on this machine."""

    system: str
    python: tuple[int, int, int]
    torch: str  # version; empty: it can't be imported
    torch_trouble: str
    gpus: tuple[str, ...]  # kinds, one per GPU
    gpu_trouble: UserError | None
    gpu_notes: tuple[str, ...]  # GPUs that can't be used
    cores: int
    shm_bytes: int
    state_dir: FolderFacts
    jobs_dir: FolderFacts


def gather_machine(state_dir: Path, jobs_dir: Path) -> MachineFacts:
    """Look at this machine; changes nothing."""
    from coddl.agent.devices import discover, gpus_here

    cores = os.cpu_count() or 1
    gpus: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    trouble = None
    try:
        driver = gpus_here()
        found = discover(driver, None, cores)
        gpus = tuple(device.kind for device in found.devices if device.gpu is not None)
        notes = found.problems
    except UserError as error:
        trouble = error
    torch, torch_trouble = _torch_here()
    return MachineFacts(
        system=platform.system(),
        python=sys.version_info[:3],
        torch=torch,
        torch_trouble=torch_trouble,
        gpus=gpus,
        gpu_trouble=trouble,
        gpu_notes=notes,
        cores=cores,
        shm_bytes=_free_bytes(SHM),
        state_dir=look_at_folder(state_dir),
        jobs_dir=look_at_folder(jobs_dir),
    )


def _torch_here() -> tuple[str, str]:
    """Import torch in a process of its own, which may well die of it."""
    words = [sys.executable, "-P", "-c", "import torch; print(torch.__version__)"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TORCH_S, check=False)
    except subprocess.TimeoutExpired:
        return "", f"import torch took longer than {TORCH_S:.0f} s"
    if done.returncode == 0:
        return done.stdout.strip(), ""
    said = done.stderr.strip().splitlines()
    return "", said[-1] if said else f"import torch ended with code {done.returncode}"


def _free_bytes(path: Path) -> int:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return 0


def existing_part(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def look_at_folder(folder: Path) -> FolderFacts:
    """Try a folder with a file that is removed again."""
    place = existing_part(folder)
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".coddl-doctor-") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fsync(file.fileno())
    except OSError as error:
        return FolderFacts(str(folder), f"{place}: {error.strerror}")
    return FolderFacts(str(folder), free_bytes=_free_bytes(place))


def machine_results(facts: MachineFacts) -> Iterator[CheckResult]:
    """Judge this machine."""
    yield _system(facts)
    yield _python(facts)
    yield _torch(facts)
    yield _devices(facts)
    yield _shared_memory(facts)
    yield _folder("state folder", "--state-dir", facts.state_dir)
    yield _folder("jobs folder", "--jobs-dir", facts.jobs_dir)


def _system(facts: MachineFacts) -> CheckResult:
    if facts.system == "Linux":
        return fine("system", facts.system)
    because = "agents need Linux"
    return CheckResult("system", "FAIL", facts.system, because, "a Linux machine; WSL is one")


def _python(facts: MachineFacts) -> CheckResult:
    version = ".".join(map(str, facts.python))
    if facts.python[:2] >= PYTHON_LEAST:
        return fine("python", version)
    least = ".".join(map(str, PYTHON_LEAST))
    return CheckResult(
        "python", "FAIL", version, f"CoDDL needs {least} or newer", f"Python {least}"
    )


def _torch(facts: MachineFacts) -> CheckResult:
    least = ".".join(map(str, TORCH_LEAST))
    try_ = "pip install 'coddl[runtime]', or submit jobs with --python"
    if not facts.torch:
        what = "torch can't be imported; elastic jobs need it"
        return CheckResult("torch", "WARN", what, facts.torch_trouble, try_)
    if numbers(facts.torch) < TORCH_LEAST:
        return CheckResult(
            "torch", "WARN", facts.torch, f"elastic jobs need {least} or newer", try_
        )
    return fine("torch", facts.torch)


def numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    found: list[int] = []
    for word in version.split(".")[:2]:
        with contextlib.suppress(ValueError):
            found.append(int(word))
    return tuple(found)


def _devices(facts: MachineFacts) -> CheckResult:
    if facts.gpu_trouble is not None:
        return failure_of("GPUs", facts.gpu_trouble)
    if not facts.gpus:
        return fine("GPUs", f"no GPUs; {facts.cores} CPU cores can be slots")
    kinds = {kind: facts.gpus.count(kind) for kind in facts.gpus}
    what = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    if facts.gpu_notes:
        because = "; ".join(facts.gpu_notes)
        return CheckResult("GPUs", "WARN", what, because, "nvidia-smi, which shows what is wrong")
    return fine("GPUs", what)


def _shared_memory(facts: MachineFacts) -> CheckResult:
    what = f"{in_gigabytes(facts.shm_bytes)} free in {SHM}"
    if facts.shm_bytes >= SHM_LEAST_BYTES:
        return fine("shared memory", what)
    because = "the state of a job is handed over there when its workers change"
    try_ = "a larger one: docker run --shm-size 16g, or mount -o remount,size=16g /dev/shm"
    return CheckResult("shared memory", "WARN", what, because, try_)


def _folder(check: str, option: str, facts: FolderFacts) -> CheckResult:
    if facts.trouble:
        try_ = f"another {option}; network file systems must be mounted with locks"
        what = f"{facts.path} can't be written to and locked"
        return CheckResult(check, "FAIL", what, facts.trouble, try_)
    what = f"{facts.path}, {in_gigabytes(facts.free_bytes)} free"
    if facts.free_bytes < FREE_LEAST_BYTES:
        because = "journal, logs and checkpoints need room"
        return CheckResult(check, "WARN", what, because, f"another {option}, or free some")
    return fine(check, what)


def in_gigabytes(count: int) -> str:
    """Write a number of bytes."""
    return f"{count / (1 << 30):.1f} GiB"
