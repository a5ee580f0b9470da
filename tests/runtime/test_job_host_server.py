"""A job that spans nodes, with stubs: which slots they get, and who is left after a death."""

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coddl.runtime.supervisor import job_host, job_hosts, pool_job
from coddl.runtime.supervisor.job_status import RETIRED, SUPERSEDED
from coddl.runtime.supervisor.slots import SlotProcess
from tests.runtime.harness import ROOT, STUB, fake_torch, lives, unwritable, wait_until
from tests.runtime.nodes import JOB, Lead, Pool, environment_in

__all__ = ["fake_torch"]  # fixtures

Open = Callable[..., Pool]


@pytest.fixture
def pool(tmp_path: Path, fake_torch: Path) -> Iterator[Open]:
    opened: list[Pool] = []

    def begin(options: dict[str, Any] | None = None, **more: Any) -> Pool:
        environment = environment_in(tmp_path, f"{fake_torch}:{ROOT}")
        opened.append(Pool(environment, (str(STUB), json.dumps(options or {})), **more))
        return opened[-1]

    yield begin
    for each in opened:
        each.close()


def vanish(lead: Lead) -> None:
    """End a lead as if its thread had been killed: it hangs up, and says nothing to anybody."""
    lead.supervisor._loop.post(lambda: vanished(lead))
    assert lead.end() == 99


def vanished(lead: Lead) -> None:
    lead.supervisor.workers.abandon()
    lead.supervisor.job_status.exit_code = 99


def test_a_job_grows_over_two_nodes_and_ends(pool: Open) -> None:
    nodes = pool({"steps": 1500})
    lead = nodes.lead()
    nodes.assign(lead, 1, 0)
    assert lead.wait_size(1)["slots"] == [0]
    nodes.assign(lead, 1, 2)
    assert lead.wait_size(3)["slots"] == [0, 4, 5]
    assert lead.end() == 0
    nodes.wait_empty()
    assert lead.told("prepared")[0]["virtual_nodes"] == 8
    assert not list(nodes.environment.folder.glob("*.ckpt"))
    assert "ended at 1500" in nodes.printed()
    ranks = {(worker, rank) for _, worker, rank, *_ in nodes.nodes[1].agent.logs}
    assert ranks == {(1, 1), (2, 2)}


def test_nothing_starts_before_the_first_aim(pool: Open) -> None:
    nodes = pool()
    lead = nodes.lead()
    lead.supervisor.interrupt()
    assert lead.end() == 130
    assert not lead.told("starting")


def test_a_job_moves_to_another_node_than_its_lead(pool: Open) -> None:
    nodes = pool()
    lead = nodes.lead()
    nodes.assign(lead, 2, 0)
    lead.wait_size(2)
    nodes.assign(lead, 0, 2)
    assert lead.wait("moved")["slots"] == [4, 5]
    wait_until(lambda: not nodes.nodes[0].agent.held, "an empty node")
    held = nodes.nodes[1].agent.held
    assert {slot: (h.job, h.attempt) for slot, h in held.items()} == {4: (JOB, 1), 5: (JOB, 1)}
    assert all(lives(h.pid or 0) for h in held.values())


def test_progress_tells_the_time_of_an_iteration_at_this_size(pool: Open) -> None:
    nodes = pool({"step_s": 0.01})
    lead = nodes.lead()
    nodes.assign(lead, 1)
    progress = lead.wait("progress", lambda event: event["iterations_at_size"] > 10)
    assert 0.005 < progress["step_s"] < 1.0
    nodes.assign(lead, 2)
    lead.wait_size(2)
    later = lead.wait("progress", lambda event: event["size"] == 2)
    assert later["iterations_at_size"] < later["step"]


