"""Jobs that are any command: real processes, and nothing left of them."""

import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from coddl.agent import command_guard, command_runner
from coddl.agent.command_runner import CommandRunner, command_env
from coddl.agent.job_runner import JobRun
from coddl.agent.orphans import MARK, process
from coddl.agent.run_reporter import Fact
from coddl.api.wire import RunProgress
from coddl.core.pool.orders import AssignedSlot
from coddl.core.pool.records import RunChanged, RunEnded, RunStepped, RunUnsaved, Trouble
from coddl.core.pool.spec import JobSpec, Launch, Tier
from coddl.runtime.supervisor.slots import JobEnvironment
from coddl.runtime.wire import Message
from coddl.testing.remote_files import FakeRemoteFiles

PATIENCE_S = 60.0


class Listener:
    """Remembers what a lead tells."""

    def __init__(self) -> None:
        self.facts: queue.Queue[Fact] = queue.Queue()
        self.lines: queue.Queue[str] = queue.Queue()
        self.slots: list[tuple[int, ...]] = []
        self.turns: list[Message] = []
        self.pids: queue.Queue[int] = queue.Queue()
        self.is_over = False

    def on_fact(self, _run: JobRun, fact: Fact) -> None:
        self.facts.put(fact)

    def on_progress(self, _run: JobRun, progress: RunProgress) -> None:
        raise AssertionError(progress)

    def on_line(self, _run: JobRun, stream: str, text: str) -> None:
        self.lines.put(f"{stream}: {text}")

    def on_slots(self, _run: JobRun, slots: Sequence[int], pid: int | None) -> None:
        self.slots.append(tuple(slots))
        if pid is not None:
            self.pids.put(pid)

    def on_turn(self, _run: JobRun, event: Message) -> None:
        self.turns.append(event)

    def on_over(self, _run: JobRun) -> None:
        self.is_over = True

    def next_line(self) -> str:
        return self.lines.get(timeout=PATIENCE_S)

    def end(self) -> RunEnded:
        """Wait for the end."""
        while not isinstance(fact := self.facts.get(timeout=PATIENCE_S), RunEnded):
            pass
        return fact


class Started:
    """A command under its lead."""

    def __init__(self, run: JobRun) -> None:
        self.listener = Listener()
        self.lead = CommandRunner(run, self.listener)
        self.lead.start([AssignedSlot(4, "n", None), AssignedSlot(5, "n", None)], {})

    def end(self) -> RunEnded:
        ended = self.listener.end()
        assert self.lead.join(PATIENCE_S)
        assert self.listener.is_over
        assert self.listener.slots[-1] == ()
        return ended


