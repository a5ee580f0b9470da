"""The client that the command line talks to a server with."""

import contextlib
import fcntl
import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coddl.api import client as api
from coddl.api.client import (
    Client,
    Credentials,
    RequestRefused,
    ServerAddress,
    Unreachable,
    find,
)
from coddl.api.server_events import events_of
from coddl.core.errors import UserError
from tests.cli.stub_pool import BREAK, HANG_UP, TOKEN, Reply, StubPool, problem


@pytest.fixture
def client(pool: StubPool) -> Iterator[Client]:
    with Client(ServerAddress(pool.url, TOKEN), pauses_s=(0.0, 0.0)) as found:
        yield found


@pytest.fixture
def nowhere() -> Iterator[Client]:
    """Give a client of a server that does not listen."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody else gets the port meanwhile
        with Client(ServerAddress(f"http://127.0.0.1:{taken.getsockname()[1]}", "")) as found:
            yield found


def gone() -> int:
    """Give the number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_server_is_found_by_flag_then_variable_then_file(tmp_path: Path, pool: StubPool) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    found = find("", "", env)
    assert (found.url, found.token, found.pid) == (pool.url, TOKEN, os.getpid())
    assert find("", "", env | {"CODDL_SERVER": "http://head:1"}).url == "http://head:1"
    both = env | {"CODDL_SERVER": "http://head:1", "CODDL_TOKEN": "other"}
    assert find("https://gpu/", "", both) == ServerAddress("https://gpu", "other")
    assert find("head:7433", "", env).url == "http://head:7433"


def test_a_token_comes_from_the_file_given_then_from_variables_then_from_the_state_folder(
    tmp_path: Path, pool: StubPool
) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    for name in ("given", "named"):
        (tmp_path / name).write_text(f"{name}\n")
        (tmp_path / name).chmod(0o600)
    assert find("", "", env).token == TOKEN
    env |= {"CODDL_TOKEN": "plain"}
    assert find("", "", env).token == "plain"
    env |= {"CODDL_TOKEN_FILE": str(tmp_path / "named")}
    assert find("", "", env).token == "named"
    assert find("", "", env, Credentials(str(tmp_path / "given"))).token == "given"
    (tmp_path / "given").chmod(0o640)
    with pytest.raises(UserError, match=r"others can read .*given: its mode is 640"):
        find("", "", env, Credentials(str(tmp_path / "given")))
    with pytest.raises(UserError, match="nowhere: No such file or directory"):
        find("", "", env, Credentials(str(tmp_path / "nowhere")))
    assert "plain" not in repr(find("", "", {"CODDL_TOKEN": "plain"} | env))
    assert pool.url in repr(find("", "", env))


def test_what_a_server_of_this_machine_has_left_says_who_verifies_it(tmp_path: Path) -> None:
    about = {"url": "https://head:1", "pid": 1, "advertised": "https://h:1", "tls_ca": "/ca.pem"}
    (tmp_path / "server.json").write_text(json.dumps(about))
    found = find("", str(tmp_path), {"CODDL_TLS_CA": "/of/another/pool.pem"})
    assert (found.ca, found.for_agents) == ("/ca.pem", "https://h:1")
    named = find("head:7433", str(tmp_path), {"CODDL_TLS_CA": "/ca.pem"})
    assert (named.url, named.ca) == ("https://head:7433", "/ca.pem")
    tunnel = find("http://127.0.0.1:1", str(tmp_path), {"CODDL_TLS_CA": "/ca.pem"})
    assert tunnel.url == "http://127.0.0.1:1"


def test_a_pool_of_another_user_is_told_as_such(tmp_path: Path, pool: StubPool) -> None:
    pool.announce(tmp_path / "theirs")
    (tmp_path / "theirs").chmod(0o000)
    own = os.geteuid()
    try:
        os.seteuid(65534 if own == 0 else own)  # root may enter any folder
        for env in ({}, {"CODDL_TOKEN": "t"}):
            with pytest.raises(UserError, match=r"theirs can't be used from here"):
                find("", str(tmp_path / "theirs"), env)
    finally:
        os.seteuid(own)
        (tmp_path / "theirs").chmod(0o700)


def test_a_state_folder_may_be_given(tmp_path: Path, pool: StubPool) -> None:
    pool.announce(tmp_path / "mine")
    assert find("", str(tmp_path / "mine"), {}).found == tmp_path / "mine" / "server.json"


