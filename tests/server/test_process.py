"""The server as a process: killed, told to stop, started twice, out of room."""

import json
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from coddl.server.main import token_of
from tests.server.harness import DEADLINE_S, eventually

ROOT = Path(__file__).parents[2]


class Process:
    """A server with a process of its own."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.folder = folder
        self.errors = folder.with_suffix(".log")
        with self.errors.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.server.run_server", str(folder), *more],
                cwd=ROOT,
                stderr=log,
            )

    def serves(self) -> "Process":
        """Wait until it decides."""
        eventually(self._is_ready, f"the server to be ready: {self.errors}")
        token = (self.folder / "token").read_text().strip()
        self.client = httpx.Client(
            base_url=self.about["url"],
            headers={"Authorization": f"Bearer {token}"},
            timeout=DEADLINE_S,
        )
        return self

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.errors.read_text()
        try:
            self.about: dict[str, Any] = json.loads((self.folder / "server.json").read_text())
            is_mine = self.about["pid"] == self.process.pid
            return is_mine and httpx.get(f"{self.about['url']}/readyz").status_code == 200
        except (FileNotFoundError, httpx.TransportError):
            return False

    def submit(self, name: str) -> httpx.Response:
        """Hand in a job."""
        return self.client.post("/api/v1/jobs", json={"script": "t.py", "name": name})

    def end(self, how: signal.Signals) -> int:
        """End it, and give its exit code."""
        self.process.send_signal(how)
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        """Make sure that it is gone."""
        if hasattr(self, "client"):
            self.client.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    started: list[Process] = []

    def start(*more: str) -> Process:
        started.append(Process(tmp_path / "state", *more))
        return started[-1]

    yield start
    for process in started:
        process.close()


def names(server: Process) -> set[str]:
    page = server.client.get("/api/v1/jobs", params={"limit": 1000}).json()
    return {job["name"] for job in page["items"]}


def test_what_was_answered_survives_kill_9_in_the_middle_of_submits(start: Any) -> None:
    server = start().serves()
    accepted: list[str] = []
    enough = threading.Event()

    def submit(who: int) -> None:
        for i in range(10_000):
            try:
                answer = server.submit(f"j-{who}-{i}")
            except httpx.TransportError:
                return
            assert answer.status_code == 201
            accepted.append(answer.json()["name"])
            if len(accepted) >= 40:
                enough.set()

    threads = [threading.Thread(target=submit, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    assert enough.wait(DEADLINE_S)
    assert server.end(signal.SIGKILL) == -signal.SIGKILL
    for thread in threads:
        thread.join(DEADLINE_S)
    again = start().serves()
    found = names(again)
    assert set(accepted) <= found
    assert len(found - set(accepted)) <= 4  # those that were under way, one for each thread
    assert again.submit("after").json()["id"] == len(found) + 1


def test_told_to_stop_it_leaves_no_address_behind(start: Any) -> None:
    server = start().serves()
    server.submit("a")
    assert server.about["pid"] == server.process.pid
    assert server.end(signal.SIGTERM) == 0
    assert not (server.folder / "server.json").exists()
    assert names(start().serves()) == {"a"}


def test_it_stops_although_somebody_watches(start: Any) -> None:
    server = start().serves()
    with server.client.stream("GET", "/api/v1/events?watch=true&after=0") as stream:
        assert stream.status_code == 200
        assert server.end(signal.SIGINT) == 0
    assert "Traceback" not in server.errors.read_text()


def test_secrets_are_for_the_owner_and_in_no_log(start: Any) -> None:
    server = start().serves()
    body = {"script": "t.py", "env": {"KEY": "very-secret"}}
    assert server.client.post("/api/v1/jobs", json=body).status_code == 201
    server.client.get("/api/v1/pool?token=very-secret")
    files = [server.folder, *server.folder.rglob("*")]
    assert [file.name for file in files if file.stat().st_mode & 0o077] == []
    server.end(signal.SIGTERM)
    log = server.errors.read_text()
    assert "server_started" in log
    assert "very-secret" not in log
    assert (server.folder / "token").read_text().strip() not in log
    assert all(json.loads(line)["level"] for line in log.splitlines())


def test_a_second_server_on_the_same_journal_is_refused_and_told_of_the_first(start: Any) -> None:
    first = start().serves()
    second = start()
    assert second.process.wait(DEADLINE_S) == 2
    log = second.errors.read_text()
    assert "error: the server cannot start" in log
    assert f"process {first.process.pid}" in log
    assert first.submit("a").status_code == 201


def test_a_port_in_use_is_told_so(start: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = start(str(port))
        assert server.process.wait(DEADLINE_S) == 2
    log = server.errors.read_text()
    assert f"can't listen on 127.0.0.1:{port}: Address already in use" in log
    assert "--port 0" in log


def test_files_that_a_killed_server_left_are_no_obstacle(start: Any) -> None:
    first = start().serves()
    first.submit("a")
    first.end(signal.SIGKILL)
    assert (first.folder / "server.json").exists()
    second = start().serves()
    assert names(second) == {"a"}
    assert second.about["pid"] == second.process.pid


def test_without_room_on_the_disk_it_refuses_stays_up_and_recovers(start: Any) -> None:
    server = start("0", str(400_000)).serves()
    kept, answer = 0, server.submit("j")
    while answer.status_code == 201:
        kept += 1
        assert kept < 2_000
        answer = server.submit("j")
    assert answer.status_code == 507
    problem = answer.json()
    assert problem["code"] == "JournalFull"
    assert "journal.db" in problem["because"]
    assert server.client.get("/healthz").status_code == 200
    assert server.client.get("/api/v1/pool").json()["jobs"] == {"PENDING": kept}
    while (again := server.submit("j")).status_code == 201:  # one that needs a few bytes less
        kept += 1
        assert kept < 2_000
    assert again.status_code == 507
    _raise_limit(server.process.pid)
    assert server.submit("more").json()["id"] == kept + 1
    server.end(signal.SIGKILL)
    restarted = start().serves()
    assert restarted.client.get("/api/v1/pool").json()["jobs"] == {"PENDING": kept + 1}


def _raise_limit(pid: int) -> None:
    """Give a process room: as if somebody had cleaned up the disk."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


def test_a_folder_that_cannot_be_made_is_told_so(start: Any, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file, of all things")
    server = start()
    assert server.process.wait(DEADLINE_S) == 2
    assert "File exists" in server.errors.read_text()


@pytest.mark.parametrize("left", [None, "", "\n"])
def test_a_token_is_never_empty(tmp_path: Path, left: str | None) -> None:
    if left is not None:
        (tmp_path / "token").write_text(left)  # as a full disk leaves it
    token = token_of(tmp_path)
    assert len(token) > 20
    assert token_of(tmp_path) == token
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
