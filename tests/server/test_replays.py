"""Replays run in a process of their own, one at a time, and end with the server."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.harness import READ_TOKEN, LivePool, eventually
from tests.server.test_http import check_problem

JCT = {"mean": 10.0, "median": 9.0, "p95": 20.0, "p99": None}
RUN = {
    "policy": "fifo",
    "gpus": 4,
    "jct_s": JCT,
    "makespan_s": 30.0,
    "utilisation": 0.5,
    "resizes": 3,
}
RESULT = {
    "since_s": 0.0,
    "until_s": 30.0,
    "jobs": 3,
    "left_out": [{"count": 1, "why": "it has not ended"}],
    "recorded": RUN,
    "runs": [
        RUN | {"is_replay": True, "mean_against_recorded": 1.01, "mean_against_replay": 1.0},
        RUN | {"is_replay": False, "mean_against_recorded": 0.8, "mean_against_replay": 0.79},
    ],
    "replay": {"mean_jct_error": 0.01, "median_job_error": 0.02, "within_5_percent": 1.0},
    "sentence": "the replay is good",
}
# Stands for `coddl whatif`: does what the first policy's name says, and shows its arguments.
PROGRAM = f"""
import json, os, sys, time
said = json.dumps
print(said({{"progress": 0.25}}), file=sys.stderr, flush=True)
if "--policy=srtf" in sys.argv:
    open("pid", "w").write(str(os.getpid()))
    while not os.path.exists("go"):
        time.sleep(0.01)
if "--policy=afs-l" in sys.argv:
    error = {{"what": "it can't be", "because": "no job has ended", "try": "tomorrow"}}
    print(said({{"error": error, "exit_code": 2}}), file=sys.stderr)
    sys.exit(2)
if "--policy=afs-p" in sys.argv:
    raise RuntimeError("a bug")
if "--policy=max-min" in sys.argv:
    print("{{}}")
    sys.exit(0)
result = {RESULT!r}
result["sentence"] = " ".join(sys.argv[1:])
print(said(result))
"""


@contextmanager
def replaying(folder: Path) -> Iterator[LivePool]:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    state = folder / "state"
    with LivePool(state, replay=(sys.executable, str(program), "--journal", "j.db")) as live:
        yield live


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LivePool]:
    with replaying(tmp_path) as pool:
        yield pool


def started(live: LivePool, **asked: Any) -> str:
    answer = live.api("POST", "/whatif", asked)
    assert answer.status_code == 202, answer.text
    name: str = answer.json()["id"]
    return name


def shown(live: LivePool, name: str) -> dict[str, Any]:
    found: dict[str, Any] = live.api("GET", f"/whatif/{name}").json()
    return found


def ended(live: LivePool, name: str) -> dict[str, Any]:
    eventually(lambda: shown(live, name)["state"] != "running")
    return shown(live, name)


def test_a_replay_is_told_what_was_asked_for_and_gives_its_result(live: LivePool) -> None:
    name = started(live, policies=["fifo", "fifo:backfill=true"], gpus=[4, 8], since_s=7.5)
    done = ended(live, name)
    assert (done["state"], done["progress"], done["trouble"]) == ("done", 1.0, None)
    assert done["result"]["sentence"] == (
        "--journal j.db --policy=fifo --policy=fifo:backfill=true --gpus=4 --gpus=8 "
        "--since=7.5 -o json"
    )
    assert done["result"] | {"sentence": RESULT["sentence"]} == RESULT


def test_one_runs_at_a_time_and_says_how_far_it_is(live: LivePool, tmp_path: Path) -> None:
    name = started(live, policies=["srtf"])
    eventually(lambda: shown(live, name)["progress"] == 0.25)
    problem = check_problem(live.api("POST", "/whatif", {"policies": ["fifo"]}), 409, "Conflict")
    assert name in problem["because"]
    (tmp_path / "state" / "go").touch()
    assert ended(live, name)["state"] == "done"
    assert ended(live, started(live, policies=["fifo"]))["state"] == "done"
    assert shown(live, name)["state"] == "done", "the one before can still be asked for"


TROUBLES = {
    "afs-l": ("it can't be", "no job has ended"),
    "afs-p": ("the replay failed", "RuntimeError: a bug"),
    "max-min": ("the replay's result cannot be read", "Field required"),
}


@pytest.mark.parametrize("policy", TROUBLES)
def test_what_goes_wrong_is_told_in_the_commands_own_words(live: LivePool, policy: str) -> None:
    failed = ended(live, started(live, policies=[policy]))
    assert (failed["state"], failed["result"]) == ("failed", None)
    what, because = TROUBLES[policy]
    assert failed["trouble"]["what"] == what
    assert because in failed["trouble"]["because"]
    assert failed["trouble"]["try"]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_ends_with_the_server(tmp_path: Path) -> None:
    with replaying(tmp_path) as live:
        started(live, policies=["srtf"])
        file = tmp_path / "state" / "pid"
        pid = int(eventually(lambda: file.read_text() if file.exists() else None))
        assert is_alive(pid)
    assert not is_alive(pid)


def test_it_has_a_limit_on_its_time(live: LivePool) -> None:
    live.server.replays._within_s = 0.2
    failed = ended(live, started(live, policies=["srtf"]))
    assert failed["trouble"]["because"] == "it took longer than 0.2 s"


def test_who_may_only_read_may_ask_for_one(live: LivePool) -> None:
    headers = {"Authorization": f"Bearer {READ_TOKEN}"}
    url = f"{live.url}/api/v1/whatif"
    answer = httpx.post(url, headers=headers, json={"policies": ["fifo"]})
    assert answer.status_code == 202
    shown_ = httpx.get(f"{url}/{answer.json()['id']}", headers=headers)
    assert shown_.json()["state"] in ("running", "done")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a file": ({"policies": ["/tmp/mine.py:Mine"]}, "mine.py"),
    "an unknown policy": ({"policies": ["x"]}, "named"),
    "an option": ({"policies": ["--report=/etc/passwd"]}, "named"),
    "no GPUs": ({"policies": ["fifo"], "gpus": [0]}, "gpus"),
    "another field": ({"policies": ["fifo"], "report": "x"}, "report"),
}


@pytest.mark.parametrize("asked", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_asked_for_is_checked_first(
    live: LivePool, asked: tuple[dict[str, Any], str]
) -> None:
    body, because = asked
    problem = check_problem(live.api("POST", "/whatif", body), 422, "Invalid")
    assert because in json.dumps(problem)


def test_an_unknown_replay_is_not_found(live: LivePool) -> None:
    check_problem(live.api("GET", "/whatif/abc"), 404, "NotFound")


def test_a_journal_in_memory_cannot_be_replayed(tmp_path: Path) -> None:
    with LivePool(tmp_path) as live:
        answer = live.api("POST", "/whatif", {"policies": ["fifo"]})
        assert "in memory" in check_problem(answer, 422, "Invalid")["because"]
