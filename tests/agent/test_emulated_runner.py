"""The runner of an emulated job: what it tells, by a clock that the test turns."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from coddl.agent.emulated.nodes import NO_PROCESS, EmulatedCluster
from coddl.agent.emulated.runner import EmulatedRunner
from coddl.agent.job_runner import JobRun
from coddl.agent.run_reporter import Fact
from coddl.api.emulation import SCRIPT, EmulatedJob
from coddl.api.wire import RunProgress
from coddl.core.pool.orders import AssignedSlot
from coddl.core.pool.records import RunChanged, RunEnded, RunPrepared, RunStepped
from coddl.core.pool.spec import JobSpec, Launch, Tier
from coddl.core.reconfigure import reconfigure_of
from coddl.core.speed.table import speeds_of
from coddl.runtime.wire import Message


@dataclass(order=True)
class Later:
    """Something that happens at a time."""

    at_s: float
    action: Callable[[], None] = field(compare=False)
    is_cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualTime:
    """A clock that stands still until it is turned; what is due then happens in order."""

    def __init__(self) -> None:
        self.at_s = 1000.0
        self._coming: list[Later] = []

    def now_s(self) -> float:
        return self.at_s

    def call_at(self, at_s: float, action: Callable[[], None]) -> Later:
        later = Later(at_s, action)
        heapq.heappush(self._coming, later)
        return later

    def turn(self, by_s: float) -> None:
        until_s = self.at_s + by_s
        while self._coming and self._coming[0].at_s <= until_s:
            later = heapq.heappop(self._coming)
            if not later.is_cancelled:
                self.at_s = max(self.at_s, later.at_s)
                later.action()
        self.at_s = until_s


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.slots: list[tuple[int, ...]] = []  # that commands hold, as they were told
        self.is_over = False

    def on_fact(self, run: JobRun, fact: Fact) -> None:  # noqa: ARG002 - there is one
        self.facts.append(fact)

    def on_progress(self, run: JobRun, progress: RunProgress) -> None: ...
    def on_line(self, run: JobRun, stream: str, text: str) -> None: ...
    def on_slots(self, run: JobRun, slots: Sequence[int], pid: int | None) -> None:  # noqa: ARG002 - there is one
        self.slots.append(tuple(slots))

    def on_turn(self, run: JobRun, event: Message) -> None: ...
    def on_over(self, run: JobRun) -> None:  # noqa: ARG002 - there is one
        self.is_over = True


class Harness:
    """A cluster without agents, and runs of a job of 10 iterations: 4 s each on 1 GPU, 2 s on 2."""

    def __init__(self, model: str = "net") -> None:
        step_s = np.array([[np.inf, 4.0, 2.0]])
        speeds = speeds_of(("net",), step_s, np.isfinite(step_s))
        self.time, self.heard = ManualTime(), Heard()
        self.cluster = EmulatedCluster(self.time, speeds, reconfigure_of("none"))
        self._argv = (SCRIPT, *EmulatedJob(model, 10.0).args)

    def run(
        self,
        attempt: int = 1,
        *,
        adopt: bool = False,
        precheck: bool = False,
        tier: Tier = "elastic",
    ) -> EmulatedRunner:
        spec = JobSpec(name="job", launch=Launch(argv=self._argv), tier=tier, gpus_max=2)
        about = {"spec": spec, "node": "n0", "environment": NO_PROCESS, "adopt": adopt}
        about["precheck"] = precheck
        return EmulatedRunner(
            JobRun(job=1, attempt=attempt, **about),  # type: ignore[arg-type]
            self.heard,
            self.cluster,
        )


def slots(*numbers: int) -> list[AssignedSlot]:
    return [AssignedSlot(number, "n0", None) for number in numbers]


def test_a_run_tells_what_a_supervisor_tells() -> None:
    harness = Harness()
    runner = harness.run()
    runner.start(slots(0), {})
    harness.time.turn(20.0)
    runner.resize(slots(0, 1), {})
    harness.time.turn(10.0)
    assert harness.heard.facts == [
        RunPrepared(1, 1, None, 10),
        RunChanged(1, 1, 1, "started", 0, (0,), 0, 0.0, 0.0),
        RunStepped(1, 1, 1),
        RunChanged(1, 1, 2, "resized", 1, (0, 1), 5, 0.0, 0.0),
        RunEnded(1, 1, "succeeded", 10, 0),
    ]
    assert harness.heard.is_over


def test_a_precheck_gives_its_slots_back() -> None:
    harness = Harness()
    harness.run(precheck=True).start(slots(0), {})
    assert harness.heard.facts == [RunEnded(1, 1, "prechecked")]
    assert harness.heard.slots == [()]


def test_a_command_gives_its_slots_back_and_workers_are_told_of_by_their_host() -> None:
    harness = Harness()
    command = harness.run(tier="restartable")
    command.start(slots(0), {})
    command.suspend("told to")
    assert harness.heard.slots == [()]
    workers = harness.run(attempt=2)
    workers.start(slots(0), {})
    workers.cancel()
    assert harness.heard.slots == [()]


def test_progress_is_that_of_the_size_it_has() -> None:
    harness = Harness()
    runner = harness.run()
    runner.start(slots(0), {})
    at_first = runner.progress
    assert at_first is None
    harness.time.turn(13.0)
    progress = runner.progress
    assert progress is not None
    told = progress.progressed
    assert (told.step, told.gpus, told.step_s, told.iterations) == (3, 1, 4.0, 3)


def test_a_run_that_ends_while_it_is_told_to_resize_has_succeeded() -> None:
    harness = Harness()
    runner = harness.run()
    runner.start(slots(0), {})
    harness.time.at_s += 100.0  # the machine was busy: its timer comes late
    runner.resize(slots(0, 1), {})
    runner.suspend("others need its GPUs")
    assert harness.heard.facts[-1] == RunEnded(1, 1, "succeeded", 10, 0)


def test_a_suspended_job_goes_on_from_where_it_was() -> None:
    harness = Harness()
    runner = harness.run()
    runner.start(slots(0), {})
    harness.time.turn(21.0)
    runner.suspend("others need its GPUs")
    assert harness.heard.facts[-1] == RunEnded(1, 1, "retired", 5)
    harness.time.turn(100.0)
    harness.run(2).start(slots(1), {})
    harness.time.turn(19.0)
    assert harness.heard.facts[-1] == RunEnded(1, 2, "succeeded", 10, 0)


def test_the_next_lead_adopts_a_training_that_goes_on() -> None:
    harness = Harness()
    first = harness.run()
    first.start(slots(0), {})
    harness.time.turn(20.0)
    first.release()
    harness.time.turn(10.0)  # workers train on without a lead
    harness.run(2, adopt=True).start(slots(0), {})
    harness.time.turn(10.0)
    assert harness.heard.facts[-1] == RunEnded(1, 2, "succeeded", 10, 0)


def test_a_model_without_speeds_fails() -> None:
    harness = Harness("bert")
    harness.run().start(slots(0), {})
    (ended,) = harness.heard.facts
    assert isinstance(ended, RunEnded)
    assert ended.outcome == "failed"
    assert ended.trouble is not None
    assert ended.trouble.because == 'there are no speeds of model "bert"'
