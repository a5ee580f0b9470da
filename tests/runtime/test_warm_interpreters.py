"""Warm interpreters: a job's zygote is a fork, in the job's own environment, in no time."""

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


class Garden:
    """A nursery and pools of jobs that a test drives by hand."""

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

    def pool(
        self, cwd: Path, python: str = sys.executable, **env: str
    ) -> tuple[ForkServerClient, "Heard"]:
        """Start the zygote of a job."""
        heard = Heard(self)
        interpreter = Interpreter(python, cwd, {**self.env, **env})
        pool = ForkServerClient(self.loop, interpreter, heard.append, self.warm_interpreters)
        self._stack.callback(pool.close)
        pool.start()
        return pool, heard

    def printed(
        self, pool: ForkServerClient, heard: "Heard", *, cpus: tuple[int, ...] = ()
    ) -> list[str]:
        """Run the job's script in a fork; give what it printed."""
        pipes = pool.fork(0, ("script.py",), {}, cpus)
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
    """Starts anew whenever it is lost, as a station does."""

    def __init__(self, garden: Garden, folder: Path) -> None:
        self.lost: list[int] = []
        self.times_warm = 0
        interpreter = Interpreter(sys.executable, folder, garden.env)
        super().__init__(garden.loop, interpreter, self._hear, garden.warm_interpreters)
        garden._stack.callback(self.close)
        self.start()

    def _hear(self, message: Message) -> None:
        self.times_warm += message["is"] == "warm"
        if message["is"] == "lost":
            self.lost.append(message["code"])
            self.start()


class Heard(list[Message]):
    """What a pool has said."""

    def __init__(self, garden: Garden) -> None:
        super().__init__()
        self._garden = garden

    def wait(self, kind: str) -> Message:
        found: list[Message] = []

        def said() -> bool:
            found.extend(message for message in self if message["is"] == kind)
            return bool(found)

        self._garden.turn_until(said, kind)
        return found[0]


@pytest.fixture
def garden(fake_torch: Path) -> Iterator[Garden]:
    with contextlib.closing(Garden({"PYTHONPATH": f"{fake_torch}:{ROOT}"})) as garden:
        yield garden
    assert not garden.warm_processes(), "a warm process is left"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(SAY)
    return tmp_path


