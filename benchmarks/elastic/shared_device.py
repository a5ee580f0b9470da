"""A pool on this machine with one GPU, or one CPU slot, and jobs on it that note their steps."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from benchmarks.elastic.noted_job import awaited
from coddl.api.client import Client, RequestRefused, find
from coddl.api.code import pack

SCRIPT = Path(__file__).with_name("state_job.py")
LOOK_S = 0.002


class NotedStep(NamedTuple):
    """A step as the job itself has noted it."""

    end_s: float
    begin_s: float
    gpu_bytes: int  # that its process had then
    pid: int


class SharedDevice:
    """The pool's client, and what is known of its jobs."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client = client
        self._folder = folder
        self._code = ""

    def submit(self, name: str, state_mb: int, **options: float) -> int:
        """Hand in a training on one device; give its number."""
        if not self._code:
            project = self._folder / "project"
            project.mkdir()
            (project / "train.py").write_text(SCRIPT.read_text())
            archive = pack(project, project.with_suffix(".tar.gz"))
            with archive.path.open("rb") as file:
                self.client.send_code(archive.hash, file)
            self._code = archive.hash
        words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
        args = [f"--noted={self.noted(name)}", f"--state-mb={state_mb}", *words]
        request = {"script": "train.py", "args": args, "code": self._code, "name": name}
        return int(self.client.submit({**request, "gpus": {"min": 1, "max": 1}})["id"])

    def decide_by(self, policy: str) -> None:
        """Have the pool decide by another policy."""
        self.client.put("/policy", {"policy": policy})

    def noted(self, name: str) -> Path:
        return self._folder / f"{name}.steps"

    def steps(self, name: str) -> list[float]:
        """Give when a job has ended each of its steps."""
        return [step.end_s for step in self.noted_steps(name)]

    def noted_steps(self, name: str) -> list[NotedStep]:
        """Give what a job has noted of its steps."""
        path = self.noted(name)
        text = path.read_text() if path.exists() else ""
        lines = [line.split() for line in text.splitlines(True) if line.endswith("\n")]
        return [NotedStep(float(a), float(b), int(c), int(d)) for a, b, c, d in lines]

    def await_steps(self, name: str, more: int) -> None:
        """Wait until a job has made some more steps."""
        before = len(self.steps(name))
        awaited(lambda: len(self.steps(name)) >= before + more)

    @property
    def node(self) -> dict[str, Any]:
        """Give the pool's only node."""
        node: dict[str, Any] = self.client.get("/nodes")["items"][0]
        return node

    def state(self, job: int) -> str:
        return str(self.client.get(f"/jobs/{job}")["state"])

    def end(self, *jobs: int) -> None:
        """Cancel jobs, and wait until they are gone."""
        for job in jobs:
            with contextlib.suppress(RequestRefused):  # it has ended meanwhile
                self.client.post(f"/jobs/{job}:cancel")
        awaited(lambda: all(self.state(job) in ("CANCELLED", "SUCCEEDED") for job in jobs))


@contextlib.contextmanager
def shared_device(
    folder: Path, policy: str = "fifo", *, cpu: bool, env: Mapping[str, str] = MappingProxyType({})
) -> Iterator[SharedDevice]:
    """Run a pool with one device, whose processes find these variables as well."""
    state = folder / "state"
    words = ["up", "--host", "127.0.0.1", "--port", "0", "--policy", policy, "--cool-down", "0"]
    _coddl(state, *words, *(("--slots", "1") if cpu else ()), env=env)
    try:
        with Client(find("", str(state), env={})) as client:
            yield SharedDevice(client, folder)
    finally:
        _coddl(state, "down", "--cancel-jobs")


def _coddl(state: Path, *words: str, env: Mapping[str, str] = MappingProxyType({})) -> None:
    program = [sys.executable, "-P", "-m", "coddl", *words, "--state-dir", str(state)]
    done = subprocess.run(program, env={**os.environ, **env}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"coddl {' '.join(words)}: {done.stderr or done.stdout}")


class GpuMemory:
    """Looks at how much of a GPU's memory is used, all the time. Use as a context."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []  # when, bytes
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "GpuMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _look(self) -> None:
        nvml = _nvml()
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        while not self._ends.wait(LOOK_S):
            self.seen.append((time.monotonic(), nvml.nvmlDeviceGetMemoryInfo(device).used))

    def freed_after(self, since_s: float, floor_bytes: int) -> float:
        """Give the seconds from a moment until no more than that was used."""
        return next(at_s for at_s, used in self.seen if at_s >= since_s and used <= floor_bytes) - (
            since_s
        )


def used_bytes() -> int:
    """Tell how much of the GPU's memory is used."""
    nvml = _nvml()
    return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(0)).used)


def gpu_bytes() -> int:
    """Tell how much memory the GPU has."""
    nvml = _nvml()
    return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(0)).total)


def gpu_processes() -> int:
    """Count the processes that have a CUDA context on the GPU."""
    nvml = _nvml()
    return len(nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByIndex(0)))


def _nvml() -> Any:  # Any: it has no types
    import pynvml  # type: ignore[import-untyped,unused-ignore]

    pynvml.nvmlInit()
    return pynvml
