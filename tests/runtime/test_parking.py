"""Jobs whose workers wait without their devices: who takes them up, and that no bit changes."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coddl.runtime.supervisor.job_status import RETIRED
from tests.runtime.elastic import ROOT, SCRIPTS, alone, line_of
from tests.runtime.harness import lives, unwritable, wait_until
from tests.runtime.nodes import JOB, Lead, Pool, environment_in

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

ARGS = {
    "strict": ("net.py", "--strict", "--epochs", "6", "--pace-s", "0.05"),
    "default": ("ledger.py", "--epochs", "6", "--samples", "512", "--pace-s", "0.02"),
}
# Without strict, that each sample was used once in each epoch.
RESULT = {"strict": ("hash",), "default": ("used", "missing")}
Open = Callable[..., Pool]


def result(printed: str, mode: str = "strict") -> list[str]:
    return [line_of(printed, word) for word in RESULT[mode]]


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, list[str]]:
    return {mode: result(alone(*args[:-1], "0"), mode) for mode, args in ARGS.items()}


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Open]:
    opened: list[Pool] = []

    def begin(mode: str, **more: Any) -> Pool:
        environment = environment_in(tmp_path, f"{ROOT}", OMP_NUM_THREADS="1")
        script, *args = ARGS[mode]
        nodes = Pool(environment, (str(SCRIPTS / script), *args), **more)
        opened.append(nodes)
        for node in nodes.nodes:
            node.job_host_server.warm(environment.python, environment.env)
        wait_until(lambda: all(node.agent.warm for node in nodes.nodes), "warm interpreters")
        return nodes

    yield begin
    for each in opened:
        each.close()


def parked(nodes: Pool, lead: Lead) -> list[int]:
    """Park a job; give the processes that wait."""
    lead.supervisor.retire(park=True)
    assert lead.end() == RETIRED, lead.story()
    assert lead.told("suspended")[0]["durable"]
    nodes.nodes[0].agent.owners = {}
    nodes.nodes[0].job_host_server.look_again()
    agent = nodes.nodes[0].agent
    wait_until(lambda: not agent.held, "free slots")
    pids = [each.pid for each in agent.parked[JOB]]
    assert all(pid is not None and lives(pid) for pid in pids)
    return [pid for pid in pids if pid is not None]


@pytest.mark.parametrize("mode", ARGS)
@pytest.mark.parametrize("workers", [1, 3])
def test_parked_workers_go_on_as_if_nothing_had_been(
    pool: Open, undisturbed: dict[str, list[str]], mode: str, workers: int
) -> None:
    nodes = pool(mode, nodes=1)
    lead = nodes.lead()
    nodes.assign(lead, workers)
    lead.wait_step(5)
    for attempt in (2, 3):  # what was kept is used again
        pids = parked(nodes, lead)
        assert len(pids) == workers
        about = lead.told("suspended")[0]["parked"]
        assert about["slots"] == list(range(workers))
        assert about["bytes"] > 0
        step = lead.told("suspended")[0]["step"]
        lead = nodes.lead(attempt=attempt, adopt=True)
        nodes.assign(lead, workers)
        resumed = lead.wait("resumed")
        assert (resumed["step"], resumed["to"]) == (step, workers)
        assert sorted(each.pid or 0 for each in nodes.nodes[0].agent.held.values()) == sorted(pids)
        lead.wait_step(step + 3)
        assert not lead.told("origin"), "it began from a checkpoint"
    lead.finish()
    assert result(nodes.printed(), mode) == undisturbed[mode]


def test_a_parked_job_can_be_resized_and_moved(
    pool: Open, undisturbed: dict[str, list[str]]
) -> None:
    nodes = pool("strict")
    lead = nodes.lead()
    nodes.assign(lead, 2)
    lead.wait_step(5)
    pids = parked(nodes, lead)
    lead = nodes.lead(attempt=2, adopt=True)
    lead.supervisor.assign(
        [*nodes.first_slots(1), *nodes.nodes[1].first_slots(1)], nodes.addresses()
    )
    assert lead.wait_size(1)["slots"] == [0]
    assert lead.wait_size(2)["slots"] == [0, 4]
    assert nodes.nodes[0].agent.held[0].pid == pids[0]
    wait_until(lambda: not lives(pids[1]), "the end of who is not needed")
    lead.supervisor.retire()
    assert lead.end() == RETIRED
    lead = nodes.lead(1, attempt=3)
    lead.supervisor.assign(nodes.nodes[1].first_slots(2), nodes.addresses())
    lead.wait_size(2)
    lead.finish()
    assert result(nodes.printed()) == undisturbed["strict"]


def test_a_parked_worker_that_is_killed_costs_no_step(
    pool: Open, undisturbed: dict[str, list[str]]
) -> None:
    nodes = pool("strict", nodes=1)
    lead = nodes.lead()
    nodes.assign(lead, 2)
    lead.wait_step(5)
    pids = parked(nodes, lead)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    agent = nodes.nodes[0].agent
    wait_until(lambda: not agent.parked, "the news of it")
    step = lead.told("suspended")[0]["step"]
    lead = nodes.lead(attempt=2, adopt=True)
    nodes.assign(lead, 2)
    assert lead.wait("origin")["step"] == step
    lead.finish()
    assert result(nodes.printed()) == undisturbed["strict"]


def test_parked_workers_end_when_nobody_keeps_them(pool: Open) -> None:
    nodes = pool("strict", nodes=1)
    lead = nodes.lead()
    nodes.assign(lead, 2)
    lead.wait_step(5)
    pids = parked(nodes, lead)
    nodes.nodes[0].agent.keeps = False
    nodes.nodes[0].job_host_server.look_again()
    wait_until(lambda: not any(map(lives, pids)), "their end")


def test_workers_wait_until_their_slot_is_empty(
    pool: Open, undisturbed: dict[str, list[str]]
) -> None:
    nodes = pool("strict", nodes=1)
    lead = nodes.lead()
    nodes.assign(lead, 1)
    lead.wait_step(5)
    parked(nodes, lead)
    node = nodes.nodes[0]
    lead = nodes.lead(attempt=2, adopt=True)
    node.agent.owners = {slot: ("another", 1) for slot in node.slots}
    nodes.assign(lead, 1)
    lead.wait("prepared")  # it has found the worker
    assert not node.agent.held, "the slot is another job's"
    node.give(2)
    lead.wait("resumed")
    lead.finish()
    assert result(nodes.printed()) == undisturbed["strict"]


def test_a_job_whose_image_cannot_be_saved_stays_parked_until_it_can(
    pool: Open, undisturbed: dict[str, list[str]]
) -> None:
    nodes = pool("strict", nodes=1)
    lead = nodes.lead()
    nodes.assign(lead, 1)
    lead.wait_step(5)
    agent = nodes.nodes[0].agent
    with unwritable(nodes.environment.folder):
        lead.supervisor.retire(park=True)
        lead.wait("unsaved")
        wait_until(lambda: bool(agent.parked), "the parked worker")
        assert lead.code is None, "its state is in memory only"
    lead.supervisor._loop.post(lead.supervisor.suspension._save_again)
    assert lead.end() == RETIRED
    lead = nodes.lead(attempt=2, adopt=True)
    nodes.assign(lead, 1)
    lead.wait("resumed")
    lead.finish()
    assert result(nodes.printed()) == undisturbed["strict"]


def test_a_parked_job_is_called_back_before_its_image_is_on_disk(
    pool: Open, undisturbed: dict[str, list[str]]
) -> None:
    nodes = pool("strict", nodes=1)
    lead = nodes.lead()
    nodes.assign(lead, 2)
    lead.wait_step(5)
    agent = nodes.nodes[0].agent
    pids = sorted(each.pid or 0 for each in agent.held.values())
    with unwritable(nodes.environment.folder):
        lead.supervisor.retire(park=True)
        lead.wait("unsaved")
        wait_until(lambda: JOB in agent.parked and not agent.held, "parked workers")
        nodes.assign(lead, 2)
        lead.wait("resumed")
        assert sorted(each.pid or 0 for each in agent.held.values()) == pids
        nodes.assign(lead, 3)
        lead.wait_size(3)
    lead.finish()
    assert not lead.told("suspended")
    assert result(nodes.printed()) == undisturbed["strict"]


def test_a_parked_job_without_workers_on_its_new_slots_ends_when_it_is_saved(
    pool: Open, undisturbed: dict[str, list[str]]
) -> None:
    nodes = pool("strict", nodes=1)
    lead = nodes.lead()
    nodes.assign(lead, 1)
    lead.wait_step(5)
    with unwritable(nodes.environment.folder):
        lead.supervisor.retire(park=True)
        lead.wait("unsaved")
        wait_until(lambda: bool(nodes.nodes[0].agent.parked), "the parked worker")
        lead.supervisor.assign(nodes.first_slots(2)[1:], nodes.addresses())
    lead.supervisor._loop.post(lead.supervisor.suspension._save_again)
    assert lead.end() == RETIRED
    lead = nodes.lead(attempt=2, adopt=True)
    lead.supervisor.assign(nodes.first_slots(2)[1:], nodes.addresses())
    assert lead.wait("origin")["step"] >= 5
    lead.finish()
    assert result(nodes.printed()) == undisturbed["strict"]
