"""What the demo shows and sums up, from recorded answers."""

import io
from typing import Any

import pytest
from rich.console import Console

from coddl.cli.demo.display import LineDisplay, screen, timeline
from coddl.cli.demo.history import DemoHistory, Sample
from coddl.cli.demo.scenario import SCHEDULED_JOBS, SCRIPT, SCRIPTS, WARM_UP_JOB, StepProfile
from coddl.cli.demo.summary import (
    DemoSummary,
    JobResult,
    curve_of,
    fared,
    fifo_jct_s,
    summary_lines,
)
from tests.cli.recorded import EXPLAINED, JOB, NOW_S


def bill_of(*names: str) -> DemoHistory:
    history = DemoHistory(4, "GPUs", "afs-p", NOW_S)
    for number, scheduled in enumerate(
        (scheduled for scheduled in SCHEDULED_JOBS if scheduled.name in names), start=1
    ):
        history.enter(scheduled, JOB | {"id": number, "name": scheduled.name})
    return history


def event(what: str, job: int | None, at_s: float = 1.0, **detail: Any) -> dict[str, Any]:
    return {"kind": what, "job": job, "at_s": NOW_S + at_s, "detail": detail}


TARGETS = {"1": {"slots": [0, 1], "reason": "it gains"}, "9": {"slots": [], "reason": "x"}}
HEARD = {
    "a job": (event("JobSubmitted", 1), [(1.0, "resnet", "submitted")]),
    "a decision about some": (
        event("Decided", None, targets=TARGETS, why="b finished"),
        [(1.0, "resnet", "3 → 2 GPUs (b finished)")],
    ),
    "a decision against a job": (
        event("Decided", None, targets={"1": {"slots": [], "reason": "b came"}}, why="b came"),
        [(1.0, "resnet", "3 → 0 GPUs: b came")],
    ),
    "a change": (
        event("RunChanged", 1, 2.5, kind="resized", gpus_before=1, slots=[0, 1, 2], pause_s=0.02),
        [(2.5, "resnet", "resized 1 → 3 GPUs (pause 20 ms)")],
    ),
    "a start is no change of size": (
        event("RunChanged", 1, kind="started", gpus_before=0, slots=[0], pause_s=0.0),
        [],
    ),
    "an end": (
        event("RunEnded", 1, outcome="succeeded", step=9),
        [(1.0, "resnet", "finished at step 9")],
    ),
    "what concerns nobody here": (event("NodeJoined", None, node="n"), []),
}


@pytest.mark.parametrize(("heard", "want"), HEARD.values(), ids=HEARD.keys())
def test_what_is_worth_a_line(heard: dict[str, Any], want: list[tuple[float, str, str]]) -> None:
    history = bill_of("resnet")
    history.parts[0].decided = 3
    new = history.hear([heard])
    assert [(round(at_s, 1), who, what) for at_s, who, what in new] == want
    assert history.lines == new
    is_change = "resized" in "".join(what for _, _, what in want)
    assert history.parts[0].pauses_s == ([0.02] if is_change else [])


def test_a_decision_is_told_from_the_one_before_however_late_it_is_heard_of() -> None:
    history = bill_of("resnet")
    history.see([JOB | {"id": 1, "gpus": 2}], NOW_S + 2)  # it has been carried out by now
    targets = [{"1": {"slots": list(range(gpus)), "reason": "it gains"}} for gpus in (1, 2)]
    history.hear([event("Decided", None, targets=each, why="a came") for each in targets])
    assert [what for _, _, what in history.lines] == [
        "0 → 1 GPUs (a came)",
        "1 → 2 GPUs (a came)",
    ]


def test_shares_are_kept_where_they_change() -> None:
    history = bill_of("resnet")
    for at_s, gpus, state in ((0, 0, "PENDING"), (1, 2, "RUNNING"), (2, 2, "RUNNING")):
        history.see([JOB | {"id": 1, "gpus": gpus, "state": state}], NOW_S + at_s)
    assert not history.is_over
    history.see([JOB | {"id": 1, "gpus": 0, "state": "SUCCEEDED"}], NOW_S + 3)
    assert history.parts[0].samples == [Sample(0, 0), Sample(1, 2), Sample(3, None)]
    assert history.is_over


def test_a_share_over_time_is_a_line_of_heights() -> None:
    history = bill_of("resnet")
    part = history.parts[0]
    part.samples = [Sample(1, 0), Sample(3, 1), Sample(5, 4), Sample(7, 2), Sample(8, None)]
    history.now_s = 9.5
    assert timeline(part, history, 12, 12.0) == " ··▂▂██▄    "
    assert timeline(part, history, 6, 12.0) == "·▂█▄  "
    part.samples, history.now_s = [Sample(0, 3)], 2.0
    assert timeline(part, history, 4, 4.0) == "▆▆▆ "  # the future is empty