Start = Callable[..., Started]


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def run_of(folder: Path, argv: Sequence[str], **fields: Any) -> JobRun:
    tier: Tier = fields.pop("tier", "opaque")
    precheck = fields.pop("precheck", False)
    attempt, remote = fields.pop("attempt", 3), fields.pop("remote", None)
    launch = Launch(argv=tuple(argv), precheck=tuple(argv) if precheck else (), **fields)
    environment = JobEnvironment(
        python=sys.executable,
        cwd=folder,
        env={**os.environ, MARK: f"test-{os.getpid()}"},
        folder=folder / "7" / "checkpoints",
        remote=remote,
        cpus={4: (0,)},
    )
    spec = JobSpec(name="job", launch=launch, tier=tier, gpus_min=2, gpus_max=2)
    return JobRun(
        job=7,
        attempt=attempt,
        spec=spec,
        node="n",
        environment=environment,
        precheck=precheck,
        reason="moved",
    )


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start commands; none of them outlives the test."""
    started: list[Started] = []

    def begin(argv: Sequence[str], **fields: Any) -> Started:
        started.append(Started(run_of(fields.pop("cwd", tmp_path), argv, **fields)))
        return started[-1]

    yield begin
    for each in started:
        each.lead.release()
        assert each.lead.join(PATIENCE_S)


def is_gone(pid: int) -> bool:
    found = process(pid)
    return found is None or found.is_zombie


def wait_gone(pid: int) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not is_gone(pid):
        assert time.monotonic() < until_s, f"{pid} is still there"
        time.sleep(0.005)


def test_a_command_runs_and_succeeds(start: Start) -> None:
    started = start(python("import sys; print('out'); print('err', file=sys.stderr)"))
    changed = started.listener.facts.get(timeout=PATIENCE_S)
    assert isinstance(changed, RunChanged)
    assert (changed.kind, changed.slots, changed.gpus_before) == ("started", (4, 5), 0)
    assert started.listener.facts.get(timeout=PATIENCE_S) == RunStepped(7, 3, 0)
    assert started.end() == RunEnded(7, 3, "succeeded", exit_code=0)
    assert {started.listener.next_line(), started.listener.next_line()} == {
        "stdout: out",
        "stderr: err",
    }


ENDS: dict[str, tuple[tuple[str, ...], str, int | None, str]] = {
    "it fails": (
        python("raise SystemExit(3)"),
        "failed",
        3,
        "it printed no error (it exited with code 3)",
    ),
    "it fails and says why": (
        python("print('begun'); raise SystemExit('no data')"),
        "failed",
        1,
        "no data (it exited with code 1)",
    ),
    "it asks to be run again": (python("raise SystemExit(75)"), "requeue", 75, ""),
    "it is killed": (
        python("import os; os.kill(os.getpid(), 9)"),
        "failed",
        137,
        "it was killed by SIGKILL",
    ),
    "it does not exist": (("/no/such/program",), "failed", 127, "No such file or directory"),
}


@pytest.mark.parametrize(("argv", "outcome", "code", "because"), ENDS.values(), ids=ENDS.keys())
def test_how_a_command_ends(
    argv: tuple[str, ...], outcome: str, code: int, because: str, start: Start
) -> None:
    ended = start(argv).end()
    assert (ended.outcome, ended.exit_code) == (outcome, code)
    assert because == (ended.trouble.because if ended.trouble else "")


# Says what it was told, then leaves in its own good time.
POLITE = """
import os, signal, sys
def leave(number, frame):
    print("notice", open(os.environ["CODDL_NOTICE"]).read().strip(), flush=True)
    sys.exit(9)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
