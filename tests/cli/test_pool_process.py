"""The process that keeps a pool of this machine up, with a server and agents that do nothing."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coddl.api.tls import TlsFiles
from coddl.cli.engines import check_same_engine, named_engine, remember_engine
from coddl.cli.pool import checked_cluster, words_of_up
from coddl.cli.pool import down as stop
from coddl.core.errors import UserError
from coddl.core.node_count import NodeBounds
from coddl.engines import pool as pool_process
from coddl.engines.pool import (
    AnnouncedServer,
    PoolOptions,
    PoolProcess,
    down,
    make_folder,
    supervisor_of,
)
from coddl.engines.processes import Child, rotate
from coddl.engines.slurm.options import SlurmOptions
from tests.cli.stub_pool import Reply, StubPool
from tests.runtime.harness import ROOT, lives, wait_until

STUB = Path(__file__).with_name("stub_program.py")
KEEPER = f"""
import sys
from pathlib import Path
from coddl.core.errors import UserError
from coddl.core.node_count import NodeBounds
from coddl.engines.pool import PoolProcess, PoolOptions
from coddl.engines.sharing_options import SharingOptions
bounds = NodeBounds(0, 1, 1) if sys.argv[3] else None
options = PoolOptions(folder=Path(sys.argv[1]), port=int(sys.argv[2]), agents=2, slots=1,
                      sharing=SharingOptions(policy="afs-l"), engine=sys.argv[3], bounds=bounds)
try:
    sys.exit(PoolProcess(options, program=(sys.executable, {str(STUB)!r})).run())
except UserError as error:
    sys.exit(f"error: {{error}}")
