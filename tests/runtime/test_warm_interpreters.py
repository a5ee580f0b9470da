"""Warm interpreters: a job's fork server is a fork, in the job's own environment, in no time."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coddl.runtime.supervisor import warm_interpreters as module
from coddl.runtime.supervisor.fork_server_client import ForkServerClient, Interpreter
from coddl.runtime.supervisor.loop import LogPipe, Loop
from coddl.runtime.supervisor.warm_interpreters import WarmInterpreters, key_of
from coddl.runtime.wire import Message
from tests.runtime.harness import ROOT, children, fake_torch, lives, wait_until

__all__ = ["fake_torch"]  # fixtures

SAY = "import os, sys\nprint(sorted(os.environ), os.getcwd(), os.sched_getaffinity(0))\n"


class Interpreters:
    """Warm interpreters and fork servers of jobs that a test drives by hand."""

    def __init__(self, env: dict[str, str]) -> None:
        self.env = env
        self.loop = Loop()
        self.warm: list[Message] = []
        self.warm_interpreters = WarmInterpreters(
            self.loop, lambda _python, about: self.warm.append(about)
        )
        self._stack = contextlib.ExitStack()
        self._stack.callback(self.loop.close)
        self._stack.callback(self.warm_interpreters.close)

    def turn_until(self, condition: Callable[[], bool], what: str) -> None:
        def checked() -> bool:
            if condition():
                return True
            self.loop.alarm("again", 0.0, lambda: None)
            self.loop.turn()
            return False

        wait_until(checked, what)

    def client(
        self, cwd: Path, python: str = sys.executable, **env: str
    ) -> tuple[ForkServerClient, "Heard"]:
        """Start the fork server of a job."""
        heard = Heard(self)
        interpreter = Interpreter(python, cwd, {**self.env, **env})
        client = ForkServerClient(self.loop, interpreter, heard.append, self.warm_interpreters)
        self._stack.callback(client.close)
        client.start()
        return client, heard

    def printed(
        self, client: ForkServerClient, heard: "Heard", *, cpus: tuple[int, ...] = ()
    ) -> list[str]:
        """Run the job's script in a fork; give what it printed."""
        pipes = client.fork(0, ("script.py",), {}, cpus)
        lines: list[str] = []
        logs = [LogPipe(self.loop, fd, lines.append) for fd in (pipes.stdout, pipes.stderr)]
        assert heard.wait("exited")["code"] == 0, lines
        for log in logs:
            log.finish()
        pipes.control.close()
        return lines

    def warm_processes(self) -> list[int]:
        return [pid for pid in children(os.getpid()) if lives(pid)]

    def close(self) -> None:
        self._stack.close()


class Restarting(ForkServerClient):
    """Starts anew whenever it is lost, as a worker host does."""

    def __init__(self, interpreters: Interpreters, folder: Path) -> None:
        self.lost: list[int] = []
        self.times_warm = 0
        interpreter = Interpreter(sys.executable, folder, interpreters.env)
        super().__init__(interpreters.loop, interpreter, self._hear, interpreters.warm_interpreters)
        interpreters._stack.callback(self.close)
        self.start()

    def _hear(self, message: Message) -> None:
        self.times_warm += message["is"] == "warm"
        if message["is"] == "lost":
            self.lost.append(message["code"])
            self.start()


class Heard(list[Message]):
    """What a pool has said."""

    def __init__(self, interpreters: Interpreters) -> None:
        super().__init__()
        self._interpreters = interpreters

    def wait(self, kind: str) -> Message:
        found: list[Message] = []

        def said() -> bool:
            found.extend(message for message in self if message["is"] == kind)
            return bool(found)

        self._interpreters.turn_until(said, kind)
        return found[0]


@pytest.fixture
def interpreters(fake_torch: Path) -> Iterator[Interpreters]:
    with contextlib.closing(Interpreters({"PYTHONPATH": f"{fake_torch}:{ROOT}"})) as interpreters:
        yield interpreters
    assert not interpreters.warm_processes(), "a warm process is left"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(SAY)
    return tmp_path