def test_a_job_retires_and_goes_on_elsewhere(pool: Open) -> None:
    nodes = pool()
    lead = nodes.lead(0)
    nodes.assign(lead, 0, 2)
    lead.wait_step(20)
    lead.supervisor.retire()
    assert lead.end() == RETIRED
    ended = lead.told("ended")[0]
    assert (ended["state"], ended["saved_step"]) == ("SUSPENDED", ended["step"])
    assert lead.told("suspended")[0]["durable"]
    nodes.wait_empty()
    again = nodes.lead(1, attempt=2)
    nodes.assign(again, 2, 0)
    origin = again.wait("origin")
    assert (origin["where"], origin["step"]) == ("checkpoint", ended["step"])
    again.wait_step(ended["step"] + 1)


def test_a_job_that_can_not_be_saved_trains_on_and_retires_when_it_can(
    pool: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coddl.runtime.supervisor.suspension.SAVE_AGAIN_S", 0.1)
    nodes = pool()
    lead = nodes.lead(0)
    nodes.assign(lead, 0, 1)
    lead.wait_step(20)
    with unwritable(nodes.environment.folder):
        lead.supervisor.retire()
        lead.wait("unsaved")
        step = lead.wait("regrouped")["step"]
        lead.wait_step(step + 10)
        assert lead.supervisor.is_unsaved
    assert lead.end() == RETIRED
    ended = lead.told("ended")[0]
    assert ended["saved_step"] == ended["step"] > step
    assert lead.told("suspended")[0]["durable"]


@pytest.mark.parametrize("is_assigned", [False, True])
def test_a_job_without_state_retires_at_once(pool: Open, is_assigned: bool) -> None:
    nodes = pool({"before": "hang"})
    lead = nodes.lead()
    if is_assigned:
        nodes.assign(lead, 1, 1)
        lead.wait("starting")
    lead.supervisor.retire()
    assert lead.end() == RETIRED
    nodes.wait_empty()


# Leads that die.


def test_a_new_lead_adopts_workers_that_live_and_they_go_on(pool: Open) -> None:
    nodes = pool()
    lead = nodes.lead(0)
    nodes.assign(lead, 1, 2)
    lead.wait_size(3)
    lead.wait_step(20)
    pids = {h.pid for node in nodes.nodes for h in node.agent.held.values()}
    vanish(lead)
    again = nodes.lead(1, attempt=2, adopt=True)
    nodes.assign(again, 1, 2)
    regrouped = again.wait("regrouped")
    assert regrouped["members"] == [0, 1, 2]
    assert regrouped["step"] >= 20
    assert not again.told("origin")
    assert {h.pid for node in nodes.nodes for h in node.agent.held.values()} == pids
    held = [node.agent.held for node in nodes.nodes]
    assert {h.attempt for each in held for h in each.values()} == {2}
    nodes.assign(again, 1, 3)
    assert again.wait_size(4)["members"] == [0, 1, 2, 3]


def test_survivors_of_a_dead_node_are_adopted_from_another(pool: Open) -> None:
    nodes = pool()
    lead = nodes.lead(0)
    nodes.assign(lead, 2, 1)
    lead.wait_size(3)
    vanish(lead)
    nodes.nodes[0].job_host_server.close()
    again = nodes.lead(1, attempt=2, adopt=True)
    again.supervisor.assign(nodes.first_slots(0, 2), nodes.addresses())
    assert again.wait("regrouped")["members"] == [2]
    assert again.wait_size(2)["members"] == [2, 3]


def test_with_nobody_left_an_adopting_lead_begins_from_the_checkpoint(pool: Open) -> None:
    nodes = pool()
    lead = nodes.lead(0, checkpoint_every_s=0.1)
    nodes.assign(lead, 2)
    saved = lead.wait("checkpoint")
    vanish(lead)
    for slot in (0, 1):
        nodes.nodes[0].job_host_server.kill_slot(slot)
    nodes.wait_empty()
    again = nodes.lead(1, attempt=2, adopt=True)
    nodes.assign(again, 1, 1)
    assert again.wait("origin")["step"] >= saved["step"]
    again.wait_size(2)


def test_a_node_that_is_silent_while_it_is_asked_is_asked_again_where_it_is_now(
    pool: Open,
) -> None:
    nodes = pool()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        addresses = nodes.addresses()
        addresses["node-1"] = replace(
            addresses["node-1"], host="127.0.0.1", port=silent.getsockname()[1]
        )
        lead = nodes.lead(adopt=True)
        lead.supervisor.assign(nodes.first_slots(1, 1), addresses)
        with silent.accept()[0]:
            nodes.assign(lead, 1, 1)
            lead.wait_size(2)


def test_workers_that_never_trained_are_not_adopted(pool: Open) -> None:
    nodes = pool({"before": "hang"})
    lead = nodes.lead()
    nodes.assign(lead, 0, 1)
    wait_until(lambda: bool(nodes.nodes[1].agent.held), "a worker")
    wait_until(lambda: nodes.nodes[1].agent.held[4].pid is not None, "its process")
    pid = nodes.nodes[1].agent.held[4].pid
    vanish(lead)
    again = nodes.lead(attempt=2, adopt=True)
    nodes.assign(again, 0, 1)
    wait_until(lambda: not lives(pid or 0), "its end")
    assert again.wait("starting")["worker"] == 1


def test_a_job_that_ended_while_nobody_led_it_has_succeeded(pool: Open) -> None:
    nodes = pool({"steps": 400})
    lead = nodes.lead()
    nodes.assign(lead, 0, 2)
    lead.wait_step(1)
    vanish(lead)
    wait_until(lambda: "ended at 400" in nodes.printed(), "the end")
    nodes.wait_empty()
    again = nodes.lead(attempt=2, adopt=True)
    nodes.assign(again, 0, 2)
    assert again.end() == 0
    assert not again.told("starting")


def test_what_is_being_saved_when_the_lead_dies_is_saved_all_the_same(pool: Open) -> None:
    nodes = pool()
    lead = nodes.lead(checkpoint_every_s=1000.0)
    nodes.assign(lead, 0, 1)
    lead.wait_step(20)
    vanish(lead)
    job_host_ = nodes.nodes[1].job_host_server._job_hosts._job_hosts[JOB]
    capture = {"do": "tell", "to": [0], "word": {"do": "capture"}}
    nodes.nodes[1].job_host_server._loop.post(lambda: job_host_._worker_host.do(capture))
    wait_until(lambda: bool(list(nodes.environment.folder.glob("*.ckpt"))), "a checkpoint")


def test_a_new_attempt_that_adopts_nobody_kills_who_is_left(pool: Open) -> None:
    nodes = pool()
    lead = nodes.lead()
    nodes.assign(lead, 0, 2)
    lead.wait_size(2)
    pids = [h.pid for h in nodes.nodes[1].agent.held.values()]
    vanish(lead)
    again = nodes.lead(attempt=2)
    nodes.assign(again, 0, 2)
    again.wait_size(2)
    assert not [pid for pid in pids if lives(pid or 0)]
    assert again.told("origin")[0]["where"] == "scratch"


def test_a_lead_that_was_replaced_ends_and_touches_nothing(pool: Open) -> None:
    nodes = pool()
    lead = nodes.lead()
    nodes.assign(lead, 0, 2)
    lead.wait_size(2)
    again = nodes.lead(1, attempt=2, adopt=True)
    nodes.assign(again, 0, 2)
    assert again.wait("regrouped")["members"] == [0, 1]
    assert lead.end() == SUPERSEDED
    again.wait_step(1 + again.wait("regrouped")["step"])


def test_workers_without_a_lead_do_not_live_for_ever(pool: Open) -> None:
    nodes = pool(orphan_s=0.3)
    lead = nodes.lead()
    nodes.assign(lead, 1, 1)
    lead.wait_size(2)
    vanish(lead)
    nodes.wait_empty()


def test_workers_without_a_lead_and_without_a_slot_are_not_waited_for(pool: Open) -> None:
    nodes = pool()
    lead = nodes.lead()
    nodes.assign(lead, 1, 1)
    lead.wait_size(2)
    vanish(lead)
    nodes.nodes[1].give(1, "another job")
    wait_until(lambda: not nodes.nodes[1].agent.held, "the end of who may not be there")
    assert nodes.nodes[0].agent.held, "who has a slot may be adopted"


# Nodes that die.


def test_a_node_that_is_lost_leaves_a_smaller_job(pool: Open) -> None:
    nodes = pool()
    lead = nodes.lead()
    nodes.assign(lead, 2, 2)
    lead.wait_size(4)
    nodes.nodes[1].job_host_server.close()
    assert lead.wait("regrouped")["members"] == [0, 1]
    assert "node-1" in lead.wait("exited")["because"]
    nodes.assign(lead, 3, 0)
    assert lead.wait_size(3)["slots"] == [0, 1, 2]


def test_after_a_cut_connection_leftovers_are_killed_and_replaced(pool: Open) -> None:
    nodes = pool()
    lead = nodes.lead()
    nodes.assign(lead, 1, 1)
    lead.wait_size(2)
    left = nodes.nodes[1].agent.held[4].pid
    cut = nodes.nodes[1].job_host_server._job_hosts._job_hosts[JOB]
    nodes.nodes[1].job_host_server._loop.post(cut._hang_up)
    assert lead.wait("regrouped")["members"] == [0]
    assert lead.wait("resized", lambda event: event["to"] == 2)["members"] == [0, 2]
    assert not lives(left or 0)


def test_a_node_that_comes_back_as_a_new_process_is_used_again(pool: Open) -> None:
    nodes = pool()
    lead = nodes.lead()
    nodes.assign(lead, 1, 1)
    lead.wait_size(2)
    nodes.nodes[1].job_host_server.close()
    lead.wait("regrouped")
    back = nodes.reopen(1)
    back.give(1)
    nodes.assign(lead, 1, 1)
    assert lead.wait_size(2)["slots"] == [0, 4]


def test_a_killed_fork_server_ends_its_own_workers_only(pool: Open) -> None:
    nodes = pool()
    lead = nodes.lead()
    nodes.assign(lead, 1, 2)
    lead.wait_size(3)
    worker = nodes.nodes[1].agent.held[4].pid
    assert worker is not None
    os.kill(parent(worker), signal.SIGKILL)
    assert lead.wait("regrouped")["members"] == [0]
    assert lead.wait_size(3)["members"] == [0, 3, 4]


def test_a_killed_warm_process_is_started_anew(pool: Open) -> None:
    nodes = pool(nodes=1)
    lead = nodes.lead()
    nodes.assign(lead, 1)
    lead.wait_size(1)
    worker = nodes.nodes[0].agent.held[0].pid
    assert worker is not None
    os.kill(parent(parent(worker)), signal.SIGKILL)
    lead.wait("restarted")
    assert not lives(worker)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# Slots.


def test_a_start_waits_until_its_slot_is_the_jobs(pool: Open) -> None:
    nodes = pool()
    lead = nodes.lead()
    nodes.nodes[1].give(1, "another")
    nodes.assign(lead, 1, 1)
    lead.wait("starting", lambda event: event["slot"] == 4)
    reports = nodes.nodes[1].agent.reports
    nodes.nodes[1].job_host_server.look_again()
    wait_until(lambda: nodes.nodes[1].agent.reports > reports, "a report")
    assert not nodes.nodes[1].agent.held
    nodes.nodes[1].give(1)
    lead.wait_size(2)


def test_a_slot_that_is_not_given_is_told_as_the_reason(
    pool: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_host, "SLOT_WAIT_S", 0.1)
    nodes = pool()
    lead = nodes.lead()
    nodes.assign(lead, 1)
    lead.wait_size(1)
    nodes.nodes[1].give(7, "another")
    nodes.assign(lead, 1, 1)
    because = lead.wait("exited")["because"]
    assert "slot 4" in because
    assert "job another, attempt 7" in because
    assert "slot 4" in lead.wait("problem")["what"]
    lead.wait_step(lead.told("progress")[-1]["step"] + 5)  # those who have a slot go on


def test_a_slot_given_up_is_tried_again_when_it_is_assigned_at_again(
    pool: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_host, "SLOT_WAIT_S", 0.05)
    nodes = pool()
    lead = nodes.lead()
    nodes.assign(lead, 1)
    lead.wait_size(1)
    nodes.nodes[1].give(7, "another")
    nodes.assign(lead, 1, 1)
    lead.wait("problem")
    nodes.nodes[1].give(1)
    nodes.assign(lead, 1, 1)  # a repeat
    assert lead.wait_size(2)["slots"] == [0, 4]


def test_a_slot_given_up_is_tried_again_after_a_while(
    pool: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_host, "SLOT_WAIT_S", 0.05)
    monkeypatch.setattr(pool_job, "SLOTS_AGAIN_S", 0.1)
    nodes = pool()
    lead = nodes.lead()
    nodes.assign(lead, 1)
    lead.wait_size(1)
    nodes.nodes[1].give(7, "another")
    nodes.assign(lead, 1, 1)
    lead.wait("problem")
    nodes.nodes[1].give(1)
    assert lead.wait_size(2)["slots"] == [0, 4]


def test_a_job_is_told_to_a_node_after_its_lead_came(pool: Open) -> None:
    nodes = pool()
    environment = nodes.nodes[1].agent.environments.pop(JOB)
    lead = nodes.lead()
    nodes.assign(lead, 0, 1)
    lead.wait("starting")
    nodes.nodes[1].agent.environments[JOB] = environment
    nodes.nodes[1].job_host_server.look_again()
    lead.wait_size(1)


def test_a_job_that_a_node_never_hears_of_is_not_started_there(
    pool: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_hosts, "JOB_WAIT_S", 0.1)
    nodes = pool()
    nodes.nodes[1].agent.environments.clear()
    lead = nodes.lead()
    nodes.assign(lead, 0, 1)
    assert "was not told of the job" in lead.wait("exited")["because"]
    assert lead.end() == 1


def test_an_agent_may_kill_what_lives_on_its_slots(pool: Open) -> None:
    nodes = pool()
    lead = nodes.lead()
    nodes.assign(lead, 1, 2)
    lead.wait_size(3)
    nodes.nodes[1].job_host_server.kill_slot(5)
    assert lead.wait("exited")["slot"] == 5
    nodes.nodes[1].give(9, "another")
    nodes.nodes[1].job_host_server.kill(JOB)
    wait_until(lambda: not nodes.nodes[1].agent.held, "an empty node")
    lead.wait("regrouped", lambda event: event["members"] == [0])


def test_a_lead_with_the_token_of_an_agent_that_is_gone_is_not_obeyed(pool: Open) -> None:
    nodes = pool()
    lead = nodes.lead()
    addresses = nodes.addresses()
    addresses["node-1"] = replace(addresses["node-1"], token="of another day")
    lead.supervisor.assign(nodes.first_slots(1, 1), addresses)
    assert "token" in lead.wait("exited")["because"]
    nodes.assign(lead, 1, 1)
    lead.wait_size(2)


def test_holdings_name_who_lives_where(pool: Open) -> None:
    nodes = pool(nodes=1)
    lead = nodes.lead(attempt=4)
    nodes.assign(lead, 2)
    lead.wait_size(2)
    pids = {worker["slot"]: worker["pid"] for worker in lead.supervisor.status()["workers"]}
    held = nodes.nodes[0].agent.held
    assert held == {slot: SlotProcess(JOB, 4, pid) for slot, pid in pids.items()}