"""


class Keeper:
    """A pool of stubs, kept up by a process of its own."""

    def __init__(self, folder: Path, port: int = 0, engine: str = "") -> None:
        self.folder = folder
        self._said = folder.with_name(f"said-{time.monotonic_ns()}")
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-c", KEEPER, str(folder), str(port), engine],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.DEVNULL, stderr=said,
            )  # fmt: skip

    def life(self) -> list[list[str]]:
        with contextlib.suppress(FileNotFoundError):
            return [line.split() for line in (self.folder / "life").read_text().splitlines()]
        return []

    def starts(self, name: str) -> list[list[str]]:
        return [words for words in self.life() if words[0].endswith(name) and "starts" in words]

    def pid(self, name: str) -> int:
        return int(self.starts(name)[-1][-1])

    def await_starts(self, name: str, count: int = 1) -> None:
        wait_until(lambda: len(self.starts(name)) == count, f"start {count} of {name}")

    def await_all(self) -> None:
        for name in ("server", "-1", "-2"):
            self.await_starts(name)

    def pids(self) -> list[int]:
        return [int(words[-1]) for words in self.life() if "starts" in words]

    def end(self) -> tuple[int, str]:
        """Wait for its end; give its exit code and its last words."""
        return self.process.wait(60), self._said.read_text()


def test_the_server_is_given_a_short_form_as_it_is_and_unnamed_agents_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked_cluster("2x4", ("head-1", "node-1")) == "2x4"
    told = capsys.readouterr().err
    assert "--cluster 2x4 does not name head-1: only its links apply" in told
    assert "names: [head-1]" in told
    monkeypatch.chdir(tmp_path)
    Path("site.yaml").write_text("nodes: [{names: [head], gpus: 4}]")
    assert checked_cluster("site.yaml", ("head",)) == str(tmp_path / "site.yaml")
    assert capsys.readouterr().err == ""


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Callable[..., Keeper]]:
    """Keep pools up; none is left."""
    kept: list[Keeper] = []

    def begin(folder: Path = tmp_path / "pool", port: int = 0, engine: str = "") -> Keeper:
        kept.append(Keeper(folder, port, engine))
        return kept[-1]

    yield begin
    for keeper in kept:
        keeper.process.kill()
        keeper.process.wait()
    pids = [pid for keeper in kept for pid in keeper.pids()]
    wait_until(lambda: not any(map(lives, pids)), "the end of all")


Keep = Callable[..., Keeper]


def test_it_starts_a_server_and_then_its_agents(keep: Keep, tmp_path: Path) -> None:
    pool = keep()
    pool.await_all()
    assert supervisor_of(tmp_path / "pool") == pool.process.pid
    (server,), (agent,) = pool.starts("server"), pool.starts("-1")
    assert " ".join(server[3:-1]) == f"--state-dir {tmp_path}/pool --port 0 --policy afs-l"
    assert "--server http://127.0.0.1:4321" in " ".join(agent)
    assert agent[-3:-1] == ["--slots", "1"]
    assert (tmp_path / "pool" / "token").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "pool").stat().st_mode & 0o777 == 0o700


def test_who_has_not_written_its_number_yet_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pool.lock"
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    path.write_text(f"{dead.pid}")  # of a pool that was killed
    with path.open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found: list[int | None] = []
        asks = threading.Thread(target=lambda: found.append(supervisor_of(tmp_path)))
        asks.start()
        time.sleep(0.1)
        lock.truncate(0)
        time.sleep(0.1)
        lock.write(f"{os.getpid()}".encode())
        lock.flush()
        asks.join(60)
    assert found == [os.getpid()]


def test_what_dies_is_started_again_where_it_was(keep: Keep) -> None:
    pool = keep()
    pool.await_all()
    os.kill(pool.pid("server"), signal.SIGKILL)
    pool.await_starts("server", 2)
    # At the port that agents know, and with the policy that it has by now.
    assert pool.starts("server")[1][5:-1] == ["--port", "4321"]
    os.kill(pool.pid("-2"), signal.SIGKILL)
    pool.await_starts("-2", 2)
    assert len(pool.starts("-1")) == 1


def test_at_the_end_agents_leave_before_the_server(keep: Keep, tmp_path: Path) -> None:
    pool = keep()
    pool.await_all()
    pool.process.terminate()
    assert pool.end() == (0, "")
    ends = [words[0] for words in pool.life() if words[1] == "ends"]
    assert ends[2] == "server"
    assert sorted(name[-2:] for name in ends[:2]) == ["-1", "-2"]
    assert supervisor_of(tmp_path / "pool") is None


def test_kill_9_of_it_ends_all_and_leaves_no_obstacle(keep: Keep, tmp_path: Path) -> None:
    pool = keep()
    pool.await_all()
    pids = pool.pids()
    pool.process.kill()
    wait_until(lambda: not any(map(lives, pids)), "the end of server and agents")
    assert supervisor_of(tmp_path / "pool") is None  # though its lock file is there
    again = keep()
    again.await_starts("server", 2)


def test_what_fails_at_its_first_start_ends_all_with_its_words(keep: Keep, tmp_path: Path) -> None:
    for name in ("server", f"{PoolOptions(folder=tmp_path, agents=2).nodes[1]}"):
        folder = tmp_path / name
        make_folder(folder)
        (folder / f"fail-{name}").touch()
        pool = keep(folder)
        words = "error: it cannot start\n  because it was told to fail\n  try     again\n"
        assert pool.end() == (1, words)
        assert not any(map(lives, pool.pids()))


@pytest.mark.parametrize("has_answered", [True, False])
def test_a_connector_that_its_engine_ends_is_started_again(
    keep: Keep, tmp_path: Path, has_answered: bool
) -> None:
    folder = tmp_path / "pool"
    make_folder(folder)
    (folder / "fail-connector").touch()
    with StubPool() as server:
        server.will("GET", "/engine", {"is_connected": has_answered})
        pool = keep(folder, server.http.server_port, "ray")
        if not has_answered:
            assert pool.end()[1].startswith("error: it cannot start\n")
            return
        wait_until(lambda: bool(server.saw("GET", "/engine")), "its end")
        (folder / "fail-connector").unlink()
        pool.await_starts("connector")


def test_a_folder_has_one_pool(keep: Keep, tmp_path: Path) -> None:
    first = keep()
    first.await_starts("server")
    assert keep().end()[1] == (
        f"error: a pool of {tmp_path}/pool can't be started\n"
        f"  because process {first.process.pid} already runs one\n"
        "  try     coddl down, or another --state-dir\n"
    )
    assert first.process.poll() is None


def test_down_ends_a_pool_and_waits_for_it(keep: Keep, tmp_path: Path) -> None:
    pool = keep()
    pool.await_all()
    assert down(tmp_path / "pool")
    assert not any(map(lives, pool.pids()))
    assert not down(tmp_path / "pool")
    assert not down(tmp_path / "nosuch")


@pytest.mark.parametrize(
    ("number", "is_impatient"), [(signal.SIGTERM, False), (signal.SIGINT, True)]
)
def test_only_a_second_ctrl_c_ends_what_saves_its_jobs(
    keep: Keep, tmp_path: Path, number: signal.Signals, is_impatient: bool
) -> None:
    pool = keep()
    pool.await_all()
    (tmp_path / "pool" / "slow").touch()

    def left(what: str) -> list[str]:
        return [words[0] for words in pool.life() if words[1] == what]

    pool.process.send_signal(number)
    wait_until(lambda: len(left("leaves")) == 2, "agents that leave")
    pool.process.send_signal(number)
    if is_impatient:
        assert pool.end()[0] == 0
        assert left("ends") == []
    else:
        # What it does with the second signal can't be seen; what it has done, at the end.
        (tmp_path / "pool" / "slow").unlink()
        assert pool.end()[0] == 0
        assert len(left("ends")) == 3


def test_down_says_what_it_waits_for(
    keep: Keep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, told = keep(), list[str]()
    pool.await_all()
    (slow := tmp_path / "pool" / "slow").touch()
    monkeypatch.setattr(pool_process, "TELL_S", 0.0)

    def tell(text: str) -> None:
        told.append(text)
        slow.unlink()

    assert down(tmp_path / "pool", tell)
    assert told == ["waiting for jobs to save their state"]


def test_down_does_not_end_a_pool_whose_jobs_can_not_be_saved(
    keep: Keep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = keep()
    pool.await_all()
    (slow := tmp_path / "pool" / "slow").touch()
    monkeypatch.setattr(pool_process, "TELL_S", 0.0)
    with StubPool() as server:
        server.announce(tmp_path / "pool")
        server.replies["GET", "/readyz"] = [Reply(200, {"unsaved": ['job 1 "a": no room']})]
        with pytest.raises(pool_process.UnsavedJobs, match='job 1 "a": no room') as refused:
            down(tmp_path / "pool", lambda _text: None)
    assert refused.value.exit_code == 1
    slow.unlink()
    assert pool.end()[0] == 0


@pytest.mark.parametrize(
    ("jobs", "told"),
    [
        ({"RUNNING": 1, "SUCCEEDED": 3}, "pool stopped; coddl up continues its jobs\n"),
        ({"SUCCEEDED": 3, "CANCELLED": 1}, "pool stopped\n"),
        (None, "pool stopped; coddl up continues its jobs\n"),  # who knows
    ],
)
def test_down_says_that_jobs_continue_where_there_are_some(
    keep: Keep,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    jobs: dict[str, int] | None,
    told: str,
) -> None:
    pool = keep()
    pool.await_all()
    with StubPool() as server:
        server.announce(tmp_path / "pool")
        if jobs is not None:
            server.will("GET", "/pool", {"jobs": jobs})
        stop(state_dir=str(tmp_path / "pool"))
    assert capsys.readouterr().out == told


def test_up_gives_the_words_of_what_could_not_start(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "raise SystemExit('error: no\\n  because so\\n  try     more')"]
    with pytest.raises(UserError) as refused:
        pool_process.up(PoolOptions(folder=tmp_path / "pool"), words, lambda: False)
    assert str(refused.value) == "no\n  because so\n  try     more"
    silent = [sys.executable, "-c", ""]
    with pytest.raises(UserError, match="the pool failed to start"):
        pool_process.up(PoolOptions(folder=tmp_path / "pool"), silent, lambda: False)


def test_restarts_come_slower_and_slower_until_one_holds(tmp_path: Path) -> None:
    child = Child("server", [sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "x.log")
    now_s, waits_s = 0.0, []
    for lived_s in (0.1, 0.1, 0.1, 1.0, 1.0, 1.0, 1.0, 61.0, 0.1):
        child.start(now_s)
        assert child.process is not None
        child.process.wait()
        now_s += lived_s
        assert child.ended(now_s) == 3
        waits_s.append(round(child.due_s - now_s, 1))
        now_s = child.due_s
    assert waits_s == [0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 30.0, 0.0, 0.5]
    assert child.ended(now_s) is None


def test_long_files_are_set_aside(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with log.open("ab") as writer:  # as a process that goes on writing
        for text in (b"one", b"two", b"three", b"four"):
            writer.write(text * 10)
            writer.flush()
            rotate(log, bytes_max=20)
        writer.write(b"x")
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["server.log", "server.log.1", "server.log.2"]
    assert log.read_bytes() == b"x"
    assert (tmp_path / "server.log.1").read_bytes() == b"four" * 10
    assert (tmp_path / "server.log.2").read_bytes() == b"three" * 10
    rotate(tmp_path / "nosuch.log")


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError) as refused:
        make_folder(tmp_path / "file" / "pool")
    assert str(refused.value) == (
        f"{tmp_path}/file/pool can't hold a pool\n"
        f"  because {tmp_path}/file/pool: Not a directory\n"
        "  try     another --state-dir"
    )


def test_a_lock_that_cannot_be_looked_at_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"pool\.lock: Not a directory"):
        supervisor_of(tmp_path / "file")


@pytest.mark.parametrize(
    ("mode", "text", "because"),
    [(0o644, "x", "others can read .*: its mode is 644"), (0o600, " \n", "is empty")],
)
def test_a_token_that_others_may_know_is_refused(
    tmp_path: Path, mode: int, text: str, because: str
) -> None:
    make_folder(tmp_path)
    make_folder(tmp_path)  # its own is good
    (tmp_path / "token").write_text(text)
    (tmp_path / "token").chmod(mode)
    with pytest.raises(UserError, match=because):
        make_folder(tmp_path)


def test_agents_have_names_of_their_own(tmp_path: Path) -> None:
    one, several = (PoolOptions(folder=tmp_path, agents=count).nodes for count in (1, 3))
    assert several == tuple(f"{one[0]}-{number}" for number in (1, 2, 3))


def test_what_a_pool_was_told_of_tls_reaches_its_processes(tmp_path: Path) -> None:
    tls = TlsFiles(Path("/head.pem"), Path("/head.key"), "/ca.pem")
    options = PoolOptions(folder=tmp_path, host="0.0.0.0", advertise="head", tls=tls, slots=1)
    given = "--advertise head --tls-cert /head.pem --tls-key /head.key --tls-ca /ca.pem"
    assert f"--host 0.0.0.0 {given}" in " ".join(words_of_up(options))
    pool = PoolProcess(options)
    again = pool._server_words(again_at="https://head:4321")
    assert f"--port 4321 --host 0.0.0.0 {given}" in " ".join(again)
    about = {"url": "https://head:1", "advertised": "https://head:1", "pid": 3}
    (tmp_path / "server.json").write_text(json.dumps({**about, "tls_ca": "/ca.pem"}))
    found = pool_process.server_of(tmp_path)
    assert found is not None
    assert "--tls-ca /ca.pem" in " ".join(pool._agent_words("n", found))
    assert "--server https://head:1" in " ".join(pool._agent_words("n", found))


def test_a_server_that_left_no_address(tmp_path: Path) -> None:
    assert pool_process.server_of(tmp_path) is None
    (tmp_path / "server.json").write_text("{")
    assert pool_process.server_of(tmp_path) is None
    (tmp_path / "server.json").write_text(json.dumps({"url": "http://x", "pid": 3}))
    assert pool_process.server_of(tmp_path) == AnnouncedServer("http://x", 3)


def test_no_moment_is_wrong_for_a_signal(keep: Keep) -> None:
    pool = keep()
    pool.await_all()
    for _ in range(300_000):
        pool.process.send_signal(signal.SIGCHLD)
    pool.process.terminate()
    assert pool.end() == (0, "")


def test_a_pool_that_had_an_engine_is_not_started_without_it(tmp_path: Path) -> None:
    bounds = NodeBounds(0, 4, 2, idle_s=60.0)
    slurm = SlurmOptions(partition="gpu", time="8:00:00")
    options = PoolOptions(
        folder=tmp_path, engine="slurm", bounds=bounds, slurm=slurm, host="0.0.0.0"
    )
    check_same_engine(options)
    check_same_engine(PoolOptions(folder=tmp_path))  # it has not started
    remember_engine(options)
    with pytest.raises(UserError) as refused:
        check_same_engine(PoolOptions(folder=tmp_path))
    words = "--engine slurm --nodes 0..4 --gpus-per-node 2 --idle 60s --partition gpu"
    assert refused.value.try_.startswith(f"coddl up {words} --time 8:00:00 --host 0.0.0.0; or")
    assert named_engine("none", str(tmp_path)) == ""
    check_same_engine(PoolOptions(folder=tmp_path))
