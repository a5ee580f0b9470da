"""Jobs that take turns and run out of memory: those beside others go on where they are."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from coddl.runtime.supervisor.job_status import RETIRED
from tests.runtime.harness import wait_until
from tests.runtime.test_turns import Shared, answered, begun, ended, in_loop, opened

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

SHORT = """
import pathlib, sys, pacing, torch, coddl
from coddl.runtime.worker import offload
from torch.utils.data import DataLoader, TensorDataset

fill = offload._fill

def fill_or_run_short(moved):
    run_short("fill")
    fill(moved)

offload._fill = fill_or_run_short

def run_short(where):
    short = pathlib.Path(sys.argv[1]) / where
    if short.exists():
        short.unlink()
        raise torch.OutOfMemoryError("CUDA out of memory")

run_short("start")
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(net.parameters())
loader = DataLoader(TensorDataset(torch.randn(64, 4)), 8)
net, optimizer, loader = coddl.prepare(net, optimizer, loader)
for epoch in coddl.epochs(40):
    for (x,) in loader:
        run_short("pass")
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        pacing.rest(0.02)
    run_short("epoch")
"""


@pytest.fixture
def short(tmp_path: Path) -> Iterator[Shared]:
    """A job that runs out of memory when there is a file that says so."""
    script = tmp_path / "short.py"
    script.write_text(SHORT)
    with opened(tmp_path, str(script), str(tmp_path)) as shared:
        yield shared


@pytest.mark.parametrize("where", ["pass", "epoch", "start"])
def test_a_job_that_lacks_memory_beside_others_goes_on_where_it_is(
    short: Shared, tmp_path: Path, where: str
) -> None:
    lead = short.lead(checkpoint_every_s=1000.0)
    lead.wait_step(5)
    ended(lead, resident=False)
    answered(lead, "turn begun", lambda: lead.supervisor.begin_turn(crowded=True))
    in_loop(lead, lead.supervisor.capture)
    saved = lead.wait("checkpoint")["step"]
    (tmp_path / where).touch()
    if where == "start":
        os.kill(short.pid, signal.SIGKILL)
    lead.wait("crowded")
    lead.wait("restarted")
    assert lead.told("origin")[-1]["step"] == saved
    lead.finish()
    assert not lead.told("memory"), "it needs no more slots"
    exits = [event for event in lead.told("exited") if event["code"] == 1]
    assert [event["expected"] for event in exits] == [True]


def test_a_job_that_lacks_memory_alone_needs_more_slots(short: Shared, tmp_path: Path) -> None:
    lead = short.lead()
    lead.wait_step(5)
    for crowded in (True, False):  # the last word counts
        ended(lead, resident=False)
        lead.supervisor.begin_turn(crowded=crowded)
        lead.wait_step(lead.told("turn ended")[-1]["step"] + 2)
    (tmp_path / "pass").touch()
    assert lead.end() == RETIRED
    assert lead.told("memory")[-1]["workers_min"] == 2
    assert not lead.told("crowded")


@pytest.mark.parametrize("crowded", [True, False])
def test_a_worker_that_finds_no_room_to_move_in_loses_no_step(
    short: Shared, tmp_path: Path, crowded: bool
) -> None:
    lead = short.lead(checkpoint_every_s=1000.0)
    lead.wait_step(5)
    pid = short.pid
    step = ended(lead, resident=False)["step"]
    (tmp_path / "fill").touch()
    lead.supervisor.begin_turn(crowded=crowded)
    told = lead.wait("turn ended", lambda event: event["crowded"])
    assert (told["step"], told["resident"]) == (step, False)
    if crowded:  # others make room for it
        lead.wait("crowded")
        wait_until(lambda: not short.agent.held, "a free slot")
        assert lead.told("turn begun") == []
        begun(lead)
        assert short.pid == pid
    else:
        assert lead.wait("checkpoint")["step"] == step
        lead.wait("restarted")
        assert lead.told("origin")[-1]["step"] == step
        assert not lead.told("crowded")
    lead.finish()
