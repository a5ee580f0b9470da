"""The fork server: a script can't tell a fork of it from a start of its own."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from coddl.runtime.supervisor.fork_server_client import ForkServerClient, Interpreter
from coddl.runtime.supervisor.loop import LogPipe, Loop
from coddl.runtime.wire import Message
from tests.runtime.harness import ROOT, children, fake_torch, lives, wait_until

__all__ = ["fake_torch"]  # fixtures

SCRIPTS = {
    "says what it sees": (
        "import sys, os\n"
        "print(__name__, __file__, sys.argv, sys.path[0], os.getcwd(), __spec__, __doc__)\n"
        "print(sys.stdin.read() == '', sys.modules['__main__'].__file__ == __file__)\n"
    ),
    "imports its neighbour": "import neighbour\nprint(neighbour.VALUE)\n",
    "exits with a number": "import sys\nsys.exit(3)\n",
    "exits with nothing": "import sys\nsys.exit()\n",
    "exits with words": "import sys\nsys.exit('no more')\n",
    "raises": "def f():\n    raise ValueError('boom')\nf()\n",
    "raises from another": "try:\n    1 / 0\nexcept Exception as e:\n    raise OSError from e\n",
    "can not be parsed": "x = 1\nif x\n    pass\n",
    "has a hook": "import sys\nsys.excepthook = lambda *a: print('mine', a[0])\nraise KeyError\n",
    "prints at its exit": "import atexit\natexit.register(print, 'last')\nprint('first')\n",
    "fails after an exit hook": "import atexit\natexit.register(print, 'last')\n1 / 0\n",
    "leaves a thread behind": (
        "import threading, time\nsaid = threading.Event()\n"
        "def late():\n    said.wait()\n    time.sleep(0.05)\n    print('late')\n"
        "threading.Thread(target=late).start()\nprint('early')\nsaid.set()\n"
    ),
    "does not end its line": "print('half', end='')\n",
    "is killed": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n",
    "is terminated": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n",
    "pickles its own class": (
        "import pickle\nclass Mine:\n    pass\nprint(type(pickle.loads(pickle.dumps(Mine()))))\n"
    ),
    "is in another encoding": "# -*- coding: latin-1 -*-\nprint(len('\xe4'))\n",
    "uses the future": "def f(x: nonsense = 1): pass\n",
    "starts processes": (
        "import multiprocessing as m\n"
        "def child(): print('child', __name__)\n"
        "if __name__ == '__main__':\n"
        "    for kind in ('fork', 'spawn'):\n"
        "        p = m.get_context(kind).Process(target=child)\n"
        "        p.start()\n        p.join()\n"
    ),
}


class Outcome(NamedTuple):
    code: int
    out: list[str]
    err: list[str]


class Client:
    """A fork server that a test drives by hand."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.messages: list[Message] = []
        self.loop = Loop()
        interpreter = Interpreter(sys.executable, folder, env)
        self.client = ForkServerClient(self.loop, interpreter, self.messages.append)
        self.client.start()
        self.warm = self.wait_for("warm")
        assert self.client._process is not None
        self.fork_server = self.client._process.pid
        self._numbers = iter(range(1000))
        self._ends = contextlib.ExitStack()

    def wait_for(self, kind: str, **fields: object) -> Message:
        """Turn the loop until the pool says something."""
        found: list[Message] = []

        def said() -> bool:
            wanted = {"is": kind, **fields}.items()
            found.extend(message for message in self.messages if wanted <= message.items())
            if not found:
                self.loop.alarm("again", 0.0, lambda: None)
                self.loop.turn()
            return bool(found)

        wait_until(said, kind)
        return found[0]

    def start(self, *argv: str, **env: str) -> tuple[int, int, Callable[[], Outcome]]:
        """Fork a worker; give its number, its pid, and how to await its end."""
        number = next(self._numbers)
        pipes = self.client.fork(number, argv, {"CODDL_WORKER": str(number), **env})
        out: list[str] = []
        err: list[str] = []
        logs = [
            LogPipe(self.loop, pipes.stdout, out.append),
            LogPipe(self.loop, pipes.stderr, err.append),
        ]

        def close() -> None:
            for log in logs:
                log.finish()
            pipes.control.close()

        def end() -> Outcome:
            code = self.wait_for("exited", worker=number)["code"]
            close()
            return Outcome(code, out, err)

        self._ends.callback(close)

        return number, self.wait_for("forked", worker=number)["pid"], end

    def close(self) -> None:
        self.client.close()
        self._ends.close()
        self.loop.close()