def test_the_picture_has_a_row_and_a_reason_per_job() -> None:
    history = bill_of("resnet", "vit")
    ended = JOB | {"id": 2, "state": "SUCCEEDED", "jct_s": 13.04}
    history.see([JOB | {"id": 1}, ended], NOW_S + 20)
    history.hear([event("JobSubmitted", 2)])
    lines = [line.plain for line in screen(history, 100)]
    assert lines[0] == "CoDDL demo  4 GPUs, policy afs-p, 20 s"
    assert lines[2].split()[0] == "resnet"
    assert lines[2].split()[-4:] == ["■■■□", "RUNNING", "━" * 10, "42%"]
    assert lines[3].strip() == "afs-p: it gains most"
    assert lines[4].split()[-4:] == ["□□□□", "SUCCEEDED", "━" * 10, "100%"]
    assert lines[5].strip() == "finished 13.0 s after its submission, with 0 resizes"
    assert lines[-1] == "   1.0 s  vit      submitted"
    assert max(map(len, lines)) <= 100


def test_a_file_gets_lines() -> None:
    out = io.StringIO()
    with LineDisplay(Console(file=out)) as display:
        display.show(bill_of("vit"), [(1.0, "vit", "x" * 200)])
    assert out.getvalue() == f"   1.0 s  vit      {'x' * 200}\n"


def job(name: str, at_s: float, steps: int, step_s: dict[int, float], **more: Any) -> JobResult:
    fields = {"kind": StepProfile(0.0, 0.0), "state": "SUCCEEDED", "jct_s": 10.0, "gpus_max": 4,
              "resizes": 1, "pauses_s": (0.01, 0.03)}  # fmt: skip
    return JobResult(name, submitted_s=at_s, steps=steps, step_s=step_s, **{**fields, **more})


LINEAR, FLAT = StepProfile(0.05, 0.0), StepProfile(0.0, 0.1)


def test_fifo_gives_each_job_its_maximum_when_those_before_are_done() -> None:
    jobs = [
        job("a", 0.0, 100, {1: 0.4, 4: 0.1}, kind=LINEAR),  # 0 to 10
        job("b", 1.0, 50, {1: 0.1}, kind=FLAT),  # 10 to 15, though it gains nothing from four
        job("c", 2.0, 10, {}, kind=LINEAR, gpus_max=2),  # 15 to 17
        job("d", 3.0, 10, {2: 0.2}, kind=LINEAR, gpus_max=2),  # beside it
    ]
    assert fifo_jct_s(jobs, 4) == pytest.approx([10.0, 14.0, 15.0, 14.0])


def test_what_was_not_measured_is_worked_out_from_what_was() -> None:
    lone = job("a", 0, 9, {1: 0.41}, kind=LINEAR)
    alike = job("b", 0, 9, {1: 0.5, 2: 0.22}, kind=LINEAR)
    other = job("c", 0, 9, {1: 0.5, 4: 0.9}, kind=FLAT)
    third_s = 0.4 / 3
    alone = {1: 0.41, 2: 0.21, 3: third_s + 0.01, 4: 0.11}
    assert curve_of(lone, [lone, other]) == pytest.approx(alone)
    known = {1: 0.41, 2: 0.22, 3: third_s + 0.015, 4: 0.115}  # 15 ms more than its pauses
    assert curve_of(lone, [lone, alike, other]) == pytest.approx(known)


def test_what_the_server_explains_tells_how_a_job_fared() -> None:
    told = EXPLAINED | {"job": JOB | {"jct_s": 130.0, "submitted_s": NOW_S + 4}}
    found = fared(FLAT, told, NOW_S, [0.02])
    assert (found.submitted_s, found.jct_s, found.steps, found.gpus_max) == (4, 130.0, 1000, 8)
    assert found.step_s == {1: 0.4}  # what is assumed does not count


SUMMARY = """
JOB  STATE      SUBMITTED  JCT     FIFO      RESIZES  PAUSES
a    SUCCEEDED  0 s        10.0 s  20.0 s    1        median 20 ms, longest 30 ms
b    SUCCEEDED  1 s        10.0 s  30.0 s ~  1

mean JCT 10.0 s with afs-p, 25.0 s with FIFO: 2.50x
2 resizes during training; pauses: median 20 ms, longest 30 ms
"""


def test_the_summary_says_what_was_measured_and_what_simulated() -> None:
    jobs = (
        job("a", 0.0, 9, {1: 0.4, 4: 0.1}),
        job("b", 1.0, 9, {1: 0.4}, kind=FLAT, pauses_s=()),
    )
    summary = DemoSummary("afs-p", 4, jobs, (20.0, 30.0))
    text = "\n".join(line.plain.rstrip() for line in summary_lines(summary))
    assert text.startswith(SUMMARY)
    assert "FIFO: simulated" in text
    assert "~ estimated: its speed at its maximum was not measured" in text
    data = summary.as_data()
    assert (data["speedup"], data["resizes"], data["longest_pause_s"]) == (2.5, 2, 0.03)
    assert data["jobs"][1]["fifo_jct_s"] == 30.0


def test_the_jobs_of_the_demo_are_such_as_the_pool_takes() -> None:
    from coddl.api.spec import read_request

    assert [scheduled.at_s for scheduled in SCHEDULED_JOBS] == sorted(
        scheduled.at_s for scheduled in SCHEDULED_JOBS
    )
    for scheduled in (WARM_UP_JOB, *SCHEDULED_JOBS):
        assert (SCRIPTS / SCRIPT).is_file()
        assert read_request(scheduled.request(2, "ann")).to_spec(2).gpus_max == 2
