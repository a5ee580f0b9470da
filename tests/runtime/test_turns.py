"""Jobs that take turns on a slot: no bit changes, no step is lost, and nobody waits for ever."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coddl.runtime.supervisor import job_host
from coddl.runtime.supervisor.job_status import INTERRUPTED, RETIRED
from coddl.runtime.wire import Message
from tests.runtime.elastic import ROOT, SCRIPTS, alone, line_of
from tests.runtime.harness import lives, unwritable, wait_until
from tests.runtime.nodes import JOB, Lead, Node, Pool, environment_in

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

ARGS = ("net.py", "--strict", "--epochs", "6", "--pace-s", "0.02")
OTHER = "18"
RESIDENT = pytest.mark.parametrize("resident", [True, False], ids=["resident", "moved out"])


@pytest.fixture(scope="module")
def undisturbed() -> str:
    return line_of(alone(*ARGS[:-1], "0"), "hash")


class Shared:
    """A node whose first slot is shared, and the lead of a job there."""

    def __init__(self, nodes: Pool) -> None:
        self.nodes = nodes
        self.node: Node = nodes.nodes[0]
        self.agent = self.node.agent
        self.agent.shares = True
        self.leads: list[Lead] = []

    def lead(self, **fields: Any) -> Lead:
        """Start a lead of the job, which gets its slot."""
        lead = self.nodes.lead(**fields)
        self.nodes.assign(lead, 1)
        return lead

    def another(self) -> Lead:
        """Start a lead of another job on the same slot, which is not its own yet."""
        folder = self.nodes.environment.folder.with_name("others")
        self.agent.environments[OTHER] = replace(self.nodes.environment, folder=folder)
        lead = Lead(self.node, self.nodes.job(id=OTHER, name=OTHER, folder=folder))
        self.leads.append(lead)
        self.nodes.assign(lead, 1)
        return lead

    def give(self, job: str, attempt: int = 1) -> None:
        """Give the slot to a job; the others of the node stay whose they are."""
        self.agent.owners = {**self.agent.owners, 0: (job, attempt)}
        self.node.job_host_server.look_again()

    @property
    def pid(self) -> int:
        """The process on the slot."""
        wait_until(lambda: 0 in self.agent.held and bool(self.agent.held[0].pid), "a process")
        return self.agent.held[0].pid or 0

    def printed(self, job: str = JOB) -> str:
        return "\n".join(text for name, *_, text in self.agent.logs if name == job)

    def close(self) -> None:
        for lead in self.leads:
            lead.stop()


@contextmanager
def opened(folder: Path, *argv: str) -> Iterator[Shared]:
    environment = environment_in(
        folder, f"{ROOT}:{SCRIPTS}", OMP_NUM_THREADS="1", TO_BE_HURRIED="1"
    )
    nodes = Pool(environment, argv, nodes=1)
    node = nodes.nodes[0]
    node.job_host_server.warm(environment.python, environment.env)
    wait_until(lambda: bool(node.agent.warm), "a warm interpreter")
    shared = Shared(nodes)
    try:
        yield shared
    finally:
        shared.close()
        nodes.close()


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    script, *args = ARGS
    with opened(tmp_path, str(SCRIPTS / script), *args) as shared:
        yield shared


def ended(lead: Lead, *, resident: bool) -> Message:
    """End a turn; give what is told of it."""
    return answered(lead, "turn ended", lambda: lead.supervisor.end_turn(resident=resident))


def begun(lead: Lead) -> Message:
    return answered(lead, "turn begun", lead.supervisor.begin_turn)


def answered(lead: Lead, kind: str, ask: Callable[[], None]) -> Message:
    """Ask for something; give the next event of a kind."""
    count = len(lead.told(kind))
    ask()
    wait_until(lambda: len(lead.told(kind)) > count, f"{kind}\n{lead.story()}")
    return lead.told(kind)[-1]


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def in_loop(lead: Lead, action: Callable[[], None]) -> None:
    """Have something done in the supervisor's own thread, and wait for it."""
    done: list[bool] = []
    lead.supervisor._loop.post(lambda: (action(), done.append(True)))  # type: ignore[func-returns-value,arg-type]
    wait_until(lambda: bool(done), "an action")


