"""What has been, as REST shows it: decisions with what they saw, and who held which GPUs."""

from pathlib import Path
from typing import Any

from coddl.api import wire
from coddl.core.pool.records import RunEnded, RunPrepared
from tests.server.harness import LivePool, StubAgent, eventually
from tests.server.test_http import check_problem


def finish(agent: StubAgent, job: int) -> None:
    """Let a job that runs come to its end."""
    agent.expect_orders(lambda it: any(lead.job == job for lead in it.orders.leads))
    agent.report(RunEnded(job, 1, "succeeded", 9))
    agent.expect(wire.Ack)
    agent.expect_orders(lambda it: all(lead.job != job for lead in it.orders.leads))
    agent.hold()


def decisions(live: LivePool, **query: Any) -> dict[str, Any]:
    found: dict[str, Any] = live.api("GET", "/decisions", params=query).json()
    return found


def crowded(live: LivePool) -> StubAgent:
    """Fill two slots with two jobs, and let a third one wait."""
    agent = live.joined()
    eventually(lambda: live.client.get("/readyz").status_code == 200)
    for name in "abc":
        live.submit(name=name, gpus=1)
    return agent


def test_decisions_come_newest_first_and_in_pages(live: LivePool) -> None:
    crowded(live)
    all_of_them = decisions(live)
    numbers = [each["number"] for each in all_of_them["items"]]
    assert numbers == sorted(numbers, reverse=True)
    assert all_of_them["next"] is None
    first = decisions(live, limit=2)
    assert first["next"] == first["items"][-1]["number"]
    rest = decisions(live, before=first["next"])
    assert first["items"] + rest["items"] == all_of_them["items"]


def test_a_decision_says_what_it_changed_and_why(live: LivePool) -> None:
    crowded(live)
    newest, before = decisions(live, limit=2)["items"]
    assert (newest["cause"], newest["changes"], newest["waiting"]) == ("c submitted", [], 1)
    (change,) = before["changes"]
    assert (change["job"], change["name"], before["waiting"]) == (2, "b", 0)
    assert (change["gpus_before"], change["gpus"]) == (0, 1)
    assert change["reason"]


def test_what_a_decision_saw_is_put_together_from_records(live: LivePool) -> None:
    crowded(live)
    number = decisions(live)["items"][0]["number"]
    saw = live.api("GET", f"/decisions/{number}").json()["saw"]
    assert (saw["now_s"], saw["gpus_total"]) == (live.clock.now_s, 2)
    told = {each["name"]: (each["gpus"], each["gpus_after"]) for each in saw["jobs"]}
    assert told == {"a": (1, 1), "b": (1, 1), "c": (0, 0)}
    waiting = saw["jobs"][2]
    assert (waiting["attained_gpu_s"], waiting["remaining_iterations"]) == (0.0, None)
    assert "GPU" in waiting["reason"] or "slot" in waiting["reason"]


def test_a_suspended_job_was_not_seen_any_more(live: LivePool) -> None:
    crowded(live).report(RunPrepared(1, 1, None, 100, workers_max=1))
    eventually(lambda: live.api("POST", "/jobs/a:suspend").status_code == 202)

    def suspended() -> dict[str, Any] | None:
        newest: dict[str, Any] = decisions(live)["items"][0]
        return newest if newest["cause"] == "a suspended" else None

    change = eventually(suspended)["changes"][0]
    assert (change["job"], change["gpus_before"], change["gpus"]) == (1, 1, 0)
    live.submit(name="d", gpus=1)
    later = decisions(live, limit=1)["items"][0]
    saw = live.api("GET", f"/decisions/{later['number']}").json()["saw"]
    assert [each["name"] for each in saw["jobs"]] == ["b", "c", "d"]


def test_a_record_of_another_kind_is_no_decision(live: LivePool) -> None:
    live.joined()
    check_problem(live.api("GET", "/decisions/1"), 404, "NotFound")
    check_problem(live.api("GET", "/decisions/99999"), 404, "NotFound")


def test_the_timeline_has_the_jobs_and_the_capacity_of_an_interval(live: LivePool) -> None:
    agent = crowded(live)
    began_s = live.clock.now_s
    live.clock.turn(30.0)
    agent.beat()
    finish(agent, 1)
    ended_s = live.clock.now_s
    eventually(lambda: live.job("c")["gpus"] == 1)
    live.clock.turn(30.0)
    told = live.api("GET", "/timeline").json()
    assert (told["until_s"] - told["since_s"], told["truncated"]) == (3600.0, False)
    assert told["gpus"][-1] == {"at_s": began_s, "gpus": 2}
    spans = {span["name"]: (span["from_s"], span["to_s"]) for span in told["spans"]}
    assert spans == {"a": (began_s, ended_s), "b": (began_s, None), "c": (ended_s, None)}
    late = live.api("GET", "/timeline", params={"since_s": ended_s + 1}).json()
    assert [span["name"] for span in late["spans"]] == ["b", "c"]
    early = live.api("GET", "/timeline", params={"since_s": 0, "until_s": ended_s - 1}).json()
    assert [span["name"] for span in early["spans"]] == ["a", "b"]
    bad = live.api("GET", "/timeline", params={"since_s": 9, "until_s": 8})
    check_problem(bad, 422, "Invalid")


def test_a_job_has_a_timeline_of_its_own_which_survives_a_restart(
    live: LivePool, tmp_path: Path
) -> None:
    agent = crowded(live)
    live.clock.turn(30.0)
    agent.beat()
    finish(agent, 1)
    told = live.api("GET", "/jobs/a/timeline").json()
    (span,) = told["spans"]
    assert (told["since_s"], told["until_s"]) == (span["from_s"], span["to_s"])
    assert (span["job"], span["gpus"]) == (1, 1)
    with LivePool(tmp_path / "again", live.store) as again:
        assert again.api("GET", "/jobs/a/timeline").json() == told


def test_a_node_tells_how_its_gpus_are_used_with_its_beats(live: LivePool) -> None:
    agent = live.joined(slots=2)
    assert [slot["busy"] for slot in live.node("n1")["slots"]] == [None, None]
    agent.say(wire.Beat(number=1, gpus={1: wire.GpuUse(0.75, 3 << 30)}))
    agent.expect(wire.Renewed)
    first, second = live.node("n1")["slots"]
    assert (first["busy"], first["memory_used_bytes"]) == (None, None)
    assert (second["busy"], second["memory_used_bytes"]) == (0.75, 3 << 30)
    agent.close()
    eventually(lambda: live.node("n1")["slots"][1]["busy"] is None)


def test_a_beat_of_an_older_agent_tells_nothing_of_gpus() -> None:
    assert wire.from_agent('{"is":"beat","number":3}') == wire.Beat(number=3)
