"""`coddl run` and its companions, called as a user calls them."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from coddl.cli.runview import TextRunView, change_sentence, fitted, sentence, status_line
from tests.cli.conftest import Coddl
from tests.runtime.harness import (
    ROOT,
    STUB,
    children,
    fake_torch,
    lives,
    wait_until,
)

__all__ = ["fake_torch"]  # a fixture

COMMAND = (sys.executable, "-m", "coddl.cli.main")


class Started:
    """A `coddl run` in a process of its own."""

    def __init__(self, words: list[str], folder: Path, env: dict[str, str]) -> None:
        self.folder = folder
        self._printed = Path(tempfile.mkdtemp(dir=folder))
        with self._path("out").open("w") as out, self._path("err").open("w") as err:
            self.process = subprocess.Popen(words, cwd=folder, env=env, stdout=out, stderr=err)

    def _path(self, stream: str) -> Path:
        return self._printed / stream

    @property
    def out(self) -> str:
        return self._path("out").read_text()

    @property
    def err(self) -> str:
        return self._path("err").read_text()

    def wait_for(self, text: str) -> None:
        def said() -> bool:
            assert self.process.poll() is None or text in self.out + self.err, self.err
            return text in self.out + self.err

        wait_until(said, text)

    def end(self) -> int:
        return self.process.wait(timeout=60)

    def family(self) -> list[int]:
        """The processes below it: fork server, store, workers."""
        found, look = [], [self.process.pid]
        while look:
            below = children(look.pop())
            found += below
            look += below
        return found

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.end()


Run = Callable[..., Started]


@pytest.fixture
def run(tmp_path: Path, fake_torch: Path, sockets: Path) -> Iterator[Run]:
    """Run jobs of stub workers; whatever a test does, none is left."""
    env = {
        **os.environ,
        "PYTHONPATH": f"{fake_torch}:{ROOT}",
        "XDG_RUNTIME_DIR": str(sockets.parent),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    with contextlib.ExitStack() as stack:

        def begin(*words: object, program: Sequence[str] = COMMAND, **options: Any) -> Started:
            words = (*program, "run", *words, STUB, json.dumps(options))
            started = Started([*map(str, words)], tmp_path, env)
            stack.callback(started.close)
            return started

        yield begin


def test_lines_carry_the_number_of_their_worker(run: Run) -> None:
    job = run("--workers", 2, steps=10)
    assert job.end() == 0, job.err
    assert sorted(job.out.splitlines()) == ["[0] ended at 10", "[1] ended at 10"]
    assert "coddl: started with 2 workers" in job.err
    assert "stub_worker SUCCEEDED at step 10" in job.err


def test_quiet_shows_the_script_alone(run: Run) -> None:
    job = run("--quiet", steps=3)
    assert job.end() == 0
    assert (job.out, job.err) == ("[0] ended at 3\n", "")


def test_a_program_gets_one_object_per_event(run: Run) -> None:
    job = run("--json", "--resize", "5:2", steps=400)
    assert job.end() == 0
    events = [json.loads(line) for line in job.out.splitlines()]
    assert [e["to"] for e in events if e["is"] in ("started", "resized")] == [1, 2]
    assert (events[-1]["is"], events[-1]["state"]) == ("ended", "SUCCEEDED")
    assert job.err == ""


def test_what_follows_the_script_is_the_scripts(run: Run, tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text("import sys\nprint(sys.argv)\n")
    job = run("echo.py", "--workers", "7", "--json", "--", "-x", "--help")
    assert job.end() == 1
    words = ["echo.py", "--workers", "7", "--json", "--", "-x", "--help", str(STUB), "{}"]
    assert job.out == f"[0] {words}\n"
    assert "error: echo.py ended without calling coddl.prepare\n  because" in job.err


def test_ctrl_c_ends_everybody_and_the_same_command_goes_on(run: Run) -> None:
    words = ("--name", "mine", "--checkpoint-every", 0.1, "--workers", 2)
    job = run(*words)
    job.wait_for("coddl: started")
    checkpoints = job.folder / "state" / "coddl" / "mine"
    wait_until(lambda: bool(list(checkpoints.glob("*.ckpt"))), "a checkpoint")
    family = job.family()
    assert len(family) == 4  # the fork server, the store and two workers
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130
    assert not [pid for pid in family if lives(pid)]
    assert "mine CANCELLED" in job.err
    assert "the same command continues from step" in job.err
    again = run(*words, steps=1)  # that step is behind it
    assert again.end() == 0
    assert "coddl: resuming from step" in again.err
    assert not checkpoints.exists()


def test_what_continues_a_fresh_run_is_the_command_without_fresh(run: Run) -> None:
    job = run("--fresh", "--checkpoint-every", 0.1, "--checkpoint-dir", "saved")
    wait_until(lambda: bool(list((job.folder / "saved").glob("*.ckpt"))), "a checkpoint")
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130
    assert "; the same command without --fresh continues from step" in job.err


def test_a_resize_that_never_came_is_told_at_the_end(run: Run) -> None:
    job = run("--resize", "500:2", steps=20)
    assert job.end() == 0
    told = "coddl: --resize to 2 workers at step 500 did not happen: the training ended at step 20"
    assert told in job.err.splitlines()


def test_kill_9_leaves_nobody(run: Run) -> None:
    job = run("--workers", 2)
    job.wait_for("coddl: started")
    family = job.family()
    job.process.kill()
    wait_until(lambda: not [pid for pid in family if lives(pid)], "the end of the family")
    job.process.wait()
    again = run("--workers", 1, steps=5)  # the name is free, and the old images are found
    assert again.end() == 0, again.err


def test_the_supervisor_never_imports_torch(run: Run, tmp_path: Path) -> None:
    (tmp_path / "spy.py").write_text(
        "import sys\nfrom coddl.cli.main import main\n"
        "try:\n    main()\nfinally:\n    print({'torch', 'numpy', 'rich'} & set(sys.modules))\n"
    )
    job = run(program=[sys.executable, str(tmp_path / "spy.py")], steps=5)
    assert job.end() == 0, job.err
    assert job.out.splitlines() == ["[0] ended at 5", "set()"]


def test_a_running_job_is_listed_resized_suspended_and_resumed(run: Run, coddl: Coddl) -> None:
    job = run("--name", "mine", "--workers", "1..4")
    job.wait_for("coddl: started")
    listed = coddl("ls", "--local")
    cells = listed.out.splitlines()[1].split()
    assert cells[:2] == ["mine", "RUNNING"]
    (status,) = json.loads(coddl("ls", "--local", "--json").out)
    pids = [f"{worker['pid']}" for worker in status["workers"]]
    assert cells[-len(pids) :] == pids
    assert f"pids {pids[0]} (worker 0)" in job.err
    assert coddl("resize", "mine", 3).out.startswith("mine: resized ")
    (status,) = json.loads(coddl("ls", "--local", "--json").out)
    assert (status["name"], status["size"], len(status["workers"])) == ("mine", 3, 3)
    assert coddl("suspend", "mine").out.startswith("mine: suspended after step ")
    assert json.loads(coddl("resume", "mine", 2, "-o", "json").out)["change"]["to"] == 2
    assert coddl("resize", "mine", 1, "--no-wait").out == "mine: asked for 1 worker\n"
    assert coddl("resize", "mine", 1).out.startswith("mine: ")
    assert coddl("resize", "mine", 1).out == "mine: already has 1 worker\n"

    code, out, err = coddl("resize", "mine", 5)
    assert (code, out) == (2, "")
    assert "error: mine can't run on 5 workers\n  because it was started with --workers 1..4" in err
    code, out, err = coddl("suspend", "other")
    assert (code, out) == (2, "")
    assert '"other"' in err
    assert "running: mine" in err


def test_where_nothing_runs_it_says_so(sockets: Path, coddl: Coddl) -> None:
    assert not sockets.exists()
    assert coddl("ls", "--local").out == "no job of coddl run is running on this machine\n"
    assert coddl("ls", "--local", "--json").out == "[]\n"
    assert coddl("ls").code == 1  # there is no pool either
    code, _, err = coddl("resume", "mine")
    assert code == 2
    assert "no job is running here" in err


BAD = {
    "no such script": (("nosuch.py",), "nosuch.py"),
    "a folder for a script": ((".",), "it is a directory"),
    "no workers": (("--workers", "0", "train.py"), "--workers 0"),
    "bounds the wrong way round": (("--workers", "4..2", "train.py"), "4..2"),
    "workers in words": (("--workers", "many", "train.py"), "many"),
    "a schedule without workers": (("--resize", "100", "train.py"), '"100"'),
    "a schedule to nothing": (("--resize", "100:0", "train.py"), '"100:0"'),
    "a schedule out of bounds": (("--workers", "1..2", "--resize", "9:3", "train.py"), "3 workers"),
    "a name that is a path": (("--name", "../x", "train.py"), "../x"),
    "no such interpreter": (("--python", "nosuchpython", "train.py"), "nosuchpython"),
    "a checkpoint folder that is a file": (
        ("--checkpoint-dir", "train.py", "train.py"),
        "train.py",
    ),
    "a trace nowhere": (("--trace", "no/such/t.json", "train.py"), "no/such/t.json"),
    "a profile nowhere": (("--profile", "no/such/p.json", "train.py"), "no such directory"),
    "a folder for a profile": (("--profile", ".", "train.py"), "it is a directory"),
    "an unknown option": (("--nosuch", "train.py"), "--nosuch"),
    "no script": ((), "SCRIPT"),
}


@pytest.mark.usefixtures("sockets")
@pytest.mark.parametrize(("words", "named"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_refused_before_anything_starts(
    words: tuple[str, ...], named: str, coddl: Coddl, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "train.py").write_text("raise SystemExit('ran')")
    code, out, err = coddl("run", *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "\n  because " in err
    assert "\n  try     " in err
    assert named in err


CHANGE = {
    "is": "resized", "generation": 2, "from": 1, "to": 4, "members": [0, 1, 2, 3], "step": 120,
    "pause_s": 0.04, "prepare_s": 0.8, "boundary_s": 0.01, "state_s": 0.02, "swap_s": 0.01,
    "serving_s": 0.9, "since": "command", "pids": {0: 70, 1: 81, 2: 82, 3: 83},
}  # fmt: skip
STATUS = {
    "name": "bert", "state": "RUNNING", "step": 1200, "steps": 5000, "samples_per_s": 1234.5,
    "size": 4, "generation": 2, "last_pause_s": 0.04, "still_s": 0.0, "metrics": {"loss": 0.123456},
}  # fmt: skip
SENTENCES: dict[str, tuple[dict[str, Any], str]] = {
    "a resize": (
        CHANGE,
        "resized 1 -> 4 workers after step 120: pause 0.04 s (boundary 0.01, state 0.02, "
        "swap 0.01), serving 0.90 s after the command; "
        "pids 70 (worker 0), 81 (worker 1), 82 (worker 2), 83 (worker 3)",
    ),
    "a start": (
        {**CHANGE, "is": "started", "to": 1, "step": 0, "since": "start", "pids": {0: 70}},
        "started with 1 worker after step 0, serving 0.90 s after the start; pids 70 (worker 0)",
    ),
    "a new start": (
        {**CHANGE, "is": "restarted", "to": 1, "since": "failure", "pids": {4: 90}},
        "restarted with 1 worker after step 120, serving 0.90 s after the failure; "
        "pids 90 (worker 4)",
    ),
    "a suspension": (
        {"is": "suspended", "step": 9, "durable": True, "serving_s": 0.9, "since": "command"},
        "suspended at step 9, 0.90 s after the command",
    ),
    "a resize that came too late": (
        {"is": "not-resized", "at_step": 500, "workers": 3, "step": 320},
        "--resize to 3 workers at step 500 did not happen: the training ended at step 320",
    ),
    "state from memory": (
        {"is": "origin", "where": "memory", "step": 120, "path": "x", "skipped": []},
        "resuming from step 120 in memory",
    ),
    "state from disk": (
        {"is": "origin", "where": "checkpoint", "step": 9, "path": "/c", "skipped": ["b is bad"]},
        "resuming from step 9 in checkpoint /c; skipped: b is bad",
    ),
    "no state": ({"is": "origin", "where": "scratch"}, ""),
    "a loss": (
        {"is": "exited", "worker": 3, "code": -9, "signal": "SIGKILL", "expected": False},
        "worker 3 was killed by SIGKILL",
    ),
    "a leaver": ({"is": "exited", "worker": 3, "code": 0, "signal": None, "expected": True}, ""),
}


@pytest.mark.parametrize(("event", "words"), SENTENCES.values(), ids=SENTENCES.keys())
def test_events_are_told_in_words(event: dict[str, Any], words: str) -> None:
    assert sentence(event) == words


def test_a_suspension_is_told_in_words() -> None:
    assert change_sentence({**CHANGE, "is": "suspended"}) == "suspended after step 120"


def test_the_state_is_one_line() -> None:
    assert status_line(STATUS) == (
        "bert RUNNING · step 1,200/5,000 · 1,234 samples/s · 4 workers · loss 0.1235 · "
        "last pause 0.04 s · generation 2"
    )


def test_what_does_not_fit_is_left_out_whole() -> None:
    line = "bert RUNNING · step 1,200 · loss 0.1235"
    assert fitted(line, 80) == line
    assert fitted(line, 35) == "bert RUNNING · step 1,200"
    assert fitted(line, 5) == "bert "


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_in_a_terminal_the_state_stays_below_the_lines() -> None:
    out, err = io.StringIO(), Terminal()
    view = TextRunView(quiet=False, out=out, err=err)
    view.tell({"is": "progress", **STATUS})
    view.tell({"is": "log", "worker": 3, "stream": "stderr", "text": "hello"})
    view.close()
    shown = err.getvalue().split("\r\x1b[2K")
    assert shown[1].startswith("bert RUNNING")
    assert shown[2] == "[3] hello\n"
    assert shown[3] == shown[1]
    assert shown[-1] == ""  # erased at the end


def test_a_file_gets_no_state_line() -> None:
    err = io.StringIO()
    view = TextRunView(quiet=False, out=io.StringIO(), err=err)
    view.tell({"is": "progress", **STATUS})
    assert err.getvalue() == ""