def test_a_job_finds_its_own_environment_and_nothing_of_the_agents(
    interpreters: Interpreters, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_SECRET", "not for jobs")
    client, heard = interpreters.client(folder, HELLO="you")
    assert heard.wait("warm")["torch"] == "fake"
    (line,) = interpreters.printed(client, heard)
    assert "HELLO" in line
    assert "AGENT_SECRET" not in line
    assert "PATH'" not in line.replace("PYTHONPATH", "")
    assert str(folder) in line


def test_what_a_killed_fork_server_has_forked_is_ended_by_the_warm_interpreter(
    interpreters: Interpreters, folder: Path
) -> None:
    stray = "subprocess.Popen(['sleep', '600'], start_new_session=True).pid"
    text = f"import subprocess, time\nprint({stray}, flush=True)\ntime.sleep(600)\n"
    (folder / "script.py").write_text(text)
    client, heard = interpreters.client(folder)
    heard.wait("warm")
    pipes, lines = client.fork(0, ("script.py",), {}), list[str]()
    logs = [LogPipe(interpreters.loop, fd, lines.append) for fd in (pipes.stdout, pipes.stderr)]
    interpreters.turn_until(lambda: bool(lines), "what it has started")
    (warm,) = interpreters.warm_processes()
    (fork_server,) = [pid for pid in children(warm) if lives(pid)]
    os.kill(fork_server, signal.SIGKILL)
    heard.wait("lost")
    wait_until(lambda: not lives(int(lines[0])), "its end")
    for log in logs:
        log.finish()
    pipes.control.close()


def test_a_worker_runs_on_the_cores_it_is_given(interpreters: Interpreters, folder: Path) -> None:
    core = min(os.sched_getaffinity(0))
    client, heard = interpreters.client(folder)
    assert interpreters.printed(client, heard, cpus=(core,))[0].endswith(f"{{{core}}}")


def test_jobs_of_one_kind_share_a_warm_process(interpreters: Interpreters, folder: Path) -> None:
    first, second = (interpreters.client(folder, NAME=name)[1] for name in "ab")
    first.wait("warm")
    second.wait("warm")
    assert len(interpreters.warm_processes()) == 1
    interpreters.client(folder, OMP_NUM_THREADS="1")[1].wait("warm")
    assert len(interpreters.warm_processes()) == 2


def test_jobs_that_lose_the_warm_process_they_share_share_the_next(
    interpreters: Interpreters, folder: Path
) -> None:
    clients = [Restarting(interpreters, folder) for _ in range(2)]
    for times in (1, 2):
        interpreters.turn_until(
            lambda: all(p.times_warm == times for p in clients),  # noqa: B023
            "both are warm",
        )
        (warm,) = interpreters.warm_processes()
        if times == 1:
            os.kill(warm, signal.SIGKILL)
    assert [client.lost for client in clients] == [[-signal.SIGKILL]] * 2


KINDS = {
    "its own variables": ({"LR": "0.1"}, True),
    "which GPU it sees": ({"CUDA_VISIBLE_DEVICES": "1"}, True),
    "where Python finds modules": ({"PYTHONPATH": "/elsewhere"}, False),
    "the same place, said otherwise": ({"PYTHONPATH": "lib"}, True),
    "threads of a native library": ({"OMP_NUM_THREADS": "2"}, False),
    "the loader": ({"LD_PRELOAD": "libx.so"}, False),
    "how CUDA loads": ({"CUDA_MODULE_LOADING": "EAGER"}, False),
}


@pytest.mark.parametrize(("env", "same"), KINDS.values(), ids=KINDS.keys())
def test_what_counts_at_a_start_tells_kinds_apart(env: dict[str, str], same: bool) -> None:
    plain = Interpreter("python3", Path("/srv"), {"PYTHONPATH": "/srv/lib"})
    other = Interpreter("python3", Path("/srv"), {"PYTHONPATH": "/srv/lib", **env})
    assert (key_of(plain) == key_of(other)) is same


def test_a_warm_process_that_was_killed_is_started_anew(
    interpreters: Interpreters, folder: Path
) -> None:
    _, heard = interpreters.client(folder)
    heard.wait("warm")
    (warm,) = interpreters.warm_processes()
    os.kill(warm, signal.SIGKILL)
    assert heard.wait("lost")["code"] == -signal.SIGKILL
    client, again = interpreters.client(folder)
    again.wait("warm")
    assert interpreters.printed(client, again)
    assert interpreters.warm_processes() != [warm]


def test_a_python_without_torch_says_so_to_the_job_and_to_the_agent(
    interpreters: Interpreters, folder: Path
) -> None:
    (folder / "torch.py").write_text("raise ModuleNotFoundError('No module named torch')")
    client, heard = interpreters.client(folder, PYTHONPATH=f"{folder}:{ROOT}")
    assert heard.wait("lost")["code"] == 1
    assert "No module named torch" in client.last_words[-1]
    (about,) = interpreters.warm
    assert "No module named torch" in about["because"]
    assert sys.executable in about["what"]


def test_a_program_that_is_not_there_is_named(interpreters: Interpreters, folder: Path) -> None:
    _, heard = interpreters.client(folder, python="/no/such/python")
    assert heard.wait("lost")["code"] > 0
    assert "No such file" in interpreters.warm[0]["because"]
    assert "/no/such/python" in interpreters.warm[0]["what"]


def test_a_folder_that_is_gone_ends_the_fork_server_with_a_reason(
    interpreters: Interpreters, folder: Path
) -> None:
    client, heard = interpreters.client(folder / "gone")
    assert heard.wait("lost")["code"] == -signal.SIGKILL
    assert "No such file" in client.last_words[-1]


def test_kinds_that_nobody_uses_make_room(
    interpreters: Interpreters, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_MAX", 2)
    used, hears = interpreters.client(folder, OMP_NUM_THREADS="1")
    hears.wait("warm")
    (kept,) = interpreters.warm_processes()
    for threads in "234":
        client, heard = interpreters.client(folder, OMP_NUM_THREADS=threads)
        heard.wait("warm")
        client.close()
    assert kept in interpreters.warm_processes()
    assert len(interpreters.warm_processes()) == 2
    assert interpreters.printed(used, hears)


def test_warming_twice_is_telling_twice(interpreters: Interpreters) -> None:
    interpreters.warm_interpreters.warm(sys.executable, interpreters.env)
    interpreters.turn_until(lambda: bool(interpreters.warm), "warm")
    interpreters.warm_interpreters.warm(sys.executable, interpreters.env)
    assert interpreters.warm == [{"torch": "fake", "gpus": 0}] * 2
    assert len(interpreters.warm_processes()) == 1


def test_closing_a_jobs_pool_ends_its_workers_alone(
    interpreters: Interpreters, folder: Path
) -> None:
    (folder / "script.py").write_text("import time\ntime.sleep(600)\n")
    pids = []
    clients = []
    for _ in range(2):
        client, heard = interpreters.client(folder)
        pipes = client.fork(0, ("script.py",), {})
        pids.append(heard.wait("forked")["pid"])
        clients.append((client, pipes))
    clients[0][0].close()
    wait_until(lambda: not lives(pids[0]), "its end")
    assert lives(pids[1])
    interpreters.warm_interpreters.close()
    wait_until(lambda: not lives(pids[1]), "the other's end")
    for _, pipes in clients:
        pipes.control.close()
        os.close(pipes.stdout)
        os.close(pipes.stderr)
