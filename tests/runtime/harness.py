"""A supervisor in a thread, with stub workers, and a torch that takes no time to import."""

import contextlib
import json
import os
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor.control_socket import asked
from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.jobdir import MEMORY
from coddl.runtime.supervisor.supervisor import Supervisor
from coddl.runtime.wire import Message

ROOT = Path(__file__).parents[2]
STUB = Path(__file__).with_name("stub_worker.py")
DEADLINE_S = 150.0  # machines are shared and slow

# As much of torch as the fork server asks for.
FAKE_TORCH = {
    "__init__.py": "from torch import cuda, version\n__version__ = 'fake'\n",
    "cuda.py": "import os\ndef _device_count_nvml():\n    return int(os.environ['GPUS'])\n",
    "version.py": "import os\ncuda = '13.0' if 'GPUS' in os.environ else None\n",
    "_dynamo.py": "",
    "distributed.py": "",
    "utils/__init__.py": "",
    "utils/data.py": "",
    "_C/__init__.py": "",
    "_C/_distributed_c10d.py": (
        "class TCPStore:\n    def __init__(self, host, port, **_more):\n        self.port = port\n"
    ),
}


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that must happen."""
    until_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until_s, f"never happened: {what}"
        time.sleep(0.005)


def lives(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid: int) -> list[int]:
    """Name the processes that a process has started."""
    with contextlib.suppress(FileNotFoundError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


@contextlib.contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """Have nothing saved in a folder for a while."""
    away = folder.rename(folder.with_name("away"))
    folder.write_text("not a folder")
    try:
        yield
    finally:
        folder.unlink()
        away.rename(folder)


def write_fake_torch(folder: Path) -> Path:
    for name, text in FAKE_TORCH.items():
        path = folder / "torch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


class Running:
    """A job that runs in a thread of the test."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.events: list[Message] = []
        self._news: queue.Queue[Message] = queue.Queue()
        self._supervisor = Supervisor(job, self._tell)
        self._outcome: list[int | BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome.append(self._supervisor.run())
        except BaseException as error:
            self._outcome.append(error)

    def _tell(self, event: Message) -> None:
        self.events.append(event)
        self._news.put(event)

    def wait_for(self, kind: str, **fields: Any) -> Message:
        """Wait for an event, after the one that was waited for last."""
        until_s = time.monotonic() + DEADLINE_S
        while True:
            try:
                event = self._news.get(timeout=max(0.0, until_s - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {kind} {fields} among {self.kinds()}") from None
            if event["is"] == kind and all(event[name] == fields[name] for name in fields):
                return event

    def wait_for_step(self, step: int) -> None:
        wait_until(lambda: self._step() >= step, f"step {step}")

    def _step(self) -> int:
        try:
            return int(self.ask("status")["step"])
        except TrainingError:
            return 0  # it has no name yet

    def kinds(self) -> list[str]:
        return [event["is"] for event in self.events if event["is"] not in ("progress", "log")]

    def told(self, kind: str) -> list[Message]:
        return [event for event in self.events if event["is"] == kind]

    def ask(self, do: str, **fields: Any) -> Message:
        """Ask at the control socket, as the command line does."""
        return asked(self.job.name, {"do": do, **fields})

    def pids(self) -> list[int]:
        return [worker["pid"] for worker in self.ask("status")["workers"]]

    def interrupt(self) -> None:
        self._supervisor.interrupt()

    def end(self) -> int:
        """Wait for the end; give the exit code, or raise what the supervisor raised."""
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), f"it goes on for ever: {self.kinds()[-5:]}"
        outcome = self._outcome[0]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def stop(self) -> None:
        """Let nothing of it outlive the test."""
        self.interrupt()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


Start = Callable[..., Running]


@pytest.fixture(scope="session")
def fake_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake_torch(tmp_path_factory.mktemp("fake"))


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for control sockets; its path must be short."""
    folder = Path(tempfile.mkdtemp(prefix="cdl"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder / "coddl"
    assert not list((folder / "coddl").glob("*")), "a job has left its socket"
    shutil.rmtree(folder)


@pytest.fixture
def start(tmp_path: Path, fake_torch: Path, sockets: Path) -> Iterator[Start]:  # noqa: ARG001
    """Start jobs of stub workers; none of them, and nothing of them, is left at the end."""
    started: list[Running] = []
    before = children_of_mine()  # one that tests share is warm
    name = f"job{os.getpid()}"

    def begin(options: dict[str, Any] | None = None, **fields: Any) -> Running:
        job = Job(
            name=name,
            script=STUB,
            argv=("stub.py" if "script" in fields else str(STUB), json.dumps(options or {})),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{fake_torch}:{ROOT}"},
            folder=tmp_path / "checkpoints",
            workers=1,
        )
        started.append(Running(replace(job, **fields)))
        return started[-1]

    yield begin
    for running in started:
        running.stop()
    assert set(children_of_mine()) <= set(before), "a fork server is left"
    assert not list(MEMORY.glob(f"coddl-*/{name}-*")), "images are left in memory"


def children_of_mine() -> list[int]:
    """Name the fork servers among what this process has started."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += [int(pid) for pid in (task / "children").read_text().split()]
    return [pid for pid in found if b"coddl.runtime.supervisor.fork_server" in cmdline(pid)]


def cmdline(pid: int) -> bytes:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