signal.pause()
"""
DEAF = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_a_restartable_command_is_told_why_it_must_leave(start: Start, tmp_path: Path) -> None:
    started = start(python(POLITE), tier="restartable")
    assert started.listener.next_line() == "stdout: ready"
    started.lead.suspend("a job of higher priority came")
    assert started.end().outcome == "retired"
    assert started.listener.next_line() == "coddl: stopping: a job of higher priority came"
    assert started.listener.next_line() == "stdout: notice a job of higher priority came"
    assert not list(tmp_path.rglob("notice*"))


def test_a_command_that_does_not_listen_is_killed_after_its_grace(start: Start) -> None:
    started = start(python(DEAF), tier="restartable", grace_s=0.1)
    assert started.listener.next_line() == "stdout: ready"
    started.lead.suspend("it is time")
    assert started.end().outcome == "retired"


def test_an_opaque_command_that_had_to_leave_is_run_again(start: Start) -> None:
    started = start(python(DEAF), grace_s=0.1)
    assert started.listener.next_line() == "stdout: ready"
    started.lead.suspend("the agent stops")
    assert started.end().outcome == "lost"


LATE: dict[str, Callable[[CommandRunner], None]] = {
    "to leave": lambda lead: lead.suspend("it is time"),
    "to end": lambda lead: lead.cancel(),
    "to fail": lambda lead: lead.fail(Trouble("it used too much memory", "b", "t")),
}


@pytest.mark.parametrize("ask", LATE.values(), ids=LATE.keys())
def test_who_has_ended_well_is_asked_in_vain(
    ask: Callable[[CommandRunner], None], start: Start
) -> None:
    started = start(python("pass"))
    until_s = time.monotonic() + PATIENCE_S
    while started.lead._code is None:  # its guard still looks for what it may have left
        assert time.monotonic() < until_s
        time.sleep(0.001)
    ask(started.lead)
    started.lead.force(at_all_costs=True)
    assert started.end().outcome == "succeeded"


def test_a_command_can_be_cancelled(start: Start) -> None:
    started = start(python(POLITE))
    assert started.listener.next_line() == "stdout: ready"
    started.lead.cancel()
    assert started.end() == RunEnded(7, 3, "cancelled")


def test_a_command_that_is_ended_before_it_has_begun_ends(start: Start) -> None:
    started = start(python(DEAF))
    started.lead.release()  # the guard reads this along with what it is to start
    assert started.lead.join(PATIENCE_S)
    assert started.listener.slots[-1] == ()
    assert started.listener.facts.qsize() <= 2  # it may have started; of its end nothing is told


def test_a_command_that_we_end_says_our_reason(start: Start) -> None:
    started = start(python(DEAF))
    assert started.listener.next_line() == "stdout: ready"
    trouble = Trouble("it used too much memory", "b", "t")
    started.lead.fail(trouble)
    assert started.end() == RunEnded(7, 3, "failed", trouble=trouble)


@pytest.mark.parametrize(
    ("code", "outcome"), [(0, "prechecked"), (1, "failed")], ids=["it passes", "it fails"]
)
def test_a_precheck_says_whether_the_job_may_start(code: int, outcome: str, start: Start) -> None:
    started = start(python(f"raise SystemExit({code})"), precheck=True)
    ended = started.end()
    assert ended.outcome == outcome
    assert started.listener.facts.empty()  # no word of a start: the job has not started
    if ended.trouble is not None:
        assert ended.trouble.what == "the precheck failed"


# Starts somebody who leaves group and session, says who, and is gone.
SCATTER = """
import os, time
said, say = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        os.write(say, b"!")
        time.sleep(600)
    os._exit(0)
