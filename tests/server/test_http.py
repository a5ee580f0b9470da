"""REST as programs see it: answers, pages, and errors that say what, because, try."""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from coddl import __version__
from coddl.api.rest import JobView, Problem
from coddl.api.spec import GPUS_MAX_UNSEEN
from coddl.server.code_store import CodeStore
from coddl.server.routes_pool import name_order
from coddl.server.store import RecordJob, StoredRecord
from coddl.server.store_memory import MemoryStore
from tests.server.harness import TOKEN, LivePool, eventually

JOB = {"script": "train.py"}


def check_problem(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    problem = Problem.model_validate(body)
    assert (problem.status, problem.code) == (status, code)
    assert problem.what
    assert problem.because
    assert problem.try_
    return body


class Bad(NamedTuple):
    """A request, and what it is answered."""

    method: str
    path: str
    status: int
    code: str
    because: str
    body: Any = None


BAD_JOBS: dict[str, tuple[Any, str]] = {
    "an unknown field": ({**JOB, "gpu": 2}, 'no field "gpu"'),
    "a range upside down": ({**JOB, "gpus": "8..2"}, '"8..2"'),
    "no script": ({"name": "a"}, "neither is given"),
    "a list": ([], "and is []"),
    "a name that is a number": ({**JOB, "name": "7"}, "not a number"),
    "code that is not there": ({**JOB, "code": "0" * 64}, "was not uploaded"),
}
BAD_REQUESTS = {
    **{
        name: Bad("POST", "/jobs", 422, "Invalid", because, body)
        for name, (body, because) in BAD_JOBS.items()
    },
    "no such job": Bad("GET", "/jobs/7", 404, "NotFound", "no job has that number"),
    "no job of that name": Bad("POST", "/jobs/x:cancel", 404, "NotFound", "that name"),
    "no such node": Bad("POST", "/nodes/x:drain", 404, "NotFound", "none yet"),
    "no such code": Bad("GET", "/code/" + "0" * 64, 404, "NotFound", "uploaded"),
    "no such path": Bad("GET", "/nope", 404, "NotFound", "/api/v1/nope"),
    "a wrong method": Bad("DELETE", "/jobs", 405, "MethodNotAllowed", "DELETE"),
    "an unknown policy": Bad("PUT", "/policy", 422, "Invalid", 'named "x"', {"policy": "x"}),
    "an unknown placement": Bad("PUT", "/policy", 422, "Invalid", "named", {"placement": "x"}),
    "a change of nothing": Bad(
        "PATCH", "/jobs/1", 422, "Invalid", "the request changes nothing", {}
    ),
    "a bad limit": Bad("GET", "/jobs?limit=0", 422, "Invalid", "limit"),
    "a bad state": Bad("GET", "/jobs?state=LOST", 422, "Invalid", "PENDING"),
    "a bad cursor": Bad("GET", "/jobs?cursor=x", 422, "Invalid", "cursor"),
}


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A pool that nobody changes."""
    with LivePool(tmp_path_factory.mktemp("live")) as pool:
        yield pool


@pytest.mark.parametrize("bad", BAD_REQUESTS.values(), ids=BAD_REQUESTS.keys())
def test_every_error_says_what_because_try(still: LivePool, bad: Bad) -> None:
    problem = check_problem(still.api(bad.method, bad.path, bad.body), bad.status, bad.code)
    assert bad.because in problem["because"]


def test_what_is_no_json_is_told_so(still: LivePool) -> None:
    headers = {"content-type": "application/json"}
    answer = still.api("POST", "/jobs", content=b'{"script":', headers=headers)
    assert "not JSON" in check_problem(answer, 422, "Invalid")["because"]


STRANGERS = {
    "no token": ({"Authorization": ""}, 401, "Unauthorized"),
    "another token": ({"Authorization": f"Bearer {TOKEN}x"}, 401, "Unauthorized"),
    "a password": ({"Authorization": f"Basic {TOKEN}"}, 401, "Unauthorized"),
    "bytes": ({"Authorization": b"Bearer \xff\xfe"}, 401, "Unauthorized"),
    "a name of somebody else's": ({"Host": "evil.example:80"}, 421, "HostRefused"),
}


@pytest.mark.parametrize(("headers", "status", "code"), STRANGERS.values(), ids=STRANGERS.keys())
def test_strangers_stay_outside(
    still: LivePool, headers: dict[str, str], status: int, code: str
) -> None:
    for path in ("/api/v1/pool", "/metrics", "/docs", "/openapi.json", "/nope"):
        problem = check_problem(still.client.get(path, headers=headers), status, code)
        assert TOKEN not in json.dumps(problem)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1234", "[::1]:99", "LOCALHOST:80"])
def test_loopback_has_several_names(still: LivePool, host: str) -> None:
    assert still.client.get("/api/v1/pool", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/version"])
def test_probes_need_no_token(still: LivePool, path: str) -> None:
    status = still.client.get(path, headers={"Authorization": ""}).status_code
    assert status == 200 or (path == "/readyz" and status == 503)  # as long as it compiles


def test_a_body_has_a_limit_whether_it_says_its_length_or_not(still: LivePool) -> None:
    large = b'{"script": "' + b"x" * (1 << 20) + b'"}'
    check_problem(still.api("POST", "/jobs", content=large), 413, "TooLarge")
    pieces = (large[i : i + 65536] for i in range(0, len(large), 65536))
    check_problem(still.api("POST", "/jobs", content=pieces), 413, "TooLarge")


def test_the_api_describes_itself(still: LivePool) -> None:
    spec = still.client.get("/openapi.json").json()
    assert spec["openapi"].startswith("3.1")
    assert "/api/v1/jobs/{job}:cancel" in spec["paths"]
    assert "JobRequest" in spec["components"]["schemas"]
    assert "JobView" in spec["components"]["schemas"]


def test_a_job_is_accepted_and_seen_by_number_and_name(live: LivePool) -> None:
    job = live.submit(name="bert", gpus="1..2", priority=3, user="ann")
    JobView.model_validate(job)
    assert (job["id"], job["state"], job["priority"], job["user"]) == (1, "PENDING", 3, "ann")
    assert job["code"] == "NodeDown"
    assert live.job(1) == live.job("bert")
    assert {**live.job(1), "speeds": None} == job, "which are shown for one job only"


def test_a_name_means_the_job_that_is_not_over_if_there_is_one(live: LivePool) -> None:
    first, second = live.submit(name="a")["id"], live.submit(name="a")["id"]
    refused = live.api("POST", "/jobs/a:cancel")
    assert refused.status_code == 409
    assert refused.json()["because"] == f"jobs {first} and {second} have that name"
    assert live.api("POST", f"/jobs/{second}:cancel").json()["state"] == "CANCELLED"
    assert live.job("a")["id"] == first
    live.api("POST", "/jobs/a:cancel")
    assert live.job("a")["id"] == second


def test_a_key_makes_a_submit_safe_to_repeat(live: LivePool) -> None:
    headers = {"Idempotency-Key": "k-1"}
    first = live.api("POST", "/jobs", JOB, headers=headers)
    live.clock.turn(5.0)
    live.submit(name="other")
    again = live.api("POST", "/jobs", {**JOB, "gpus": None}, headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    check_problem(
        live.api("POST", "/jobs", {**JOB, "priority": 1}, headers=headers), 422, "KeyReused"
    )
    assert [job["id"] for job in live.api("GET", "/jobs").json()["items"]] == [2, 1]


def test_pages_of_jobs_follow_one_another(live: LivePool) -> None:
    for i in range(7):
        live.submit(name=f"j{i}", user="ann" if i % 2 else "bob")
    seen, cursor, pages = [], None, 0
    while pages == 0 or cursor:
        params = {"limit": 3, **({"cursor": cursor} if cursor else {})}
        page = live.api("GET", "/jobs", params=params).json()
        seen += [job["id"] for job in page["items"]]
        cursor, pages = page["next"], pages + 1
    assert seen == [7, 6, 5, 4, 3, 2, 1]
    assert pages == 3


FILTERS = {
    "by user": ({"user": "ann"}, [4, 2]),
    "by name": ({"name": "j3"}, [3]),
    "by state": ({"state": "CANCELLED"}, [1]),
    "by states": ({"state": ["CANCELLED", "PENDING"]}, [4, 3, 2, 1]),
    "those that are active": ({"active": True}, [4, 3, 2]),
    "those that are over": ({"active": False}, [1]),
}


@pytest.fixture(scope="module")
def four_jobs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with LivePool(tmp_path_factory.mktemp("live")) as pool:
        for i in range(1, 5):
            pool.submit(name=f"j{i}", user="bob" if i % 2 else "ann")
        pool.api("POST", "/jobs/1:cancel")
        yield pool


@pytest.mark.parametrize(("params", "want"), FILTERS.values(), ids=FILTERS.keys())
def test_jobs_are_filtered(four_jobs: LivePool, params: dict[str, Any], want: list[int]) -> None:
    page = four_jobs.api("GET", "/jobs", params=params).json()
    assert [job["id"] for job in page["items"]] == want


def test_a_user_suspends_resumes_resizes_and_cancels(live: LivePool) -> None:
    live.submit(name="a", gpus="1..2")
    by = {"Coddl-User": "ann"}
    assert live.api("POST", "/jobs/a:suspend", headers=by).json()["state"] == "SUSPENDED"
    held = live.job("a")
    assert (held["code"], held["reason"]) == (
        "Held",
        "suspended by ann; coddl resume 1 continues it",
    )
    assert live.api("POST", "/jobs/a:resume").json()["state"] == "PENDING"
    check_problem(live.api("POST", "/jobs/a:resume"), 409, "Conflict")
    changed = live.api("PATCH", "/jobs/a", {"gpus_max": 4, "priority": 2}).json()
    assert (changed["gpus_min"], changed["gpus_max"], changed["priority"]) == (1, 4, 2)
    check_problem(live.api("PATCH", "/jobs/a", {"gpus_min": 9}), 422, "Infeasible")
    assert live.api("POST", "/jobs/a:cancel").status_code == 202
    check_problem(live.api("POST", "/jobs/a:cancel"), 409, "Conflict")
    texts = [event["text"] for event in live.api("GET", "/jobs/a/events").json()["items"]]
    assert "job 1 suspended by ann" in texts


def test_the_policy_is_shown_and_changed(live: LivePool) -> None:
    before = live.api("GET", "/policy").json()
    live.clock.turn(7.0)
    now = live.api("PUT", "/policy", {"policy": "fifo"}, headers={"Coddl-User": "ann"}).json()
    assert before["policy"] != "fifo"
    here = {"placement": before["placement"], "since_s": live.clock.wall_s(), "by": "ann"}
    assert now == {"policy": "fifo", **here, "trouble": None}
    assert live.api("GET", "/pool").json()["policy"] == "fifo"


def test_the_placement_is_changed_and_the_policy_stays(live: LivePool) -> None:
    before = live.api("GET", "/policy").json()
    now = live.api("PUT", "/policy", {"placement": "spread"}).json()
    assert (now["policy"], now["placement"]) == (before["policy"], "spread")
    live.api("PUT", "/policy", {"policy": "fifo"})
    assert live.api("GET", "/policy").json()["placement"] == "spread"


def test_what_can_never_run_is_refused_with_the_arithmetic(live: LivePool) -> None:
    live.joined(slots=2)
    answer = live.api("POST", "/jobs", {**JOB, "gpus": "3..8"})
    problem = check_problem(answer, 422, "Infeasible")
    assert problem["because"] == "it needs at least 3 CPU slots and the pool has 2 on 1 node"
    assert live.api("GET", "/jobs").json()["items"] == []


def test_a_dry_run_tells_what_would_happen_and_changes_nothing(live: LivePool) -> None:
    live.joined(slots=2)
    before = live.api("GET", "/events").json()
    preview = live.api("POST", "/jobs?dry_run=true", {**JOB, "name": "new"})
    assert preview.status_code == 200
    found = preview.json()
    assert (found["slots_total"], found["slots_free"]) == (2, 2)
    assert (found["job"]["name"], found["job"]["gpus_before"], found["job"]["gpus"]) == (
        "new",
        0,
        1,
    )
    assert found["others"] == []
    assert live.api("GET", "/events").json() == before
    check_problem(live.api("POST", "/jobs?dry_run=1", {**JOB, "gpus": 3}), 422, "Infeasible")


def test_an_elastic_script_may_have_all_devices_unless_it_says_otherwise(live: LivePool) -> None:
    early = live.submit(name="early")
    live.joined(slots=3)
    assert live.submit(name="late")["gpus_max"] == 3
    assert early["gpus_max"] == GPUS_MAX_UNSEEN
    assert live.api("POST", "/jobs", {"command": "sleep 5"}).json()["gpus_max"] == 1


def test_events_tell_what_happened_from_a_number_on(live: LivePool) -> None:
    live.submit(name="a", env={"TOKEN": "secret-value"})
    live.submit(name="b")
    page = live.api("GET", "/events").json()
    assert [event["number"] for event in page["items"]] == [1, 2, 3, 4]
    assert page["next"] == 4
    assert page["items"][0]["kind"] == "JobSubmitted"
    assert page["items"][1]["detail"]["waiting"]["1"][0] == "NodeDown"
    assert "rows" not in page["items"][1]["detail"]
    assert "secret-value" not in json.dumps(page)
    assert "TOKEN" in page["items"][0]["detail"]["spec"]["launch"]["env"]
    rest = live.api("GET", "/events?after=2&limit=1").json()
    assert [event["number"] for event in rest["items"]] == [3]
    newest = live.api("GET", "/events?limit=1").json()
    assert [event["number"] for event in newest["items"]] == [4]
    of_b = live.api("GET", "/jobs/b/events?after=0").json()
    assert [event["number"] for event in of_b["items"]] == [3, 4]
    assert live.api("GET", "/events?after=4").json()["next"] == 4


def test_events_go_on_after_a_record_that_cannot_be_read(live: LivePool) -> None:
    number = live.submit(name="a")["id"]
    lines = live.api("GET", "/events").json()["items"]
    live.store.append(
        [StoredRecord(len(lines) + 1, 0.0, "JobHeld", '{"job":')],
        [RecordJob(len(lines) + 1, number)],
        [],
    )
    for path in ("/events", f"/jobs/{number}/events"):
        shown = live.api("GET", path).json()["items"][-1]
        assert (shown["kind"], shown["detail"]) == ("Unreadable", {"kind": "JobHeld"})
        assert shown["text"].startswith(
            f"this event cannot be shown: record {len(lines) + 1} (JobHeld): "
        )
    assert live.api("GET", f"/jobs/{number}/explain").json()["story"]


def test_explain_says_why_a_job_waits_and_tells_its_story(live: LivePool) -> None:
    live.submit(name="a", step_s={"1": 2.0})
    told = live.api("GET", "/jobs/a/explain").json()
    assert told["code"] == "NodeDown"
    assert told["sentence"] == told["job"]["reason"]
    assert told["position"] == 1
    assert told["speeds"][0] == {
        "gpus": 1,
        "step_s": 2.0,
        "speedup": 1.0,
        "source": "submitted",
        "iterations": 0,
        "predicted_s": None,
        "error": None,
        "relative_sd": None,
        "is_trial": False,
    }
    assert live.api("GET", "/jobs/a").json()["speeds"] == told["speeds"]
    assert live.api("GET", "/jobs").json()["items"][0]["speeds"] is None
    assert [line["number"] for line in told["story"]] == [1, 2]


def test_a_folder_is_kept_under_its_hash_and_only_whole(live: LivePool) -> None:
    archive = b"not even an archive" * 1000
    name = hashlib.sha256(archive).hexdigest()
    assert live.api("HEAD", f"/code/{name}").status_code == 404
    check_problem(live.api("PUT", f"/code/{name}", content=archive[:-1]), 422, "WrongHash")
    assert live.api("HEAD", f"/code/{name}").status_code == 404
    pieces = (archive[i : i + 1000] for i in range(0, len(archive), 1000))
    assert live.api("PUT", f"/code/{name}", content=pieces).status_code == 201
    assert live.api("PUT", f"/code/{name}", content=archive).status_code == 200
    assert live.api("HEAD", f"/code/{name}").status_code == 200
    assert live.api("GET", f"/code/{name}").content == archive
    assert live.submit(code=name)["id"] == 1


@pytest.mark.parametrize("name", ["..%2f..%2ftoken", "x", "A" * 64])
def test_what_is_no_hash_names_no_folder(still: LivePool, name: str) -> None:
    assert still.api("GET", f"/code/{name}").status_code == 404
    assert still.api("PUT", f"/code/{name}", content=b"x").status_code in (404, 422)


def test_an_archive_has_a_limit(live: LivePool) -> None:
    live.server.archives._bytes_max = 1_000_000
    name = hashlib.sha256(b"x" * 2_000_000).hexdigest()
    answer = live.api("PUT", f"/code/{name}", content=b"x" * 2_000_000)
    check_problem(answer, 413, "TooLarge")
    assert live.api("HEAD", f"/code/{name}").status_code == 404


def test_prometheus_sees_jobs_and_devices(live: LivePool) -> None:
    live.joined(slots=3)
    live.submit(name="a", gpus=2)
    live.submit(name="b", gpus=2)
    text = live.client.get("/metrics").text
    for line in (
        'coddl_jobs{queue="default",state="STARTING"} 1.0',
        'coddl_jobs{queue="default",state="PENDING"} 1.0',
        'coddl_queue_pending_jobs{queue="default"} 1.0',
        'coddl_job_gpus{job="1",name="a"} 2.0',
        'coddl_node_gpus{node="n1",state="free"} 1.0',
        'coddl_node_gpus{node="n1",state="alloc"} 2.0',
        'coddl_scheduler_decisions_total{action="start",policy="afs-p:tie=keep,lease_h=0.25"} 1.0',
        "coddl_job_wait_seconds_count 1.0",
        f'coddl_build_info{{version="{__version__}"}} 1.0',
    ):
        assert line in text.splitlines(), text


def test_a_full_journal_is_told_changes_nothing_and_heals_by_itself(live: LivePool) -> None:
    assert isinstance(live.store, MemoryStore)
    live.submit(name="a")
    before = live.api("GET", "/events").json()
    live.store.is_full = True
    problem = check_problem(live.api("POST", "/jobs", JOB), 507, "JournalFull")
    assert problem["what"] == "the journal cannot be written to"
    assert live.client.get("/healthz").status_code == 200
    assert live.api("GET", "/events").json() == before
    assert len(live.api("GET", "/jobs").json()["items"]) == 1
    live.store.is_full = False
    assert live.submit(name="b")["id"] == 2


def test_a_bug_is_answered_without_its_story_and_found_by_its_id(
    live: LivePool, tmp_path: Path
) -> None:
    class Broken(CodeStore):
        def has(self, name: str) -> bool:
            raise AssertionError(f"a secret of the implementation, and {name}")

    live.server.archives = Broken(tmp_path / "broken")
    answer = live.api("POST", "/jobs", {**JOB, "code": "0" * 64})
    problem = check_problem(answer, 500, "Internal")
    assert problem["instance"] in problem["try"]
    assert "secret" not in answer.text
    assert live.submit(name="next")["id"] == 1


def test_the_server_is_ready_when_it_can_decide(live: LivePool) -> None:
    eventually(lambda: live.client.get("/readyz").status_code == 200)
    assert live.client.get("/readyz").json() == {
        "ready": True,
        "waits_for": [],
        "problems": [],
        "unsaved": [],
    }


def test_nodes_are_listed_as_people_count() -> None:
    names = ["node-10", "node-2", "a100-b", "node-1", "a9", "rack2-node10", "rack2-node9", "7"]
    want = ["7", "a9", "a100-b", "node-1", "node-2", "node-10", "rack2-node9", "rack2-node10"]
    assert sorted(names, key=name_order) == want