def test_a_job_whose_turns_end_trains_as_if_it_were_alone(shared: Shared, undisturbed: str) -> None:
    lead = shared.lead()
    lead.wait_step(5)
    pid = shared.pid
    for how in ([True], [False], [True, False], [False, True]):
        for resident in how:
            told = ended(lead, resident=resident)
            assert told["resident"] is (resident and how[0])
            assert (told["slot"], told["device_bytes"], told["peak_bytes"]) == (0, 0, 0)
            assert told["bytes"] > 0 or resident
            assert told["seconds"] >= 0.0
        wait_until(lambda: not shared.agent.held, "a free slot")
        assert name_of(pid) == "coddl-parked"
        assert [each.awaits_turn for each in shared.agent.parked[JOB]] == [True]
        assert begun(lead)["seconds"] >= 0.0
        wait_until(lambda: [each.pid for each in shared.agent.held.values()] == [pid], "its turn")
        lead.wait_step(told["step"] + 2)
        assert name_of(pid) != "coddl-parked"
    lead.finish()
    assert line_of(shared.printed(), "hash") == undisturbed
    changes = lead.told("ended")[0]["changes"]
    assert [change["is"] for change in changes] == ["started"]
    assert lead.told("ended")[0]["generation"] == 1


def test_two_jobs_take_turns_on_one_slot(shared: Shared, undisturbed: str) -> None:
    first = shared.lead()
    first.wait_step(5)
    second = shared.another()
    second.wait("starting")
    ended(first, resident=False)
    shared.give(OTHER)
    second.wait_step(5)
    assert shared.agent.held[0].job == OTHER
    shared.give(JOB)
    first.supervisor.begin_turn()  # before the other one has ended its turn
    told = ended(second, resident=True)
    first.wait("turn begun")
    wait_until(lambda: 0 in shared.agent.held and shared.agent.held[0].job == JOB, "its turn")
    first.wait_step(10)
    assert second.told("progress")[-1]["step"] <= told["step"]
    first.finish()
    shared.give(OTHER)
    begun(second)
    second.finish()
    for job in (JOB, OTHER):
        assert line_of(shared.printed(job), "hash") == undisturbed


def test_a_turn_begins_only_when_the_slot_is_empty(shared: Shared) -> None:
    first = shared.lead()
    first.wait_step(5)
    ended(first, resident=True)
    second = shared.another()
    shared.give(OTHER)
    second.wait_step(5)
    shared.give(JOB)
    first.supervisor.begin_turn()
    checks = shared.agent.turn_checks
    wait_until(lambda: shared.agent.turn_checks > checks, "a look at what waits")
    step = second.told("progress")[-1]["step"]
    second.wait_step(step + 2)
    assert not first.told("turn begun"), "another job is on the slot"
    ended(second, resident=True)
    first.wait("turn begun")


def test_a_turn_that_is_to_end_ends_once_the_job_trains(shared: Shared, undisturbed: str) -> None:
    lead = shared.nodes.lead()
    lead.supervisor.end_turn(resident=False)
    shared.nodes.assign(lead, 1)
    lead.wait("turn ended")
    begun(lead)
    lead.finish()
    assert line_of(shared.printed(), "hash") == undisturbed


def test_what_was_to_end_and_has_begun_before_that_goes_on(shared: Shared) -> None:
    lead = shared.nodes.lead()
    lead.supervisor.end_turn(resident=False)
    assert begun(lead)["seconds"] == 0.0
    shared.nodes.assign(lead, 1)
    lead.wait_step(5)
    assert not lead.told("turn ended")
    for _ in range(3):  # wherever its update is just then
        count = len(lead.told("turn begun"))
        lead.supervisor.end_turn(resident=True)
        assert begun(lead)["slot"] == 0
        assert len(lead.told("turn begun")) == count + 1
        lead.wait_step(lead.told("progress")[-1]["step"] + 2)


def test_a_job_that_makes_one_step_a_turn_is_measured(tmp_path: Path) -> None:
    script, *args = ARGS[:-1]
    with opened(tmp_path, str(SCRIPTS / script), *args, "0.3") as shared:
        lead = shared.lead()
        lead.wait_step(1)
        steps = [ended(lead, resident=True)["step"]]
        for _ in range(4):
            begun(lead)
            steps.append(ended(lead, resident=True)["step"])
        timed = lead.told("progress")[-1]["iterations_at_size"]
        assert steps[-1] - steps[0] >= 3, "otherwise there is nothing to measure"
        assert timed >= steps[-1] - steps[0] - 1, "what the last progress says may be a step old"
        assert lead.told("progress")[-1]["step_s"] >= 0.3


