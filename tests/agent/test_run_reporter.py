"""What a supervisor tells, as facts and lines."""

from typing import Any

import pytest

from coddl.agent.run_reporter import Asked, RunReporter
from coddl.api.wire import Progress, encoded, from_agent
from coddl.core.pool.records import (
    LossMeasured,
    RunChanged,
    RunEnded,
    RunPrepared,
    RunProfiled,
    RunProgressed,
    RunStalled,
    RunStepped,
    RunUnsaved,
    SliceDidNotFit,
    Trouble,
)
from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor.job_status import SUPERSEDED
from coddl.runtime.wire import Message
from tests.core.pool.profiles import PROFILE

PROGRESS = {"is": "progress", "step": 7, "size": 2, "step_s": 0.5, "iterations_at_size": 12}
ERROR = {"is": "error", "what": "w", "because": "b", "try": "t"}
TROUBLE = Trouble("w", "b", "t")
UNSAVED = {**ERROR, "is": "unsaved"}
REGROUPED = {"is": "regrouped", "from": 2, "to": 1, "slots": [5], "step": 7}
REGROUPED |= {"pause_s": 0.1, "serving_s": 0.7}


def gone(code: int, **more: Any) -> Message:
    return {"is": "exited", "worker": 3, "code": code, "signal": None, "expected": False, **more}


def facts(*events: Message) -> list[object]:
    reporter = RunReporter(4, 2)
    return [fact for event in events for fact in reporter.hear(event)[0]]


def test_a_job_is_prepared_once() -> None:
    event = {"is": "prepared", "workers_max": 16, "global_batch": 64, "steps": 100}
    event |= {"gradient_bytes": 40, "largest_tensor_bytes": 30, "model": 99, "micro_batch": 8}
    event |= {"training": "abc", "epoch_steps": 10}
    assert facts(event, event) == [RunPrepared(4, 2, None, 100, 64, 40, 30, 16, 99, 8, "abc", 10)]


PREPARED = {
    "a strict job": ({"virtual_nodes": 8, "workers_max": 8}, (8, 100, 64, 0, 0, 8)),
    "an older worker": ({"virtual_nodes": 8}, (8, 100, 64, 0, 0, None)),
    "an unknown length": ({"workers_max": 64, "steps": None}, (None, None, 64, 0, 0, 64)),
}


@pytest.mark.parametrize(("told", "want"), PREPARED.values(), ids=PREPARED.keys())
def test_what_a_job_can_be_resized_to(told: Message, want: tuple[Any, ...]) -> None:
    event = {"is": "prepared", "global_batch": 64, "steps": 100, **told}
    assert facts(event) == [RunPrepared(4, 2, *want)]


def test_a_slice_that_did_not_fit_is_a_fact_and_a_line() -> None:
    event = {"is": "memory", "workers_min": 2, "because": "64 samples do not fit"}
    event |= {"evidence": "remembered", "samples": 64}
    assert RunReporter(4, 2).hear(event) == (
        (SliceDidNotFit(4, 2, 2, "64 samples do not fit", "remembered", 64),),
        "needs at least 2 GPUs: 64 samples do not fit",
    )


def test_a_profile_is_a_fact_unless_another_version_has_measured() -> None:
    told = {"is": "profile", "profile": PROFILE.as_data()}
    assert facts(told) == [RunProfiled(4, 2, PROFILE)]
    assert facts({"is": "profile", "profile": PROFILE.as_data() | {"version": 99}}) == []


def test_the_first_step_is_a_fact_and_the_others_are_progress() -> None:
    reporter = RunReporter(4, 2)
    assert reporter.hear({**PROGRESS, "step": 0})[0] == ()
    assert reporter.hear(PROGRESS)[0] == (RunStepped(4, 2, 7),)
    assert reporter.hear({**PROGRESS, "step": 8})[0] == ()
    assert reporter.progress is not None
    assert reporter.progress.progressed == RunProgressed(4, 2, 8, 2, 0.5, 12)


