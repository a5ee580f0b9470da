"""Scripts of a pool that never call `prepare`: they end well, fail, die and retire all the same."""

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coddl.runtime.supervisor.environment import ON_ONE_GPU, SURVIVING, nccl_variables
from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.job_status import RETIRED
from coddl.runtime.supervisor.slots import Slot
from tests.runtime.harness import ROOT, STUB, Start, fake_torch, sockets, start, wait_until
from tests.runtime.nodes import Lead, Pool, environment_in

__all__ = ["fake_torch", "sockets", "start"]  # fixtures

Open = Callable[..., Pool]

HEAD = """
import os, signal, sys, time
from pathlib import Path
rank, restarts = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
def die(): os.kill(os.getpid(), signal.SIGKILL)
def sleep(): time.sleep(600)
"""


@pytest.fixture
def pool(tmp_path: Path, fake_torch: Path) -> Iterator[Open]:
    opened: list[Pool] = []

    def begin(text: str = "", *, torch: str = str(fake_torch), **more: Any) -> Pool:
        script = tmp_path / "script.py"
        script.write_text(HEAD + text)
        environment = environment_in(tmp_path, f"{torch}:{ROOT}" if torch else str(ROOT))
        opened.append(Pool(environment, ("script.py",), **more))
        return opened[-1]

    yield begin
    for each in opened:
        each.close()


def led(nodes: Pool, *counts: int, **fields: Any) -> Lead:
    lead = nodes.lead(**{"must_prepare": False, "grace_s": 0.5, **fields})
    nodes.assign(lead, *counts)
    return lead


def test_a_script_that_ends_well_in_every_worker_has_succeeded(pool: Open) -> None:
    nodes = pool("print('rank', rank, 'of', os.environ['WORLD_SIZE'])\n")
    assert led(nodes, 2, 1).end() == 0
    assert sorted(nodes.printed().splitlines()) == [f"rank {rank} of 3" for rank in range(3)]
    nodes.wait_empty()


TELLS = """
import os
if False:
    {call}
names = [name for name in ("RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID") if name in os.environ]
print("told", *names, flush=True)
"""
CALLS = {
    "import coddl; coddl.prepare()": "told",
    "import torch": "told RANK MASTER_ADDR TORCHELASTIC_RUN_ID",
}


@pytest.mark.parametrize(("call", "want"), CALLS.items(), ids=("elastic", "plain"))
def test_a_script_that_calls_prepare_is_told_no_rank(
    pool: Open, tmp_path: Path, call: str, want: str
) -> None:
    nodes = pool()
    script = tmp_path / "script.py"
    script.write_text(TELLS.format(call=call))
    assert led(nodes, 1, 1, script=script).end() == 0
    assert nodes.printed().splitlines() == [want, want]