def test_a_worker_that_dies_after_it_moved_out_costs_no_step(
    shared: Shared, undisturbed: str
) -> None:
    lead = shared.lead(checkpoint_every_s=1000.0)
    lead.wait_step(5)
    pid = shared.pid
    step = ended(lead, resident=False)["step"]
    shared.give(OTHER)
    os.kill(pid, signal.SIGKILL)
    assert lead.wait("checkpoint")["step"] == step
    lead.wait("starting", lambda event: event["worker"] == 1)
    assert not shared.agent.held, "it is not its turn"
    assert begun(lead)["seconds"] == 0.0
    shared.give(JOB)
    lead.wait("restarted")
    assert lead.told("origin")[-1]["step"] == step
    lead.wait_step(step + 2)
    assert [told["step"] for told in lead.told("turn ended")] == [step]
    lead.finish()
    assert line_of(shared.printed(), "hash") == undisturbed


def test_a_worker_that_dies_where_its_image_cannot_be_saved_goes_back(shared: Shared) -> None:
    lead = shared.lead(checkpoint_every_s=1000.0)
    lead.wait_step(5)
    pid = shared.pid
    ended(lead, resident=False)
    with unwritable(shared.nodes.environment.folder):
        os.kill(pid, signal.SIGKILL)
        lead.wait("unsaved")
    lead.wait("restarted")
    assert lead.told("origin")[-1]["where"] == "scratch"


def test_a_resident_worker_that_dies_goes_back_to_its_checkpoint(
    shared: Shared, undisturbed: str
) -> None:
    lead = shared.lead(checkpoint_every_s=1000.0)
    lead.wait_step(5)
    in_loop(lead, lead.supervisor.capture)
    saved = lead.wait("checkpoint")["step"]
    lead.wait_step(saved + 2)
    pid = shared.pid
    assert ended(lead, resident=True)["step"] > saved
    os.kill(pid, signal.SIGKILL)
    lead.wait("restarted")
    assert lead.told("origin")[-1]["step"] == saved
    lead.finish()
    assert line_of(shared.printed(), "hash") == undisturbed


@RESIDENT
@pytest.mark.parametrize("is_begun_first", [True, False])
def test_a_job_that_waits_can_be_parked(
    shared: Shared, undisturbed: str, resident: bool, is_begun_first: bool
) -> None:
    lead = shared.lead()
    lead.wait_step(5)
    pid = shared.pid
    ended(lead, resident=resident)
    if is_begun_first:
        lead.supervisor.begin_turn()
    lead.supervisor.retire(park=True)
    if not is_begun_first:
        lead.supervisor.begin_turn()
    assert lead.end() == RETIRED, lead.story()
    assert lead.told("suspended")[0]["durable"]
    wait_until(lambda: JOB in shared.agent.parked and not shared.agent.held, "its worker parked")
    assert [each.pid for each in shared.agent.parked[JOB]] == [pid]
    lead = shared.lead(attempt=2, adopt=True)
    lead.wait("resumed")
    ended(lead, resident=False)
    begun(lead)
    lead.finish()
    assert line_of(shared.printed(), "hash") == undisturbed


def test_a_worker_that_gets_no_turn_to_leave_in_is_saved_and_ended(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_host, "SLOT_WAIT_S", 0.1)
    lead = shared.lead(checkpoint_every_s=1000.0)
    lead.wait_step(5)
    step = ended(lead, resident=False)["step"]
    shared.agent.shares = False
    shared.give(OTHER)
    wait_until(lambda: bool(shared.agent.held), "its listing: it is to leave, and has not left")
    lead.supervisor.retire(park=True)
    lead.supervisor.begin_turn()
    assert lead.end() == RETIRED, lead.story()
    assert lead.told("suspended")[0] | {"durable": True, "step": step} == lead.told("suspended")[0]


@RESIDENT
def test_a_job_that_waits_can_be_cancelled(shared: Shared, resident: bool) -> None:
    lead = shared.lead()
    lead.wait_step(5)
    pid = shared.pid
    ended(lead, resident=resident)
    for _ in range(2):
        lead.supervisor.interrupt()
    assert lead.end() == INTERRUPTED
    wait_until(lambda: not lives(pid), "its end")