def losing(step: int, loss: float, *, at: int | None = None) -> Message:
    """Give progress of a job that has logged a loss."""
    told = {"step": at if at is not None else step, "loss": loss, "count": 5}
    return {**PROGRESS, "step": step, "loss": told}


def test_a_loss_is_a_fact_when_the_job_is_a_tenth_further() -> None:
    reporter = RunReporter(4, 2)
    events = [losing(100, 3.0), losing(104, 2.0), losing(105, 2.0, at=104), losing(111, 1.0)]
    told = [fact for event in events for fact in reporter.hear(event)[0]]
    assert told == [
        RunStepped(4, 2, 100),
        LossMeasured(4, 2, 100, 3.0),
        LossMeasured(4, 2, 108, 1.5),
    ]


def test_a_number_that_is_none_is_no_metric() -> None:
    """A script that logs NaN must not make the server hang up on the agent."""
    reporter = RunReporter(4, 2)
    reporter.hear({**PROGRESS, "metrics": {"loss": None, "rate": 0.1}})
    assert reporter.progress is not None
    assert reporter.progress.metrics == {"rate": 0.1}
    assert reporter.progress.not_finite == ("loss",)
    told = Progress(runs=(reporter.progress,))
    assert from_agent(encoded(told)) == told


def test_changes_are_counted_and_name_slots() -> None:
    change = {"is": "resized", "from": 1, "to": 2, "slots": [5, 6], "step": 9}
    change |= {"pause_s": 0.1, "serving_s": 0.7}
    assert facts(change, {**change, "is": "regrouped"}) == [
        RunChanged(4, 2, 1, "resized", 1, (5, 6), 9, 0.1, 0.7),
        RunChanged(4, 2, 2, "regrouped", 1, (5, 6), 9, 0.1, 0.7),
    ]


def test_a_checkpoint_shows_in_the_progress() -> None:
    reporter = RunReporter(4, 2)
    reporter.hear({"is": "checkpoint", "step": 5})
    reporter.hear(PROGRESS)
    assert reporter.progress is not None
    assert reporter.progress.saved_step == 5


def test_what_can_not_be_saved_is_a_fact_until_it_is() -> None:
    saved = {"is": "checkpoint", "step": 9}
    assert facts(saved, PROGRESS, UNSAVED, UNSAVED, {**PROGRESS, "step": 9}, saved, saved) == [
        RunStepped(4, 2, 7),
        RunUnsaved(4, 2, 7, TROUBLE),
        RunUnsaved(4, 2, 9, None),
    ]


def test_a_stall_is_told_and_is_no_step() -> None:
    reporter = RunReporter(4, 2)
    assert reporter.hear({**PROGRESS, "is": "still", "still_s": 12.5}) == ((), "")
    assert reporter.progress is not None
    assert reporter.progress.still_s == 12.5
    stalled = {"is": "stalled", "step": 7, "still_s": 60.0}
    assert reporter.hear(stalled) == ((RunStalled(4, 2, 7, 60.0),), "no step for 60 s")
    assert reporter.hear(PROGRESS)[0] == (RunStepped(4, 2, 7),)


LINES = {
    "an early end": (
        {"is": "left-early", "step": 30, "steps": 256},
        "the script left its loop at step 30 of 256",
    ),
    "a failed save": (UNSAVED, "w: b; try: t"),
    "a problem": ({**ERROR, "is": "problem"}, "w: b; try: t"),
    "an error": (ERROR, "w: b; try: t"),
    "a kill": (gone(-9, signal="SIGKILL"), "worker 3 was lost: killed by SIGKILL"),
    "a loss": (gone(-9, because="node b hung up"), "worker 3 was lost: node b hung up"),
    "a failure": (gone(1), "worker 3 exited with code 1"),
    "an exit that was to be": (gone(0, expected=True), ""),
    "a beginning": ({"is": "origin", "where": "scratch", "step": 0}, "starting from the beginning"),
    "a continuation": (
        {"is": "origin", "where": "checkpoint", "step": 6, "skipped": ["x is torn"]},
        "x is torn; resuming from step 6 in checkpoint",
    ),
    "a word of a newer supervisor": ({"is": "whistled"}, ""),
}


