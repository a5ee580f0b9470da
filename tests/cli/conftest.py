"""The command line, called as a user calls it."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from coddl.cli.main import main
from coddl.engines.processes import OF_COMMANDS
from tests.cli.stub_pool import StubPool
from tests.runtime.harness import sockets

__all__ = ["sockets"]  # a fixture


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Coddl = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """See no pool that this machine may have."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in (*OF_COMMANDS, "CODDL_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def coddl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Coddl:
    """Run a command in this process."""

    def run(*words: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["coddl", *map(str, words)])
        on_ctrl_c = signal.getsignal(signal.SIGINT)  # some commands see to it themselves
        with pytest.raises(SystemExit) as ended:
            main()
        signal.signal(signal.SIGINT, on_ctrl_c)
        code = ended.value.code
        return Outcome(
            code if isinstance(code, int) else int(code is not None), *capsys.readouterr()
        )

    return run


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[StubPool]:
    """Be a server that says what a test wants it to, as the pool of this machine."""
    with StubPool() as stub:
        stub.announce(tmp_path / "state" / "coddl" / "pool")
        stub.will("GET", "/pool", {"now_s": 0.0})  # as before servers told their time
        yield stub


@pytest.fixture
def work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sockets: Path) -> Iterator[Path]:
    """Work in a folder with a script, where no job of `coddl run` is seen."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text("import coddl\n")
    monkeypatch.chdir(work)
    sockets.mkdir(mode=0o700, exist_ok=True)
    yield work
    sockets.rmdir()