def test_a_job_finds_its_own_environment_and_nothing_of_the_agents(
    garden: Garden, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_SECRET", "not for jobs")
    pool, heard = garden.pool(folder, HELLO="you")
    assert heard.wait("warm")["torch"] == "fake"
    (line,) = garden.printed(pool, heard)
    assert "HELLO" in line
    assert "AGENT_SECRET" not in line
    assert "PATH'" not in line.replace("PYTHONPATH", "")
    assert str(folder) in line


def test_what_a_killed_zygote_cared_for_is_ended_by_the_warm_process(
    garden: Garden, folder: Path
) -> None:
    stray = "subprocess.Popen(['sleep', '600'], start_new_session=True).pid"
    text = f"import subprocess, time\nprint({stray}, flush=True)\ntime.sleep(600)\n"
    (folder / "script.py").write_text(text)
    pool, heard = garden.pool(folder)
    heard.wait("warm")
    pipes, lines = pool.fork(0, ("script.py",), {}), list[str]()
    logs = [LogPipe(garden.loop, fd, lines.append) for fd in (pipes.stdout, pipes.stderr)]
    garden.turn_until(lambda: bool(lines), "what it has started")
    (warm,) = garden.warm_processes()
    (fork_server,) = [pid for pid in children(warm) if lives(pid)]
    os.kill(fork_server, signal.SIGKILL)
    heard.wait("lost")
    wait_until(lambda: not lives(int(lines[0])), "its end")
    for log in logs:
        log.finish()
    pipes.control.close()


def test_a_worker_runs_on_the_cores_it_is_given(garden: Garden, folder: Path) -> None:
    core = min(os.sched_getaffinity(0))
    pool, heard = garden.pool(folder)
    assert garden.printed(pool, heard, cpus=(core,))[0].endswith(f"{{{core}}}")


def test_jobs_of_one_kind_share_a_warm_process(garden: Garden, folder: Path) -> None:
    first, second = (garden.pool(folder, NAME=name)[1] for name in "ab")
    first.wait("warm")
    second.wait("warm")
    assert len(garden.warm_processes()) == 1
    garden.pool(folder, OMP_NUM_THREADS="1")[1].wait("warm")
    assert len(garden.warm_processes()) == 2


def test_jobs_that_lose_the_warm_process_they_share_share_the_next(
    garden: Garden, folder: Path
) -> None:
    pools = [Restarting(garden, folder) for _ in range(2)]
    for times in (1, 2):
        garden.turn_until(lambda: all(p.times_warm == times for p in pools), "both are warm")  # noqa: B023
        (warm,) = garden.warm_processes()
        if times == 1:
            os.kill(warm, signal.SIGKILL)
    assert [pool.lost for pool in pools] == [[-signal.SIGKILL]] * 2


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


def test_a_warm_process_that_was_killed_is_started_anew(garden: Garden, folder: Path) -> None:
    _, heard = garden.pool(folder)
    heard.wait("warm")
    (warm,) = garden.warm_processes()
    os.kill(warm, signal.SIGKILL)
    assert heard.wait("lost")["code"] == -signal.SIGKILL
    pool, again = garden.pool(folder)
    again.wait("warm")
    assert garden.printed(pool, again)
    assert garden.warm_processes() != [warm]


def test_a_python_without_torch_says_so_to_the_job_and_to_the_agent(
    garden: Garden, folder: Path
) -> None:
    (folder / "torch.py").write_text("raise ModuleNotFoundError('No module named torch')")
    pool, heard = garden.pool(folder, PYTHONPATH=f"{folder}:{ROOT}")
    assert heard.wait("lost")["code"] == 1
    assert "No module named torch" in pool.last_words[-1]
    (about,) = garden.warm
    assert "No module named torch" in about["because"]
    assert sys.executable in about["what"]


def test_a_program_that_is_not_there_is_named(garden: Garden, folder: Path) -> None:
    _, heard = garden.pool(folder, python="/no/such/python")
    assert heard.wait("lost")["code"] > 0
    assert "No such file" in garden.warm[0]["because"]
    assert "/no/such/python" in garden.warm[0]["what"]


def test_a_folder_that_is_gone_ends_the_zygote_with_a_reason(garden: Garden, folder: Path) -> None:
    pool, heard = garden.pool(folder / "gone")
    assert heard.wait("lost")["code"] == -signal.SIGKILL
    assert "No such file" in pool.last_words[-1]


def test_kinds_that_nobody_uses_make_room(
    garden: Garden, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_MAX", 2)
    used, hears = garden.pool(folder, OMP_NUM_THREADS="1")
    hears.wait("warm")
    (kept,) = garden.warm_processes()
    for threads in "234":
        pool, heard = garden.pool(folder, OMP_NUM_THREADS=threads)
        heard.wait("warm")
        pool.close()
    assert kept in garden.warm_processes()
    assert len(garden.warm_processes()) == 2
    assert garden.printed(used, hears)


def test_warming_twice_is_telling_twice(garden: Garden) -> None:
    garden.warm_interpreters.warm(sys.executable, garden.env)
    garden.turn_until(lambda: bool(garden.warm), "warm")
    garden.warm_interpreters.warm(sys.executable, garden.env)
    assert garden.warm == [{"torch": "fake", "gpus": 0}] * 2
    assert len(garden.warm_processes()) == 1


def test_closing_a_jobs_pool_ends_its_workers_alone(garden: Garden, folder: Path) -> None:
    (folder / "script.py").write_text("import time\ntime.sleep(600)\n")
    pids = []
    pools = []
    for _ in range(2):
        pool, heard = garden.pool(folder)
        pipes = pool.fork(0, ("script.py",), {})
        pids.append(heard.wait("forked")["pid"])
        pools.append((pool, pipes))
    pools[0][0].close()
    wait_until(lambda: not lives(pids[0]), "its end")
    assert lives(pids[1])
    garden.warm_interpreters.close()
    wait_until(lambda: not lives(pids[1]), "the other's end")
    for _, pipes in pools:
        pipes.control.close()
        os.close(pipes.stdout)
        os.close(pipes.stderr)
