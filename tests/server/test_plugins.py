"""A server with plug-ins: what REST offers, shows and refuses of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coddl.core.pool.records import Aimed, JobSubmitted, NodeJoined, RunStepped
from coddl.core.registry import Registry
from coddl.plugins import registry_of
from coddl.server.journal import Journal
from coddl.server.store_memory import MemoryStore
from coddl.server.store_sql import SqlStore, sqlite_url
from tests.server.harness import LivePool, eventually
from tests.server.records import CPU, spec
from tests.server.test_process import Process

# Fails while the file `broken` lies beside it.
PLUGIN = '''
from dataclasses import dataclass
from pathlib import Path

from coddl.core.policies.max_min import MaxMin

BROKEN = Path(__file__).with_name("broken")

@dataclass(frozen=True)
class Mine:
    """Shares GPUs evenly."""

    times: int = 1

    def __call__(self, snapshot):
        if BROKEN.exists():
            raise KeyError(7)
        return MaxMin()(snapshot)
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN)
    return path


@pytest.fixture
def plugged(tmp_path: Path, file: Path) -> Iterator[LivePool]:
    with LivePool(tmp_path / "state", registry=registry_of([file])) as pool:
        yield pool


def problems(pool: LivePool) -> list[str]:
    found: list[str] = pool.client.get("/readyz").json()["problems"]
    return found


def choose(pool: LivePool, policy: str) -> Any:
    return pool.api("PUT", "/policy", {"policy": policy})


def test_what_plug_ins_offer_is_listed_and_followed(plugged: LivePool) -> None:
    (offered,) = plugged.api("GET", "/plugins").json()["policies"]
    assert (offered["name"], offered["summary"]) == ("mine.py:Mine", "Shares GPUs evenly.")
    assert offered["parameters"][0]["name"] == "times"
    chosen = choose(plugged, "mine.py:Mine:times=2").json()
    assert (chosen["policy"], chosen["trouble"]) == ("mine.py:Mine:times=2", None)
    agent = plugged.joined()
    plugged.submit(name="a")
    agent.expect_orders(lambda told: told.orders.leads)
    assert plugged.job("a")["gpus"] == 1


def test_no_client_has_a_file_loaded(plugged: LivePool, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'was-run')!r}, 'w')\n{PLUGIN}")
    for name in (f"{tmp_path / 'evil.py'}:Mine", "evil.py:Mine", "../evil.py:Mine"):
        refused = choose(plugged, name)
        assert refused.status_code == 422, refused.text
        assert plugged.api("PUT", "/policy", {"placement": name}).status_code == 422
    assert not (tmp_path / "was-run").exists()


def test_a_policy_that_fails_in_a_trial_is_not_chosen(plugged: LivePool, tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    refused = choose(plugged, "mine.py:Mine")
    assert refused.status_code == 422
    assert "KeyError: 7 (mine.py, line 17)" in refused.json()["because"]
    assert plugged.api("GET", "/policy").json()["policy"].startswith("afs-p")


def test_a_policy_that_fails_later_is_told_and_counted_until_it_is_mended(
    plugged: LivePool, tmp_path: Path
) -> None:
    choose(plugged, "mine.py:Mine")
    agent = plugged.joined()
    plugged.submit(name="a")
    agent.expect_orders(lambda told: told.orders.leads)
    (tmp_path / "broken").touch()
    assert plugged.submit(name="b")["code"] == "PolicyFailed"
    words = "policy mine.py:Mine failed: KeyError: 7 (mine.py, line 17)"
    assert problems(plugged) == [f"{words}; jobs keep their CPU slots"]
    assert plugged.client.get("/readyz").json()["unsaved"] == []
    trouble = plugged.api("GET", "/policy").json()["trouble"]
    assert trouble["because"] == "KeyError: 7 (mine.py, line 17)"
    event = plugged.api("GET", "/events").json()["items"][-1]
    assert (event["kind"], words in event["text"]) == ("DecisionFailed", True)
    told = [line["text"] for line in plugged.api("GET", "/jobs/b/explain").json()["story"]]
    assert any("wait, PolicyFailed" in text for text in told)
    metrics = plugged.client.get("/metrics").text
    assert 'coddl_policy_failures_total{policy="mine.py:Mine"} 1.0' in metrics
    assert "coddl_internal_errors_total 0.0" in metrics
    assert plugged.job("a")["gpus"] == 1
    choose(plugged, "max-min")
    assert problems(plugged) == []
    assert eventually(lambda: plugged.job("b")["gpus"] == 1, "job b to get a slot")


def test_a_server_without_its_plug_in_says_so_and_takes_nothing_away(
    tmp_path: Path, file: Path
) -> None:
    store = MemoryStore()
    with LivePool(tmp_path / "state", store, registry=registry_of([file])) as before:
        choose(before, "mine.py:Mine")
        agent = before.joined()
        before.submit(name="a")
        agent.expect_orders(lambda told: told.orders.leads)
    with LivePool(tmp_path / "state", store, registry=Registry()) as after:
        agent = after.joined()
        (problem,) = eventually(lambda: problems(after), "the problem to be told")
        assert "the server was started without the plug-in mine.py" in problem
        assert after.job("a")["gpus"] == 1
        assert after.api("GET", "/policy").json()["policy"] == "mine.py:Mine"
        assert after.submit(name="b")["code"] == "PolicyFailed"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    started: list[Process] = []

    def start(*plugins: Path) -> Process:
        started.append(Process(tmp_path / "state", "0", "", *map(str, plugins)))
        return started[-1]

    yield start
    for process in started:
        process.close()


def test_a_server_is_refused_a_file_that_can_not_be_loaded(start: Any, tmp_path: Path) -> None:
    server = start(tmp_path / "nosuch.py")
    assert server.process.wait(60) == 2


def test_a_server_that_has_jobs_starts_without_a_file_that_was_broken(
    start: Any, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    journal = Journal(SqlStore(sqlite_url(tmp_path / "state" / "journal.db")))
    running = (
        NodeJoined("n1", "boot", "host", CPU, (0, 1)),
        JobSubmitted(1, spec("a")),
        Aimed(1, 1, 1, (0,), "n1", "it may"),
        RunStepped(1, 1, 1),
    )
    journal.append(running, [], 1_000.0)
    journal.close()
    server = start(tmp_path / "nosuch.py").serves()
    (problem,) = server.client.get("/readyz").json()["problems"]
    assert f'plug-in "{tmp_path / "nosuch.py"}" cannot be used' in problem