@RESIDENT
def test_a_new_lead_begins_the_turn_of_a_worker_that_waits(
    shared: Shared, undisturbed: str, resident: bool
) -> None:
    lead = shared.lead()
    lead.wait_step(5)
    pid = shared.pid
    step = ended(lead, resident=resident)["step"]
    lead.supervisor.abandon()
    lead.end()
    lead = shared.nodes.lead(attempt=2, adopt=True)
    shared.give(OTHER)
    shared.nodes.assign(lead, 1)
    lead.wait("prepared")
    assert not shared.agent.held
    shared.give(JOB, 2)
    assert lead.wait("regrouped")["step"] == step
    lead.wait_step(step + 2)
    assert shared.pid == pid
    lead.finish()
    assert line_of(shared.printed(), "hash") == undisturbed


def test_a_start_waits_for_its_turn_as_long_as_it_takes(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_host, "SLOT_WAIT_S", 0.05)
    lead = shared.nodes.lead()
    shared.give(OTHER)
    shared.nodes.assign(lead, 1)
    lead.wait("starting")
    checks = shared.agent.turn_checks
    wait_until(lambda: shared.agent.turn_checks > checks + 10, "many times what it may wait")
    assert not lead.told("exited")
    shared.give(JOB)
    lead.wait_step(1)


def test_the_time_between_turns_counts_nowhere(shared: Shared) -> None:
    lead = shared.lead(watchdog_s=600.0)
    lead.wait_step(5)
    job_status, workers = lead.supervisor.job_status, lead.supervisor.workers
    timed: list[tuple[tuple[int, float], float]] = []  # iterations and seconds; the last report

    def look() -> None:
        timed.append((job_status.step_timer._timed, job_status.step_timer._last[1]))

    in_loop(lead, look)
    ended(lead, resident=True)
    ended_s = time.monotonic()
    (record,) = workers.records

    def grow_old() -> None:
        record.heard_s -= 10_000.0
        workers._watch(record.number)

    in_loop(lead, grow_old)
    assert (job_status.still_s, record.state) == (0.0, "WAITING")
    wait_until(lambda: time.monotonic() > ended_s + 1.0, "a while")
    assert not lead.told("problem"), "the watchdog has killed it"
    waited_s, iterations = time.monotonic() - ended_s, job_status.step_timer.iterations
    begun(lead)
    lead.wait("progress", lambda event: event["iterations_at_size"] > iterations + 3)
    in_loop(lead, look)
    ((_, before_s), start_s), ((_, after_s), end_s) = timed
    assert after_s - before_s <= end_s - start_s - waited_s
    assert job_status.moved_s is not None, "it may stand still again"


def test_checkpoints_that_fall_due_between_turns_are_made_of_what_moved_out(
    shared: Shared,
) -> None:
    lead = shared.lead(checkpoint_every_s=1000.0)
    lead.wait_step(5)
    step = ended(lead, resident=False)["step"]
    in_loop(lead, lead.supervisor.capture_timer._on_time)
    assert lead.wait("checkpoint")["step"] == step
    begun(lead)
    lead.wait_step(step + 1)
    ended(lead, resident=True)
    in_loop(lead, lead.supervisor.capture_timer._on_time)
    step = ended(lead, resident=False)["step"]
    lead.wait("checkpoint", lambda event: event["step"] == step)
    assert not lead.told("image"), "the images of its turns did"


RIGID = """
import pacing, torch, coddl
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(1)
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(net.parameters())
loader = DataLoader(TensorDataset(torch.randn(64, 4)), 8)
loader = coddl.prepare(net, optimizer, loader)[-1]
for epoch in range(40):  # a loop that coddl does not know
    for (x,) in loader:
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        pacing.rest(0.02)
print("done", net.weight.isfinite().all().item())
"""


def test_a_job_that_cannot_be_resized_takes_turns_too(tmp_path: Path) -> None:
    script = tmp_path / "rigid.py"
    script.write_text(RIGID)
    with opened(tmp_path, str(script)) as shared:
        lead = shared.lead(checkpoint_every_s=1000.0)
        lead.wait("problem", lambda event: "resized" in event["what"])
        told = ended(lead, resident=False)
        in_loop(lead, lead.supervisor.capture_timer._on_time)
        begun(lead)
        lead.wait_step(told["step"] + 2)
        lead.finish()
        assert line_of(shared.printed(), "done") == "done True"
        assert not lead.told("checkpoint"), "no other worker could go on from there"