@pytest.mark.parametrize(("call", "want"), CALLS.items(), ids=("elastic", "plain"))
def test_so_it_is_with_coddl_run(start: Start, tmp_path: Path, call: str, want: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(TELLS.format(call=call))
    running = start(script=script, argv=(str(script),), workers=2, must_prepare=False)
    assert running.end() == 0
    assert [event["text"] for event in running.told("log")] == [want, want]


def test_all_workers_are_waited_for(pool: Open, tmp_path: Path) -> None:
    nodes = pool("if rank == '1':\n    while not Path('go').exists(): time.sleep(0.01)\n")
    lead = led(nodes, 2)
    lead.wait("exited")
    assert lead.code is None
    (tmp_path / "go").touch()
    assert lead.end() == 0
    assert len(lead.told("starting")) == 2, "who has ended well is not started again"


ENDS: dict[str, tuple[str, int, str]] = {
    "one fails": ("sys.exit(3) if rank == '1' else sleep()", 3, "code 3"),
    "one fails after another ended": ("rank == '1' and (time.sleep(.5), sys.exit(4))", 4, "code 4"),
    "one is killed after another ended": (
        "rank == '1' and (time.sleep(.5), die())",
        137,
        "SIGKILL",
    ),
    "one is always killed": ("die() if rank == '1' else sleep()", 1, "SIGKILL"),
}


@pytest.mark.parametrize(("text", "code", "named"), ENDS.values(), ids=ENDS.keys())
def test_a_script_that_fails_ends_the_job(pool: Open, text: str, code: int, named: str) -> None:
    nodes = pool(text)
    lead = led(nodes, 1, 1)
    assert lead.end() == code
    assert named in str(lead.told("error")[0])
    nodes.wait_empty()


def test_if_one_is_killed_all_begin_anew_since_they_may_wait_for_it(pool: Open) -> None:
    nodes = pool("restarts == '0' and (die() if rank == '1' else sleep())\nprint('again', rank)\n")
    lead = led(nodes, 2, 1)
    assert lead.end() == 0
    assert sorted(nodes.printed().splitlines()) == ["again 0", "again 1", "again 2"]
    assert [e["signal"] for e in lead.told("exited") if not e["expected"]].count("SIGKILL") == 1


def test_who_fails_because_a_peer_was_killed_may_be_heard_of_first(
    pool: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coddl.runtime.supervisor.exit_policy.WITHHELD_S", 30.0)  # a slow machine
    nodes = pool(
        "if restarts == '0': sys.exit(1) if rank == '0' else (time.sleep(.5), die())\n"
        "print('again', rank)\n"
    )
    assert led(nodes, 1, 1).end() == 0
    assert sorted(nodes.printed().splitlines()) == ["again 0", "again 1"]


def test_who_aborts_because_a_peer_has_failed_is_no_reason_to_begin_anew(pool: Open) -> None:
    nodes = pool("sys.exit(3) if rank == '0' else (time.sleep(.5), os.abort())\n")
    lead = led(nodes, 1, 1)
    assert lead.end() == 3
    assert "code 3" in str(lead.told("error")[0])


def test_where_prepare_is_called_for_its_absence_is_an_error(pool: Open) -> None:
    lead = led(pool(), 1, must_prepare=True)
    assert lead.end() == 1
    assert "coddl.prepare" in lead.told("error")[0]["what"]


SAVES = """
def save(*_):
    Path('saved').write_text(os.environ['CODDL_ATTEMPT'])
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print('ready', flush=True)
os.environ['CODDL_ATTEMPT'] == '1' and sleep()
print('went on from', Path('saved').read_text(), os.environ['CODDL_RESTART_REASON'])
"""


def test_a_script_with_its_own_checkpoint_hears_sigterm_when_it_retires(
    pool: Open, tmp_path: Path
) -> None:
    nodes = pool(SAVES)
    lead = led(nodes, 1, grace_s=30.0)
    wait_until(lambda: "ready" in nodes.printed(), "its handler")
    lead.supervisor.retire()
    assert lead.end() == RETIRED
    assert (tmp_path / "saved").read_text() == "1"
    assert led(nodes, 0, 1, attempt=2, restart_reason="preempted").end() == 0
    assert "went on from 1 preempted" in nodes.printed()


def test_who_ignores_sigterm_is_killed_after_its_grace(pool: Open) -> None:
    nodes = pool(
        "signal.signal(signal.SIGTERM, lambda *_: None)\nprint('ready')\nsleep(), sleep()\n"
    )
    lead = led(nodes, 1)
    wait_until(lambda: "ready" in nodes.printed(), "its handler")
    lead.supervisor.retire()
    assert lead.end() == RETIRED
    assert lead.told("exited")[0]["signal"] == signal.SIGKILL.name


GPUS = {
    "one GPU of each node": ((Slot(0, "node-0", "0"), Slot(4, "node-1", "0")), "nccl"),
    "a GPU that two share": ((Slot(0, "node-0", "0"), Slot(1, "node-0", "0")), "gloo"),
    "one without": ((Slot(0, "node-0", "0"), Slot(4, "node-1", None)), "gloo"),
}


@pytest.mark.parametrize(("slots", "backend"), GPUS.values(), ids=GPUS.keys())
def test_nccl_is_for_gpus_of_their_own(
    tmp_path: Path, fake_torch: Path, slots: tuple[Slot, ...], backend: str
) -> None:
    nodes = Pool(environment_in(tmp_path, f"{fake_torch}:{ROOT}"), (str(STUB), "{}"))
    try:
        lead = nodes.lead()
        lead.supervisor.assign(slots, nodes.addresses())
        metrics = lead.wait("progress", lambda event: "gpu 0" in event["metrics"])["metrics"]
        assert metrics["backend"] == backend
        assert metrics["gpu 0"] == "0"
    finally:
        nodes.close()


def test_workers_outlive_nccls_watchdog_and_for_tests_share_a_gpu(tmp_path: Path) -> None:
    job = Job(
        name="a", script=tmp_path / "a.py", argv=("a.py",), cwd=tmp_path, env={}, folder=tmp_path
    )
    assert nccl_variables(job, 3) == SURVIVING
    shared = nccl_variables(replace(job, env={ON_ONE_GPU: "1"}), 3)
    assert shared == SURVIVING | {"NCCL_HOSTID": "a-3", "NCCL_SOCKET_IFNAME": "lo"}


PEERS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([1 + int(rank)])
dist.all_reduce(total)
if restarts == "0" and rank == "2": die()
print("total", int(total), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_script_with_a_group_of_its_own_finds_its_peers(pool: Open) -> None:
    pytest.importorskip("torch")
    nodes = pool(PEERS, torch="")
    lead = led(nodes, 2, 1)
    assert lead.end() == 0, nodes.printed()
    assert nodes.printed().splitlines().count("total 6") >= 3
