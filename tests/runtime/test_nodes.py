"""Real training that spans nodes: whoever dies or moves, it ends with the bits of a lone run."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coddl.runtime.supervisor import jobdir
from coddl.runtime.supervisor.job_status import RETIRED
from tests.runtime.elastic import ROOT, SCRIPTS, alone, line_of
from tests.runtime.harness import lives, wait_until
from tests.runtime.nodes import Pool, environment_in

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

ARGS = ("--strict", "--epochs", "6", "--pace-s", "0.05")
Open = Callable[..., Pool]


@pytest.fixture(scope="module")
def undisturbed() -> str:
    return line_of(alone("net.py", *ARGS[:-2]), "hash")


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Open]:
    opened: list[Pool] = []

    def begin(*args: str, **more: Any) -> Pool:
        environment = environment_in(tmp_path, str(ROOT), OMP_NUM_THREADS="1")
        nodes = Pool(environment, (str(SCRIPTS / "net.py"), *(args or ARGS)), **more)
        opened.append(nodes)
        for node in nodes.nodes:  # a cold joiner imports torch for longer than a training lasts
            node.job_host_server.warm(environment.python, environment.env)
        wait_until(lambda: all(node.agent.warm for node in nodes.nodes), "warm interpreters")
        return nodes

    yield begin
    for each in opened:
        each.close()


def test_a_job_grows_and_shrinks_over_nodes_without_changing_a_bit(
    pool: Open, undisturbed: str
) -> None:
    nodes = pool()
    lead = nodes.lead()
    nodes.assign(lead, 1, 0)
    lead.wait_step(3)
    nodes.assign(lead, 1, 2)
    lead.wait_size(3)
    nodes.assign(lead, 0, 1)
    assert lead.wait_size(1)["slots"] == [4]
    lead.finish()
    assert line_of(nodes.printed(), "hash") == undisturbed


def test_a_job_retires_and_goes_on_at_another_node_and_size(pool: Open, undisturbed: str) -> None:
    nodes = pool()
    lead = nodes.lead()
    nodes.assign(lead, 0, 2)
    lead.wait_step(5)
    lead.supervisor.retire()
    assert lead.end() == RETIRED, lead.story()
    assert lead.told("suspended")[0]["durable"]
    again = nodes.lead(1, attempt=2)
    nodes.assign(again, 3, 0)
    assert again.wait("origin")["step"] >= 5
    again.finish()
    assert line_of(nodes.printed(), "hash") == undisturbed


def test_a_node_whose_processes_are_killed_costs_no_bit(pool: Open, undisturbed: str) -> None:
    nodes = pool()
    lead = nodes.lead()
    nodes.assign(lead, 2, 2)
    lead.wait_size(4)
    nodes.nodes[1].job_host_server.close()
    lead.wait_size(2)
    lead.finish()
    assert line_of(nodes.printed(), "hash") == undisturbed


LEAD = """
import sys
from pathlib import Path
from tests.runtime.elastic import ROOT, SCRIPTS
from tests.runtime.nodes import JOB, HostAddress, Pool, Slot, environment_in
folder, address, *args = sys.argv[1:]
node, host, port, token = address.split()
environment = environment_in(Path(folder), str(ROOT), OMP_NUM_THREADS="1")
mine = Pool(environment, (str(SCRIPTS / "net.py"), *args), nodes=1)
lead = mine.lead()
slots = [*mine.first_slots(2), Slot(4, node), Slot(5, node)]
lead.supervisor.assign(slots, {**mine.addresses(), node: HostAddress(node, host, int(port), token)})
lead.wait_size(4)
lead.wait_step(5)
print(*(h.pid for h in mine.nodes[0].agent.held.values()), flush=True)
lead.end()
"""


def test_when_the_lead_is_killed_its_survivors_are_led_from_elsewhere(
    pool: Open, undisturbed: str, tmp_path: Path
) -> None:
    nodes = pool()
    nodes.nodes[0].job_host_server.close()  # that address is the lead's, in a process of its own
    other = nodes.nodes[1]
    other.give(1)
    address = f"{other.name} {other.address.host} {other.address.port} {other.address.token}"
    command = [sys.executable, "-c", LEAD, str(tmp_path), address, *ARGS]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as lead:
        assert lead.stdout is not None
        gone = [int(pid) for pid in lead.stdout.readline().split()]
        lead.send_signal(signal.SIGKILL)
    assert len(gone) == 2
    jobdir.drop_stashes(f"test-{lead.pid}-node-0")  # which its next start would have done
    wait_until(lambda: not [pid for pid in gone if lives(pid)], "the end of the lead's own workers")
    survivors = {h.pid for h in other.agent.held.values()}
    again = nodes.lead(other, attempt=2, adopt=True)
    again.supervisor.assign(other.first_slots(3), nodes.addresses())
    assert again.wait("regrouped")["to"] == 2
    assert survivors <= {h.pid for h in other.agent.held.values()}
    again.wait_size(3)
    again.finish()
    assert not again.told("origin"), "it began from a checkpoint"
    assert line_of(nodes.printed(), "hash") == undisturbed


def test_a_warm_node_trains_soon_after_it_is_told(pool: Open) -> None:
    nodes = pool("--strict", "--epochs", "1", nodes=1)
    told_s = time.monotonic()
    lead = nodes.lead()
    nodes.assign(lead, 1)
    times_s = {}
    for kind in ("warm", "starting", "prepared", "started", "progress"):
        lead.wait(kind)
        times_s[kind] = round(time.monotonic() - told_s, 3)
    sys.stderr.write(f"\nfrom assign to: {times_s}\n")
    assert lead.end() == 0