os.read(said, 1)
time.sleep({stay_s})
"""


def test_the_seats_are_held_until_the_last_process_is_gone(start: Start) -> None:
    started = start(python(SCATTER.format(stay_s=0)))
    stray = int(started.listener.next_line().removeprefix("stdout: "))
    assert started.end().outcome == "succeeded"
    assert is_gone(stray)


def test_a_guard_that_is_killed_takes_its_command_along(start: Start) -> None:
    code = f"import os; print(os.getppid(), flush=True)\n{SCATTER.format(stay_s=600)}"
    started = start(python(code))
    pid = started.listener.pids.get(timeout=PATIENCE_S)
    guarding, stray = (int(started.listener.next_line().split()[1]) for _ in range(2))
    os.kill(guarding, signal.SIGKILL)
    assert started.end().outcome == "lost"
    assert is_gone(pid)
    assert is_gone(stray)


def test_a_guard_whose_agent_is_gone_leaves_nothing(tmp_path: Path) -> None:
    status, theirs = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-I", command_guard.__file__, str(theirs)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[theirs],
    ) as process_:
        os.close(theirs)
        assert process_.stdin is not None
        assert process_.stdout is not None
        argv = python(SCATTER.format(stay_s=600))
        request = {"argv": argv, "cwd": str(tmp_path), "env": dict(os.environ), "cpus": []}
        process_.stdin.write(json.dumps(request).encode() + b"\n")
        process_.stdin.flush()
        stray = int(process_.stdout.readline())
        process_.stdin.close()  # as the kernel does when an agent is killed
        assert process_.wait(PATIENCE_S) == 0
    os.close(status)
    wait_gone(stray)


def test_a_command_is_told_what_it_was_given(tmp_path: Path) -> None:
    run = run_of(tmp_path, ("x",))
    env = command_env(run, [AssignedSlot(4, "n", "GPU-a"), AssignedSlot(5, "n", "GPU-b")], 1234)
    want = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "PET_NNODES": "1",
        "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_PORT": "1234",
        "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "CODDL_JOB_ID": "7",
        "CODDL_ATTEMPT": "3",
        "CODDL_RESTART_REASON": "moved",
        "CODDL_CHECKPOINT_DIR": str(tmp_path / "7" / "checkpoints"),
        "CODDL_MIN_GPUS": "2",
    }
    assert {name: env[name] for name in want} == want


def test_a_command_runs_on_the_cores_of_its_seats(start: Start) -> None:
    started = start(python("import os; print(os.sched_getaffinity(0))"))
    assert started.listener.next_line() == "stdout: {0}"
    assert started.end().outcome == "succeeded"


# --- files of a command in a pool that keeps checkpoints at a URI ---------------------------------

COUNTS = """
import os, pathlib, signal, sys, time
kept = pathlib.Path(os.environ["CODDL_CHECKPOINT_DIR"]) / "deep" / "count"
kept.parent.mkdir(exist_ok=True)
count = int(kept.read_text()) + 1 if kept.exists() else 1
kept.write_text(str(count))
def leave(*_):
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("count", count, flush=True)
time.sleep(600)
"""


@pytest.fixture
def begin(tmp_path: Path, start: Start) -> Start:
    """Start commands on nodes with folders of their own."""

    def on(node: str, remote: FakeRemoteFiles, attempt: int) -> Started:
        folder = tmp_path / node
        folder.mkdir(exist_ok=True)
        about = {"tier": "restartable", "remote": remote, "attempt": attempt}
        return start(python(COUNTS), cwd=folder, **about)

    return on


def test_what_a_command_saves_goes_along_to_a_node_that_shares_no_files(begin: Start) -> None:
    remote = FakeRemoteFiles()
    for attempt, node in enumerate(("a", "b", "a"), start=1):
        run = begin(node, remote, attempt)
        assert run.listener.next_line() == f"stdout: count {attempt}"
        run.lead.suspend("it moves")
        assert run.end().outcome == "retired"
        assert remote.names() == [f"files-{attempt:06}.tar"]


def test_what_a_killed_agent_could_not_store_is_kept_on_its_node(begin: Start) -> None:
    remote = FakeRemoteFiles()
    first = begin("a", remote, 1)
    assert first.listener.next_line() == "stdout: count 1"
    first.lead.suspend("it moves")
    first.end()
    killed = begin("a", remote, 2)
    assert killed.listener.next_line() == "stdout: count 2"
    killed.lead.release()
    assert killed.lead.join(PATIENCE_S)
    again = begin("a", remote, 3)
    assert again.listener.next_line() == "stdout: count 3"
    elsewhere = begin("b", remote, 4)
    assert elsewhere.listener.next_line() == "stdout: count 2", "from what was stored"


def test_a_command_whose_files_can_not_be_stored_has_not_left(
    begin: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_runner, "STORE_AGAIN_S", 0.01)
    remote = FakeRemoteFiles()
    run = begin("a", remote, 1)
    assert run.listener.next_line() == "stdout: count 1"
    remote.is_away = True
    run.lead.suspend("it moves")
    while not isinstance(fact := run.listener.facts.get(timeout=PATIENCE_S), RunUnsaved):
        pass
    assert fact.trouble is not None
    assert "does not answer" in fact.trouble.because
    assert run.lead.is_unsaved
    assert run.listener.slots[-1] == (), "its GPUs are free"
    assert not run.lead.force(at_all_costs=False)
    remote.is_away = False
    assert run.end().outcome == "retired"
    assert remote.names() == ["files-000001.tar"]


def test_a_command_that_is_cancelled_stores_nothing(
    begin: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_runner, "STORE_AGAIN_S", 600.0)
    remote = FakeRemoteFiles()
    run = begin("a", remote, 1)
    assert run.listener.next_line() == "stdout: count 1"
    remote.is_away = True
    run.lead.suspend("it moves")
    while not isinstance(run.listener.facts.get(timeout=PATIENCE_S), RunUnsaved):
        pass
    run.lead.cancel()  # while it can't be stored
    assert run.end().outcome == "cancelled"
