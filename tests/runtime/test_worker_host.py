"""A worker host by itself: what it says, and that nobody is called gone who still lives."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coddl.runtime.supervisor.checkpoint_store import CheckpointStore
from coddl.runtime.supervisor.checkpoint_writer import CheckpointWriter
from coddl.runtime.supervisor.fork_server_client import Interpreter
from coddl.runtime.supervisor.loop import LogPipe, Loop
from coddl.runtime.supervisor.worker_history import WorkerHistory
from coddl.runtime.supervisor.worker_host import (
    FORK_SERVERS_MAX,
    LocalWorkerHost,
    ProcessHandle,
    WorkerHostConfig,
)
from coddl.runtime.wire import Message
from tests.runtime.harness import (
    ROOT,
    children,
    fake_torch,
    lives,
    wait_until,
    write_fake_torch,
)
from tests.runtime.stub_worker import write_image

__all__ = ["fake_torch"]  # fixtures

SLEEP = "import time\ntime.sleep(600)\n"


class Post:
    """A worker host that a test drives by hand."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.words: list[Message] = []
        self.lives_at_exit: list[bool] = []
        self.pids: dict[int, int] = {}
        self.printed: list[tuple[int, str]] = []
        self.loop = Loop()
        self.writer = CheckpointWriter(self.loop, lambda: CheckpointStore(folder / "checkpoints"))
        stash = folder / "stash"
        stash.mkdir()
        site = WorkerHostConfig(Interpreter(sys.executable, folder, env), stash, cpus={3: (0,)})
        self.worker_host = LocalWorkerHost(self.loop, site, self.writer, self._hear, self._log)
        self.worker_host.open()

    def _hear(self, word: Message) -> None:
        if word["is"] == "forked":
            self.pids[word["worker"]] = word["pid"]
        elif word["is"] == "exited" and word["worker"] in self.pids:
            self.lives_at_exit.append(lives(self.pids[word["worker"]]))
        self.words.append(word)

    def _log(self, history: WorkerHistory, _stream: str, text: str) -> None:
        self.printed.append((history.worker, text))

    def start(self, worker: int, slot: int = 0) -> None:
        about = {"worker": worker, "slot": slot, "gpu": None, "env": {"A": "1"}}
        self.worker_host.do({"do": "start", "argv": ["script.py"], **about})

    def wait(self, kind: str, **fields: Any) -> Message:
        found: list[Message] = []

        def said() -> bool:
            wanted = {"is": kind, **fields}.items()
            found.extend(word for word in self.words if wanted <= word.items())
            if not found:
                self.loop.alarm("again", 0.0, lambda: None)
                self.loop.turn()
            return bool(found)

        wait_until(said, f"{kind} {fields}")
        return found[0]

    def fork_server(self) -> int:
        (fork_server,) = [pid for pid in children(os.getpid()) if lives(pid)]
        return fork_server

    def close(self) -> None:
        self.worker_host.close()
        self.writer.close(wait=True)
        self.loop.close()


@pytest.fixture
def address(tmp_path: Path, fake_torch: Path) -> Iterator[Post]:
    (tmp_path / "script.py").write_text(SLEEP)
    env = {"PYTHONPATH": f"{fake_torch}:{ROOT}"}
    with contextlib.closing(Post(tmp_path, env)) as address:
        yield address
    wait_until(lambda: not any(map(lives, address.pids.values())), "the end of all")


def test_workers_of_a_dead_fork_server_are_gone_only_when_they_are(address: Post) -> None:
    for worker in range(3):
        address.start(worker)
        address.wait("forked", worker=worker)
    os.kill(address.fork_server(), signal.SIGKILL)
    for worker in range(3):
        assert address.wait("exited", worker=worker)["code"] == -signal.SIGKILL
    assert address.lives_at_exit == [False] * 3
    assert address.worker_host.histories == []
    address.start(3)
    address.wait("forked", worker=3)


