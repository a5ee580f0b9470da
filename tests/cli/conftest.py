"""The command line, called as a user calls it."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from coddl.cli.main import main


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Coddl = Callable[..., Outcome]


@pytest.fixture
def coddl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Coddl:
    """Run a command in this process."""

    def run(*words: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["coddl", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return Outcome(
            code if isinstance(code, int) else int(code is not None), *capsys.readouterr()
        )

    return run