@pytest.fixture(scope="module")
def env(fake_torch: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{fake_torch}:{ROOT}"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scripts")


@pytest.fixture(scope="module")
def client(folder: Path, env: dict[str, str]) -> Iterator[Client]:
    with contextlib.closing(Client(folder, env)) as client:
        yield client


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_a_script_can_not_tell_the_difference(
    client: Client, folder: Path, env: dict[str, str], text: str
) -> None:
    (folder / "sub").mkdir(exist_ok=True)
    (folder / "sub" / "neighbour.py").write_text("VALUE = 7\n")
    (folder / "sub" / "script.py").write_text(text, encoding="latin-1")
    argv = ("sub/script.py", "--lr", "0.1", "-v")
    plain = subprocess.run(
        [sys.executable, *argv], cwd=folder, env=env, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    forked = client.start(*argv)[2]()
    assert forked.code == plain.returncode
    assert forked.out == plain.stdout.splitlines()
    assert forked.err == plain.stderr.splitlines()


def test_ctrl_c_in_a_script_gives_130(client: Client, folder: Path) -> None:
    (folder / "script.py").write_text("raise KeyboardInterrupt\n")
    assert client.start("script.py")[2]().code == 130


def test_a_worker_finds_its_environment_and_its_socket(client: Client, folder: Path) -> None:
    (folder / "script.py").write_text(
        "import os, socket, sys\n"
        "control = socket.socket(fileno=int(os.environ['CODDL_SOCKET']))\n"
        "print(os.environ['HELLO'], control.family)\n"
        "print(os.getpgid(0) == os.getpid(), sorted(os.listdir('/proc/self/fd')))\n"
    )
    outcome = client.start("script.py", HELLO="you")[2]()
    assert outcome.out[0] == "you 1"
    own_group, numbers = outcome.out[1].split(" ", 1)
    assert own_group == "True"
    # 0, 1, 2, the control socket, and the folder that is being listed
    assert len(numbers.split()) == 5, numbers


def test_a_process_shows_which_worker_it_is(
    client: Client, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "script.py").write_text("print(open('/proc/self/comm').read(), end='')\n")
    number, _, end = client.start("script.py")
    assert end().out == [f"coddl worker {number}"]
    monkeypatch.setattr(client, "_numbers", iter([12345]))  # the number is never cut off
    assert client.start("script.py")[2]().out == ["coddl work12345"]


def test_what_a_worker_has_started_goes_with_it(client: Client, folder: Path) -> None:
    (folder / "script.py").write_text(
        "import os, time\npid = os.fork()\nif pid:\n    print(pid, flush=True)\ntime.sleep(600)\n"
    )
    _, pid, end = client.start("script.py")
    wait_until(lambda: bool(children(pid)), "the child of the worker")
    (grandchild,) = children(pid)
    os.kill(pid, signal.SIGKILL)
    assert end().code == -signal.SIGKILL
    assert not lives(grandchild)


# Starts somebody who leaves its group and session, and is left alone.
STRAYS = {
    "a program": "subprocess.Popen(['sleep', '600'], start_new_session=True).pid",
    "a fork": "fork()",
}
STRAY = """
import os, subprocess, time
def fork():
    said, say = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if (pid := os.fork()) == 0:
            time.sleep(600)
        os.write(say, str(pid).encode())
        os._exit(0)
    os.wait()
    return int(os.read(said, 99))
print({stray}, flush=True)
"""


@pytest.mark.parametrize("stray", STRAYS.values(), ids=STRAYS.keys())
def test_a_worker_has_exited_when_all_it_has_left_alone_is_gone(
    client: Client, folder: Path, stray: str
) -> None:
    (folder / "script.py").write_text(STRAY.format(stray=stray))
    outcome = client.start("script.py")[2]()
    assert outcome.code == 0
    assert not lives(int(outcome.out[0]))


def test_what_a_living_worker_has_started_is_left_alone(client: Client, folder: Path) -> None:
    said = folder / "said"
    text = STRAY.format(stray=f"{STRAYS['a program']}, file=open('{said}', 'w')")
    (folder / "stays.py").write_text(f"{text}time.sleep(600)\n")
    (folder / "script.py").write_text("")
    number, _, end = client.start("stays.py")
    wait_until(lambda: said.exists() and bool(said.read_text().strip()), "what it has started")
    client.start("script.py")[2]()
    stray = int(said.read_text())
    assert lives(stray)
    client.client.kill(number)
    assert end().code == -signal.SIGKILL
    assert not lives(stray)


def test_a_worker_is_sent_signals(client: Client, folder: Path) -> None:
    (folder / "script.py").write_text("import time\ntime.sleep(600)\n")
    number, _, end = client.start("script.py")
    client.client.kill(number, signal.SIGTERM)
    assert end().code == -signal.SIGTERM
    client.client.kill(number)  # a ghost


def test_forks_leave_no_descriptors_behind(client: Client, folder: Path) -> None:
    (folder / "script.py").write_text("")
    client.start("script.py")[2]()

    def opened() -> list[int]:
        return [
            len(list(Path(f"/proc/{pid}/fd").iterdir()))
            for pid in (client.fork_server, os.getpid())
        ]

    before = opened()
    for end in [client.start("script.py")[2] for _ in range(10)]:
        end()
    assert opened() == before


def test_if_the_fork_server_is_killed_its_workers_are_too(
    folder: Path, env: dict[str, str]
) -> None:
    (folder / "script.py").write_text("import time\ntime.sleep(600)\n")
    with contextlib.closing(Client(folder, env)) as client:
        _, pid, _ = client.start("script.py")
        os.kill(client.fork_server, signal.SIGKILL)
        assert client.wait_for("lost")["code"] == -signal.SIGKILL
        wait_until(lambda: not lives(pid), "the end of the worker")


def test_closing_takes_everybody_along(folder: Path, env: dict[str, str]) -> None:
    (folder / "script.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)\n"
    )
    client = Client(folder, env)
    _, pid, _ = client.start("script.py")
    client.close()
    wait_until(lambda: not lives(pid), "the end of the worker")


def test_with_the_real_torch_it_is_one_thread_and_hosts_a_store(folder: Path) -> None:
    from torch._C._distributed_c10d import TCPStore

    (folder / "script.py").write_text(
        "import os, sys, torch\n"
        "print('torch._dynamo' in sys.modules, torch.cuda.is_initialized())\n"
        "print(len(os.listdir('/proc/self/task')))\n"
        "print(torch.ones(64, 64).mm(torch.ones(64, 64)).sum().item())\n"
    )
    with contextlib.closing(Client(folder, dict(os.environ))) as client:
        assert client.warm["torch"].startswith("2.")
        client.client.rendezvous("127.0.0.1", 0)
        port = client.wait_for("rendezvous")["port"]
        store = TCPStore("127.0.0.1", port, is_master=False)
        store.set("key", "value")
        assert TCPStore("127.0.0.1", port, is_master=False).get("key") == b"value"
        assert client.start("script.py")[2]() == Outcome(0, ["True False", "1", "262144.0"], [])
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            client.messages.clear()
            client.client.rendezvous(*taken.getsockname())
            assert "in use" in client.wait_for("rendezvous")["error"]