@pytest.mark.parametrize(("event", "want"), LINES.values(), ids=LINES.keys())
def test_what_people_read(event: Message, want: str) -> None:
    assert RunReporter(4, 2).hear(event)[1] == want


ENDS: dict[str, tuple[list[Message], int, Asked, RunEnded | None]] = {
    "a good end": ([], 0, "", RunEnded(4, 2, "succeeded", exit_code=0)),
    "a good end in spite of all": ([], 0, "retire", RunEnded(4, 2, "succeeded", exit_code=0)),
    "it left": ([PROGRESS], 75, "retire", RunEnded(4, 2, "retired", step=7)),
    "it had to be ended": ([], 130, "retire", RunEnded(4, 2, "retired")),
    "it left after a crash that it survived": (
        [PROGRESS, gone(-11), REGROUPED],
        75,
        "retire",
        RunEnded(4, 2, "retired", step=7),
    ),
    "it survived a crash and had to be ended": (
        [gone(-11), PROGRESS],
        130,
        "retire",
        RunEnded(4, 2, "retired", step=7),
    ),
    "its workers were killed after a crash that it survived": (
        [gone(1), REGROUPED, gone(-9), ERROR],
        1,
        "",
        RunEnded(4, 2, "lost", step=7, trouble=TROUBLE),
    ),
    "it failed while it was to leave": (
        [gone(-11), REGROUPED, gone(3), ERROR],
        3,
        "retire",
        RunEnded(4, 2, "failed", step=7, exit_code=3, trouble=TROUBLE),
    ),
    "it left, and its state was not saved": (
        [PROGRESS, UNSAVED, {"is": "suspended", "durable": False}],
        75,
        "retire",
        RunEnded(4, 2, "lost", step=7, trouble=TROUBLE),
    ),
    "its script left its loop": (
        [{"is": "left-early", "step": 30, "steps": 256}],
        0,
        "",
        RunEnded(4, 2, "succeeded", exit_code=0, left_early=True),
    ),
    "it was cancelled": ([], 130, "cancel", RunEnded(4, 2, "cancelled")),
    "exited with code 75, which asks for a restart": (
        [],
        75,
        "",
        RunEnded(4, 2, "requeue", exit_code=75),
    ),
    "its script failed": (
        [gone(3), ERROR],
        3,
        "",
        RunEnded(4, 2, "failed", exit_code=3, trouble=TROUBLE),
    ),
    "its script crashed": (
        [gone(-11), ERROR],
        1,
        "",
        RunEnded(4, 2, "failed", exit_code=1, trouble=TROUBLE),
    ),
    "it was rejected": ([ERROR], 2, "", RunEnded(4, 2, "failed", exit_code=2, trouble=TROUBLE)),
    "its workers were killed": ([gone(-9), ERROR], 1, "", RunEnded(4, 2, "lost", trouble=TROUBLE)),
    "a worker was killed after its last step": (
        [gone(-9), ERROR],
        137,
        "",
        RunEnded(4, 2, "lost", trouble=TROUBLE),
    ),
    "it did not say why": (
        [],
        1,
        "",
        RunEnded(
            4, 2, "lost", trouble=Trouble("the run ended", "its exit code was 1", "coddl logs 4")
        ),
    ),
    "a newer attempt leads": ([], SUPERSEDED, "", None),
}


@pytest.mark.parametrize(("events", "code", "asked", "want"), ENDS.values(), ids=ENDS.keys())
def test_how_a_run_ends(
    events: list[Message], code: int, asked: Asked, want: RunEnded | None
) -> None:
    reporter = RunReporter(4, 2)
    for event in events:
        reporter.hear(event)
    assert reporter.ended(code, asked) == want


def test_what_the_system_refused_may_work_elsewhere() -> None:
    refused = TrainingError("w", "b", "t")
    assert RunReporter(4, 2).refused(refused).outcome == "failed"
    refused.__cause__ = OSError(28, "No space left on device")
    assert RunReporter(4, 2).refused(refused) == RunEnded(
        4, 2, "lost", trouble=Trouble("w", "b", "t"), refused=True
    )