def test_what_a_worker_has_started_goes_with_a_dead_fork_server(
    address: Post, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(f"import os\nos.fork()\n{SLEEP}")
    address.start(0)
    pid = address.wait("forked")["pid"]
    wait_until(lambda: bool(children(pid)), "its child")
    (child,) = children(pid)
    os.kill(address.fork_server(), signal.SIGKILL)
    address.wait("exited", worker=0)
    wait_until(lambda: not lives(child), "its end")


def test_a_start_that_a_dying_fork_server_never_saw_is_told_as_lost(address: Post) -> None:
    address.wait("warm")
    fork_server = address.fork_server()
    os.kill(fork_server, signal.SIGSTOP)
    address.start(0)
    os.kill(fork_server, signal.SIGKILL)
    assert address.wait("exited", worker=0)["code"] == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_who_waits_for_a_cold_interpreter_can_be_ended_at_once(
    tmp_path: Path, number: signal.Signals
) -> None:
    warm = tmp_path / "warm"
    torch = write_fake_torch(tmp_path / "cold") / "torch" / "__init__.py"
    wait = f"import os, time\nwhile not os.path.exists({str(warm)!r}): time.sleep(0.01)\n"
    torch.write_text(wait + torch.read_text())
    (tmp_path / "script.py").write_text("import os\nprint(os.environ['CODDL_STASH'])\n")
    with contextlib.closing(
        Post(tmp_path, {"PYTHONPATH": f"{tmp_path / 'cold'}:{ROOT}"})
    ) as address:
        try:
            for worker in range(2):
                address.start(worker)
            address.worker_host.kill(0, number)
            assert address.wait("exited", worker=0)["code"] == -number
            assert [history.worker for history in address.worker_host.histories] == [1]
        finally:
            warm.touch()
        assert address.wait("exited", worker=1)["code"] == 0
        assert 0 not in address.pids


def test_a_store_that_dies_with_its_fork_server_is_told_once_another_can_be_had(
    address: Post,
) -> None:
    address.worker_host.do({"do": "rendezvous", "port": 0, "store": "1.1"})
    assert address.wait("rendezvous", store="1.1")["host"] == "127.0.0.1"
    address.words.clear()
    os.kill(address.fork_server(), signal.SIGKILL)
    address.wait("storeless", store="1.1")
    address.worker_host.do({"do": "rendezvous", "port": 0, "store": "1.2"})
    address.wait("rendezvous", store="1.2")


def test_a_fork_server_that_is_always_killed_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    with contextlib.closing(Post(tmp_path, env)) as address:
        address.start(0)
        lost = address.wait("lost")
        assert "can't run workers" in lost["what"]
        assert lost["code"] == -signal.SIGKILL
        address.wait("exited", worker=0)
        address.start(1)
        address.wait("exited", worker=1)
        assert address.worker_host._killed_fork_servers == FORK_SERVERS_MAX


class Unwatching(Loop):
    """A loop that may be given any descriptor."""

    def watch(self, *_: object, **__: object) -> None: ...
    def forget(self, *_: object) -> None: ...


def test_the_last_lines_are_read_though_somebody_else_writes_for_ever() -> None:
    lines: list[str] = []
    with contextlib.closing(Unwatching()) as loop:
        LogPipe(loop, os.open("/dev/zero", os.O_RDONLY), lines.append).finish()
    assert lines


def test_a_worker_finds_what_only_its_host_knows(address: Post, tmp_path: Path) -> None:
    names = ("A", "CODDL_STASH", "CODDL_HOST", "CODDL_CPUS")
    (tmp_path / "script.py").write_text(f"import os\nprint([os.environ[n] for n in {names}])\n")
    address.start(0, slot=3)
    assert address.wait("exited", worker=0)["code"] == 0
    assert address.printed == [(0, f"{['1', str(tmp_path / 'stash'), '127.0.0.1', '1']}")]


def test_arguments_that_are_too_long_fail_one_worker(address: Post) -> None:
    about = {"worker": 0, "slot": 0, "gpu": None, "env": {"BIG": "x" * 10**6}}
    address.worker_host.do({"do": "start", "argv": ["script.py"], **about})
    assert "too long" in address.wait("exited", worker=0)["because"]
    address.start(1)
    address.wait("forked", worker=1)


def test_an_image_is_saved_where_it_lies(address: Post, tmp_path: Path) -> None:
    image = tmp_path / "stash" / "slot-0.img"
    write_image(image, 42)
    address.worker_host.do({"do": "save", "path": str(image)})
    saved = address.wait("saved")
    assert saved["step"] == 42
    assert Path(saved["path"]).parent == tmp_path / "checkpoints"
    address.words.clear()
    address.worker_host.do({"do": "save", "path": str(tmp_path / "gone.img")})
    assert address.wait("saved")["step"] is None
    for path in (tmp_path / "checkpoints").iterdir():
        path.unlink()
    (tmp_path / "checkpoints").rmdir()
    (tmp_path / "checkpoints").write_text("no folder")
    address.worker_host.do({"do": "save", "path": str(image)})
    assert "checkpoints" in address.wait("unsaved")["what"]


def test_a_number_given_to_another_process_is_not_the_same() -> None:
    mine = ProcessHandle.of(os.getpid())
    assert mine.lives
    assert mine.start_ticks is not None
    assert not ProcessHandle(mine.pid, mine.start_ticks + 1).lives
    assert not ProcessHandle.of(2**22 + 1).lives
