"""Two tokens: one opens everything, the other what changes nothing. The page needs neither."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from coddl.core.errors import UserError
from coddl.server.auth import Tokens
from coddl.server.main import READ_TOKEN as READ_TOKEN_FILE
from coddl.server.main import ServeOptions, _tokens, token_of
from tests.server.harness import READ_TOKEN, TOKEN, LivePool, StubAgent, events_of
from tests.server.test_http import check_problem

READS = ["/access", "/pool", "/jobs", "/nodes", "/events", "/timeline", "/decisions", "/policy"]
CHANGES: dict[str, tuple[str, str, Any]] = {
    "a job": ("POST", "/jobs", {"script": "train.py"}),
    "a trial of a job": ("POST", "/jobs?dry_run=true", {"script": "train.py"}),
    "a cancel": ("POST", "/jobs/1:cancel", None),
    "other bounds": ("PATCH", "/jobs/1", {"gpus_max": 2}),
    "a drain": ("POST", "/nodes/n1:drain", None),
    "a policy": ("PUT", "/policy", {"policy": "fifo"}),
    "a folder": ("PUT", "/code/" + "0" * 64, None),
    "the folder of somebody": ("GET", "/code/" + "0" * 64, None),
    "an engine": ("DELETE", "/engine", None),
    "a replay of another name": ("POST", "/whatif/1", None),
}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePool]:
    with LivePool(tmp_path_factory.mktemp("live")) as pool:
        pool.submit(name="a")
        yield pool


@pytest.fixture(scope="module")
def reader(live: LivePool) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {READ_TOKEN}"}
    with httpx.Client(base_url=f"{live.url}/api/v1", headers=headers, timeout=60) as client:
        yield client


def test_each_token_is_told_what_it_may_do(live: LivePool, reader: httpx.Client) -> None:
    assert live.api("GET", "/access").json() == {"access": "full"}
    assert reader.get("/access").json() == {"access": "read"}


@pytest.mark.parametrize("path", READS)
def test_the_second_token_reads_all_there_is(
    live: LivePool, reader: httpx.Client, path: str
) -> None:
    answer = reader.get(path)
    assert answer.status_code == 200, answer.text
    if path != "/access":
        assert answer.json().keys() == live.api("GET", path).json().keys()


def test_it_reads_streams_metrics_and_the_description(live: LivePool, reader: httpx.Client) -> None:
    assert httpx.get(f"{live.url}/metrics", headers=reader.headers).status_code == 200
    assert httpx.get(f"{live.url}/openapi.json", headers=reader.headers).status_code == 200
    with reader.stream("GET", "/events", params={"watch": True}) as stream:
        first = next(events_of(stream.iter_lines()))
    assert json.loads(first["data"])["kind"] == "JobSubmitted"


@pytest.mark.parametrize("asked", CHANGES.values(), ids=CHANGES.keys())
def test_it_changes_nothing_and_says_why(
    live: LivePool, reader: httpx.Client, asked: tuple[str, str, Any]
) -> None:
    method, path, body = asked
    before = live.api("GET", "/events").json()
    problem = check_problem(reader.request(method, path, json=body), 403, "Forbidden")
    assert "may only read" in problem["because"]
    assert "`token`" in problem["try"]
    assert live.api("GET", "/events").json() == before


def test_no_agent_joins_with_it(live: LivePool) -> None:
    with pytest.raises(InvalidStatus) as caught:
        StubAgent(live.port, "n1", token=READ_TOKEN)
    assert caught.value.response.status_code == 403
    assert json.loads(caught.value.response.body)["code"] == "Forbidden"


GIVEN = {
    "the first": (Tokens("a", "b"), "a", "full"),
    "the second": (Tokens("a", "b"), "b", "read"),
    "another": (Tokens("a", "b"), "c", None),
    "none": (Tokens("a", "b"), "", None),
    "none, and there is no second": (Tokens("a"), "", None),
    "letters of another alphabet": (Tokens("a", "b"), "ä\ud800", None),
}


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN.keys())
def test_a_token_opens_what_it_is_for(given: tuple[Tokens, str, str | None]) -> None:
    tokens, token, access = given
    assert tokens.access_of(token) == access


def test_tokens_are_in_no_text(live: LivePool) -> None:
    assert "secret" not in repr(Tokens("secret", "secret too"))
    assert TOKEN not in live.api("GET", "/pool").text


def test_both_files_are_made_for_their_owner_alone_and_kept(tmp_path: Path) -> None:
    options = ServeOptions(state_dir=tmp_path)
    tokens = _tokens(options, tmp_path)
    assert tokens == _tokens(options, tmp_path)
    for name, token in (("token", tokens.full), (READ_TOKEN_FILE, tokens.read)):
        assert token_of(tmp_path, name) == token
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


def test_a_second_token_of_ones_own_must_be_private_and_another(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("for-reading\n")
    options = ServeOptions(state_dir=tmp_path, read_token_file=str(own))
    own.chmod(0o644)
    with pytest.raises(UserError, match="others can read"):
        _tokens(options, tmp_path)
    own.chmod(0o600)
    assert _tokens(options, tmp_path).read == "for-reading"
    assert not (tmp_path / READ_TOKEN_FILE).exists()
    own.write_text(token_of(tmp_path))
    with pytest.raises(UserError, match="may do everything"):
        _tokens(options, tmp_path)
    own.unlink()
    with pytest.raises(UserError, match="--read-token-file FILE"):
        _tokens(options, tmp_path)


# The dashboard's files.


@pytest.fixture
def built(tmp_path: Path) -> Path:
    folder = tmp_path / "dist"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html><script src=/assets/a-1.js></script>")
    (folder / "assets" / "a-1.js").write_text("console.log(1)")
    (folder / "secret").write_text("not one of the assets")
    return folder


def test_the_page_needs_no_token_and_may_load_nothing_from_elsewhere(
    built: Path, tmp_path: Path
) -> None:
    with (
        LivePool(tmp_path / "state", built=built) as live,
        httpx.Client(base_url=live.url) as open_,
    ):
        page, script = open_.get("/"), open_.get("/assets/a-1.js")
        assert page.headers["content-type"].startswith("text/html")
        assert "a-1.js" in page.text
        assert script.headers["content-type"].startswith("text/javascript")
        assert page.headers["cache-control"] == "no-cache"
        assert "immutable" in script.headers["cache-control"]
        for answer in (page, script):
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
        assert script.headers["content-encoding"] == "gzip"
        plain = open_.get("/assets/a-1.js", headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.text == script.text == "console.log(1)"
        assert open_.head("/").status_code == 200
        for path in ("/assets/no.js", "/assets/../secret", "/assets/%2e%2e/secret", "/assets/%00"):
            assert open_.get(path).status_code in (401, 404), path
        for path in ("/secret", "/index.html", "/api/v1/pool", "/docs", "/openapi.json"):
            assert open_.get(path).status_code == 401, path
        assert open_.post("/").status_code == 401
        refused = open_.get("/", headers={"Host": "evil.example"})
        check_problem(refused, 421, "HostRefused")


def test_a_page_that_was_not_built_says_how(tmp_path: Path) -> None:
    with LivePool(tmp_path, built=tmp_path / "nothing") as live:
        page = httpx.get(live.url)
        assert page.status_code == 200
        assert "make web" in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
