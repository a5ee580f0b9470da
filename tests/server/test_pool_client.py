"""`coddl.Client` against a real server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import coddl
from coddl.api.client import RequestRefused
from coddl.core.errors import UserError
from tests.server.harness import TOKEN, LivePool


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a script to submit."""
    path = tmp_path / "work"
    path.mkdir()
    (path / "train.py").write_text("print('hello')\n")
    return path


@pytest.fixture
def client(live: LivePool) -> Iterator[coddl.Client]:
    with coddl.Client(live.url, TOKEN) as found:
        yield found


def test_a_job_is_submitted_seen_and_changed(client: coddl.Client, folder: Path) -> None:
    job = client.submit("train.py", ["--epochs", 3], gpus="2..8", name="bert", folder=folder)
    assert (job.name, job.gpus_min, job.gpus_max) == ("bert", 2, 8)
    assert job.command == ["train.py", "--epochs", "3"]
    assert client.job("bert") == client.job(job) == client.job(job.id)
    assert client.resize(job, "1..4").gpus_max == 4
    assert client.resize(job, 2).gpus_min == 2
    assert client.suspend(job).state == "SUSPENDED"
    assert client.resume(job).state == "PENDING"
    assert client.cancel(job).state == "CANCELLED"
    assert client.jobs() == []
    assert [each.state for each in client.jobs(all=True)] == ["CANCELLED"]
    assert [each.state for each in client.wait(job)] == ["CANCELLED"]


def test_what_is_listed_is_given_as_columns(client: coddl.Client, folder: Path) -> None:
    for name in ("a", "b"):
        client.submit("train.py", name=name, folder=folder)
    jobs = client.jobs()
    assert jobs.columns("id", "name") == {"id": [2, 1], "name": ["b", "a"]}, "newest first"
    assert {len(column) for column in jobs.columns().values()} == {2}
    shown = jobs._repr_html_()
    assert "<th>name</th>" in shown
    assert "exit_code" not in shown, "it tells nothing of these jobs"
    assert repr(jobs).splitlines()[0].split() == ["id", "name", "user", "state", "gpus", "reason"]
    assert [line.split()[:2] for line in repr(jobs).splitlines()[1:]] == [["2", "b"], ["1", "a"]]
    assert (client.nodes().columns(), repr(client.nodes())) == ({}, "[]")


def test_many_jobs_come_page_by_page(
    client: coddl.Client, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coddl.api.pool_client.PAGE", 2)
    numbers = [client.submit("train.py", folder=folder).id for _ in range(5)]
    assert sorted(client.jobs().columns("id")["id"]) == numbers


def test_events_are_watched_as_they_happen(client: coddl.Client, folder: Path) -> None:
    first = client.submit("train.py", folder=folder)
    watched = client.watch()
    client.cancel(first)
    assert next(watched).kind == "JobCancelled"
    assert client.events(first)[0].kind == "JobSubmitted"


def test_the_pool_of_this_machine_is_found(live: LivePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODDL_SERVER", live.url)
    monkeypatch.setenv("CODDL_TOKEN", TOKEN)
    with coddl.Client() as client:
        assert client.policy().policy.startswith("afs-p")
        assert repr(client) == f"<coddl.Client of {live.url}>"


def test_errors_say_what_because_try(client: coddl.Client, folder: Path) -> None:
    with pytest.raises(RequestRefused, match="no job has that number"):
        client.job(7)
    with pytest.raises(UserError, match="there is no such file"):
        client.submit("other.py", folder=folder)
    with pytest.raises(UserError, match="neither a number nor a range"):
        client.resize(1, "many")
    with pytest.raises(UserError, match="no field"):
        client.submit("train.py", gpu=3, folder=folder)


def test_a_wait_that_takes_too_long_says_for_what(client: coddl.Client, folder: Path) -> None:
    client.submit("train.py", name="bert", folder=folder)
    with pytest.raises(TimeoutError, match="bert"):
        client.wait(within_s=0.0)


def test_what_jobs_have_held_and_printed_is_told(client: coddl.Client, folder: Path) -> None:
    job = client.submit("train.py", folder=folder)
    assert client.timeline().spans == []
    assert client.logs(job) == []