@pytest.mark.parametrize(
    "url", ["ftp://head", "http://", "http://head:x", "head:99999", "http://:80"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UserError) as refused:
        find(url, "", {})
    assert str(refused.value) == (
        f"--server {url} can't be used\n"
        f'  because "{url}" is not the address of a server\n'
        "  try     --server http://127.0.0.1:7433"
    )


def test_a_request_says_who_asks_and_that_they_may(client: Client, pool: StubPool) -> None:
    pool.will("GET", "/jobs", {"items": []})
    assert client.get("/jobs", active=True, limit=3, cursor=None) == {"items": []}
    (asked,) = pool.asked
    assert asked.parameters == {"active": "true", "limit": "3"}
    assert asked.headers["authorization"] == f"Bearer {TOKEN}"
    assert asked.headers["coddl-user"] == api.user()[:64]


STATUSES = {404: 102, 401: 2, 409: 2, 422: 2, 500: 1, 507: 1}


@pytest.mark.parametrize(("status", "code"), STATUSES.items())
def test_a_refusal_is_told_in_the_servers_words(
    client: Client, pool: StubPool, status: int, code: int
) -> None:
    pool.will("GET", "/jobs/9", problem(status, "no job 9", "there are 3", "coddl ls"))
    with pytest.raises(RequestRefused) as refused:
        client.get("/jobs/9")
    assert str(refused.value) == "no job 9\n  because there are 3\n  try     coddl ls"
    assert (refused.value.exit_code, refused.value.code) == (code, "x")


def test_an_answer_of_something_else_is_told_as_such(client: Client, pool: StubPool) -> None:
    pool.will("GET", "/pool", Reply(502, {"oops": 1}))
    with pytest.raises(RequestRefused) as refused:
        client.get("/pool")
    assert str(refused.value) == (
        f"the request to {pool.url} failed\n  because it answered 502 Bad Gateway\n"
        "  try     --server with the address of a CoDDL server"
    )


def test_a_server_that_is_not_there(nowhere: Client) -> None:
    with pytest.raises(Unreachable) as refused:
        nowhere.get("/jobs")
    assert str(refused.value) == (
        "the server can't be reached\n"
        f"  because no answer from {nowhere.address.url} ([Errno 111] Connection refused)\n"
        "  try     coddl up, or --server URL"
    )
    assert refused.value.exit_code == 1


def test_a_file_of_a_server_that_was_killed_is_no_riddle(nowhere: Client) -> None:
    pid, url = gone(), nowhere.address.url
    with (
        Client(ServerAddress(url, "", pid, Path("server.json"))) as client,
        pytest.raises(Unreachable) as refused,
    ):
        client.get("/jobs")
    assert str(refused.value) == (
        "the server is not running\n"
        f"  because server.json names process {pid} at {url}, which has ended\n"
        "  try     coddl up"
    )


def test_a_server_that_starts_again_is_waited_for() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    said: list[str] = []
    with contextlib.ExitStack() as until_end:

        def come_back(text: str) -> None:
            said.append(text)
            again = until_end.enter_context(StubPool(port=port))
            again.will("POST", "/jobs/1:cancel", {"id": 1})

        address = ServerAddress(f"http://127.0.0.1:{port}", "")
        with Client(address, pauses_s=(0.01,), on_away=come_back) as client:
            assert client.post("/jobs/1:cancel") == {"id": 1}
    assert said == ["the server does not answer; waiting for it"]


def test_what_a_server_may_have_done_is_not_asked_for_twice(pool: StubPool) -> None:
    pool.will("POST", "/jobs/1:cancel", HANG_UP)
    pool.will("GET", "/jobs/1", HANG_UP, {"id": 1})
    with Client(ServerAddress(pool.url, TOKEN), pauses_s=(0.0,), on_away=lambda _: None) as client:
        with pytest.raises(Unreachable, match="gave no answer"):
            client.post("/jobs/1:cancel")
        assert len(pool.saw("POST", "/jobs/1:cancel")) == 1
        assert client.get("/jobs/1") == {"id": 1}


def test_who_keeps_a_pool_up_is_not_told_to_start_it(
    nowhere: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "KEPT_S", 0.0)
    address = ServerAddress(nowhere.address.url, "", gone(), tmp_path / "server.json")
    with (tmp_path / "pool.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (
            Client(address, on_away=lambda _: None) as client,
            pytest.raises(Unreachable) as refused,
        ):
            client.get("/jobs")
    assert refused.value.try_ == f"see {tmp_path}/output/server.log"


def test_a_job_is_handed_in_once_though_it_had_to_be_said_twice(
    client: Client, pool: StubPool
) -> None:
    pool.will("POST", "/jobs", HANG_UP, {"id": 1})
    assert client.submit({"script": "a.py"}) == {"id": 1}
    client.submit({"script": "a.py"})
    keys = [asked.headers["idempotency-key"] for asked in pool.saw("POST", "/jobs")]
    assert keys[0] == keys[1] != keys[2]


def test_a_server_that_gives_no_answer(client: Client, pool: StubPool) -> None:
    pool.will("GET", "/pool", HANG_UP)
    with pytest.raises(Unreachable) as refused:
        client.get("/pool")
    assert refused.value.what == "the server gave no answer"


def test_an_archive_is_asked_for_and_sent(client: Client, pool: StubPool) -> None:
    assert not client.has_code("ab")
    pool.will("HEAD", "/code/ab", None)
    pool.will("PUT", "/code/ab", None)
    assert client.has_code("ab")
    client.send_code("ab", io.BytesIO(b"tar"))
    assert pool.saw("PUT", "/code/ab")[0].body == b"tar"


def test_a_token_that_may_only_read_sends_no_archive(client: Client, pool: StubPool) -> None:
    pool.will("HEAD", "/code/ab", Reply(403, None))
    with pytest.raises(RequestRefused, match="may only read"):
        client.has_code("ab")


EVENTS = {
    "one": ('id: 7\ndata: {"a": 1}\n\n', [("7", "message", {"a": 1})]),
    "named": ('event: end\ndata: "x"\n\n', [("", "end", "x")]),
    "an end without more": ("event: end\n\n", [("", "end", "")]),
    "over lines": ("data: [1,\ndata: 2]\n\n", [("", "message", [1, 2])]),
    "plain text": ("data: hello\n\n", [("", "message", "hello")]),
    "comments keep the line alive": (": ping\n\n: ping\n\ndata: 1\n\n", [("", "message", 1)]),
    "half of one": ("data: 1\n\ndata: 2\n", [("", "message", 1)]),
}


@pytest.mark.parametrize(("text", "want"), EVENTS.values(), ids=EVENTS.keys())
def test_events_of_a_stream(text: str, want: list[tuple[str, str, object]]) -> None:
    found = [(id_, said.kind, said.data) for id_, said in events_of(iter(text.split("\n")[:-1]))]
    assert found == want


def stream(*numbers: int, end: bool = False) -> Reply:
    text = "".join(f"id: {number}\ndata: {json.dumps(number)}\n\n" for number in numbers)
    return Reply(200, text + "event: end\ndata: {}\n\n" * end)


def test_a_stream_that_breaks_off_goes_on_after_its_last_event(
    client: Client, pool: StubPool
) -> None:
    pool.will("GET", "/jobs/1/logs", stream(1, 2), stream(), stream(3, end=True))
    said = [each.data for each in client.watch("/jobs/1/logs", follow=True)]
    assert said == [1, 2, 3, {}]
    asked = pool.saw("GET", "/jobs/1/logs")
    assert [each.headers.get("last-event-id") for each in asked] == [None, "2", "2"]


def test_a_stream_that_had_nothing_to_say_yet_is_asked_for_again_too(
    client: Client, pool: StubPool
) -> None:
    pool.will("GET", "/jobs/1/logs", BREAK, HANG_UP, stream(1, end=True))
    assert [each.data for each in client.watch("/jobs/1/logs", follow=True)] == [1, {}]


def test_a_stream_that_is_refused_is_not_asked_for_again(client: Client, pool: StubPool) -> None:
    with pytest.raises(RequestRefused):
        next(client.watch("/jobs/1/logs"))
    assert len(pool.asked) == 1


def test_a_stream_of_a_server_that_never_was_there_fails_at_once(nowhere: Client) -> None:
    with pytest.raises(Unreachable):
        next(nowhere.watch("/events"))
