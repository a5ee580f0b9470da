"""How the pool looks to people: recorded answers of its server, as lines."""

import io
import json
from collections.abc import Iterable
from typing import Any

import pytest
from pydantic import BaseModel
from rich.console import Console
from rich.text import Text

from coddl.cli import poolview as view
from tests.cli.recorded import (
    DECISION,
    ENDED,
    EVENT,
    EXPLAINED,
    FAILED,
    JOB,
    LINE,
    NODE,
    NOW_S,
    PREVIEW,
    WAITING,
)


def plain(lines: Iterable[Text]) -> str:
    return "\n".join(line.plain.rstrip() for line in lines)


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterable[None]:
    import time

    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


DURATIONS = {
    0.4: "0s", 59.4: "59s", 60: "1m00s", 3599: "59m59s", 3600: "1h00m", 86_400: "24h00m",
    200_000: "2d07h", float("inf"): "", -3: "0s",
}  # fmt: skip


@pytest.mark.parametrize(("seconds", "want"), DURATIONS.items())
def test_durations_have_two_units_at_most(seconds: float, want: str) -> None:
    assert view.duration(seconds) == want
    assert view.duration(None) == ""


def test_a_moment_of_another_day_has_its_date() -> None:
    assert view.moment(NOW_S - 60, NOW_S) == "22:12:20"
    assert view.moment(NOW_S - 86_400, NOW_S) == "2023-11-13 22:13:20"


JOBS = """\
ID  NAME  USER  PRIO  STATE      GPUS    NODES  AGE    RUNTIME  RESTARTS  PROGRESS  ETA    REASON
12  bert  ann   0     RUNNING    3/1..8  n1,n2  2m10s  2m00s    0         42%       1m35s  afs-p: it gains most
13  vit   ann   0     PENDING    0/1..8         1h06m           0                          Resources: needs 1 GPU, 0 are free
12  bert  ann   0     SUCCEEDED  0/1..8  n1,n2  2m10s  2m00s    0         42%              afs-p: it gains most
12  bert  ann   0     FAILED     0/1..8  n1,n2  2m10s  2m00s    0         42%              train.py failed"""  # noqa: E501


def test_jobs_are_rows() -> None:
    assert plain(view.jobs_lines([JOB, WAITING, ENDED, FAILED], NOW_S)) == JOBS


HEADERS = {
    200: "ID NAME USER PRIO STATE GPUS NODES AGE RUNTIME RESTARTS PROGRESS ETA REASON",
    100: "ID NAME USER PRIO STATE GPUS NODES AGE RUNTIME PROGRESS ETA REASON",
    78: "ID NAME STATE GPUS RUNTIME PROGRESS ETA REASON",
    20: "ID NAME STATE GPUS PROGRESS REASON",
}


@pytest.mark.parametrize(("width", "want"), HEADERS.items())
def test_a_narrow_terminal_gets_the_columns_that_matter(width: int, want: str) -> None:
    header = view.jobs_lines([JOB], NOW_S, width)[0]
    assert header.plain.split() == want.split()


TURNS = """\
ID  NAME   USER  PRIO  STATE    GPUS  TURN       NODES  AGE    RUNTIME  RESTARTS  PROGRESS  ETA    REASON
1   first  ann   0     RUNNING  1/1   now 38%    n1     2m10s  2m00s    0         42%       1m35s  takes turns
2   other  ann   0     RUNNING  1/1   waits 62%  n1     2m10s  2m00s    0         42%       1m35s  takes turns
3   new    ann   0     RUNNING  1/1   ?          n1     2m10s  2m00s    0         42%       1m35s  takes turns
12  bert   ann   0     RUNNING  3/1..8           n1,n2  2m10s  2m00s    0         42%       1m35s  afs-p: it gains most"""  # noqa: E501


def taking_turns(
    number: int, name: str, has_turn: bool | None, share: float | None
) -> dict[str, Any]:
    turns = {"turn_s": 60.0, "jobs": [1, 2, 3], "has_turn": has_turn, "share": share}
    small = {"gpus": 1, "gpus_max": 1, "nodes": ["n1"], "reason": "takes turns"}
    return JOB | {"id": number, "name": name, "turns": turns} | small


def test_jobs_that_take_turns_show_which_has_it_and_what_each_had() -> None:
    rows = [
        taking_turns(1, "first", True, 0.38),
        taking_turns(2, "other", False, 0.62),
        taking_turns(3, "new", None, None),
    ]
    shown = plain(view.jobs_lines([*rows, JOB | {"turns": None}], NOW_S))
    assert [line.split() for line in shown.splitlines()] == [
        line.split() for line in TURNS.splitlines()
    ]
    wordy = [row | {"reason": "takes turns of 60 s with " + "x" * 80} for row in rows]
    header = view.jobs_lines(wordy, NOW_S, 80)[0].plain
    assert header.split() == ["ID", "NAME", "STATE", "GPUS", "TURN", "PROGRESS", "REASON"]


def test_an_empty_pool_says_what_to_do() -> None:
    assert "coddl submit train.py" in plain(view.jobs_lines([], NOW_S))
    assert "coddl agent" in plain(view.nodes_lines([]))


DESCRIBED = """\
bert (job 12)  RUNNING
  reason     afs-p: it gains most
  GPUs       3 (bounds 1..8) on n1, n2
  step       420 of 1,000 (42%), last checkpoint at 400
  speed      1,234 samples/s
  ETA        1m35s
  metrics    loss 0.1235
  command    train.py --epochs 3
  tier       elastic
  user       ann
  priority   0
  submitted  22:11:10
  started    22:11:20
  time       2m00s running, 10s waiting
  resizes    2, last pause 0.04 s
  restarts   0

latest events
  22:12:20  job 12 resized from 1 to 3 GPUs"""


def test_a_suspended_job_is_not_described_as_saved_earlier_than_it_was() -> None:
    suspended = JOB | {"state": "SUSPENDED", "gpus": 0, "step": 480, "saved_step": 400}
    described = "\n".join(line.plain for line in view.describe_lines(suspended, [], NOW_S))
    assert "step       480 of 1,000" in described
    assert "last checkpoint" not in described


def test_a_job_is_described() -> None:
    assert plain(view.describe_lines(JOB, [EVENT], NOW_S)) == DESCRIBED
    failed = plain(view.describe_lines(FAILED, [], NOW_S))
    assert "  exit code  3\n  error      train.py failed\n  because    ValueError: no\n" in failed
    assert "latest events" not in failed


PREDICTED = JOB | {
    "steps": None,
    "progress": None,
    "length": {
        "source": "predicted",
        "steps_left": 12400,
        "error": 0.3,
        "sentence": "about 12,400 more steps, predicted from its loss ± 30%",
    },
    "losses": [{"step": 10 * n, "loss": 2.0 / n} for n in (1, 2, 4, 8)],
}


def test_a_predicted_length_is_marked_and_its_losses_are_drawn() -> None:
    row = view.job_row(PREDICTED, NOW_S)
    assert (row["ETA"], row["PROGRESS"]) == ("~1m35s", "step 420")
    assert view.job_row(PREDICTED | {"eta_s": None}, NOW_S)["ETA"] == ""
    told = plain(view.describe_lines(PREDICTED, [], NOW_S))
    assert "  ETA        ~1m35s\n" in told
    assert "  length     about 12,400 more steps, predicted from its loss ± 30%\n" in told
    assert "  loss       2 at step 10, 0.25 at step 80  █▄▂▁\n" in told
    explained = plain(view.explain_lines(EXPLAINED | {"job": PREDICTED}, NOW_S))
    assert "about 12,400 more steps, predicted from its loss ± 30%\n" in explained


LOSSES = {
    "none": ([], ""),
    "one": ([{"step": 7, "loss": 0.5}], "0.5 at step 7"),
    "flat": ([{"step": n, "loss": 0.5} for n in (1, 2)], "0.5 at step 1, 0.5 at step 2  ▁▁"),
}


@pytest.mark.parametrize(("points", "want"), LOSSES.values(), ids=LOSSES.keys())
def test_losses_are_written_in_a_line(points: list[dict[str, float]], want: str) -> None:
    assert view.losses(points) == want


LIMIT = "at least 2 GPUs: a slice of 64 samples does not fit in memory on h200"


def test_a_job_that_makes_no_step_or_can_not_be_saved_says_so() -> None:
    unsaved = {"what": "no checkpoint", "because": "the disk is full", "try": "free space"}
    job = JOB | {"still_s": 95.0, "eta_s": None, "samples_per_s": 0.0, "unsaved": unsaved}
    assert view.job_row(job, NOW_S)["REASON"] == "no step for 1m35s; afs-p: it gains most"
    described = "\n".join(line.plain for line in view.describe_lines(job, [], NOW_S))
    assert "no step for 1m35s" in described
    assert "no checkpoint: the disk is full" in described
    assert "samples/s" not in described


def test_a_limit_of_memory_is_shown_once() -> None:
    job = JOB | {"gpus_min": 2, "memory_limit": LIMIT}
    told = plain(view.describe_lines(job, [], NOW_S))
    assert f"  GPUs       3 (bounds 2..8) on n1, n2\n  memory     {LIMIT}\n" in told
    explained = plain(view.explain_lines(EXPLAINED | {"job": job}, NOW_S))
    assert f"it gains most from a third GPU\nit needs {LIMIT}\n" in explained
    waits = EXPLAINED | {"job": job, "sentence": f"no GPU is free; it needs {LIMIT}"}
    assert plain(view.explain_lines(waits, NOW_S)).count(LIMIT) == 1


def test_a_job_whose_workers_are_parked_says_where() -> None:
    job = WAITING | {"parked": {"node": "n1", "bytes": 4 << 30}}
    assert view.job_row(job, NOW_S)["REASON"].endswith("; parked on n1")
    assert "parked" not in view.job_row(WAITING | {"parked": None}, NOW_S)["REASON"]
    sentence = "its workers are parked on node n1: 4.0 GiB in host memory"
    told = EXPLAINED | {"job": job, "parked_sentence": sentence, "speeds": [], "story": []}
    assert plain(view.explain_lines(told, NOW_S)).splitlines()[2:] == [sentence]


PARKED = {
    "one": ({"parked": 1, "parked_bytes": 4 << 30}, "n1: 1 job parked, 4.0 GiB in host memory"),
    "of unknown size": ({"parked": 2, "parked_bytes": 0}, "n1: 2 jobs parked"),
}


@pytest.mark.parametrize(("change", "want"), PARKED.values(), ids=PARKED.keys())
def test_a_node_tells_what_is_parked_there_below_the_table(
    change: dict[str, int], want: str
) -> None:
    assert plain(view.nodes_lines([NODE | change])).splitlines()[2:] == [want]
    assert "parked" not in plain(view.nodes_lines([NODE | {"parked": 0, "parked_bytes": 0}]))


EXPLAINED_TEXT = """\
bert (job 12)  RUNNING  GPUS 3/1..8
it gains most from a third GPU

GPUS  STEP    SPEEDUP  SOURCE
1     0.4 s   1.00x    measured over 50 steps
2     0.21 s  1.90x    interpolated (between measured sizes)
4     0.1 s   4.00x    assumed (not measured yet)

history
  22:11:10  job 12 submitted"""


def test_a_job_is_explained_with_what_was_measured_and_what_was_not() -> None:
    assert plain(view.explain_lines(EXPLAINED, NOW_S)) == EXPLAINED_TEXT
    waits = {
        "job": WAITING,
        "code": "Resources",
        "position": 2,
        "ahead": 1,
        "speeds": [],
        "story": [],
    }
    told = plain(view.explain_lines({**EXPLAINED, **waits}, NOW_S))
    assert told == (
        "vit (job 13)  PENDING  GPUS 0/1..8\n"
        "Resources: it gains most from a third GPU\n"
        "number 2 of the waiting jobs, in order of submission; other jobs that run: 1"
    )


SPEEDS_PREDICTED = [
    {"gpus": 1, "step_s": 0.4, "speedup": 1.0, "source": "measured", "iterations": 50,
     "predicted_s": 0.38, "error": -0.05, "relative_sd": None, "is_trial": False},
    {"gpus": 2, "step_s": 0.42, "speedup": 0.95, "source": "estimated", "iterations": 0,
     "predicted_s": 0.4, "error": None, "relative_sd": 0.12, "is_trial": True},
    {"gpus": 3, "step_s": 0.3, "speedup": 1.33, "source": "remembered", "iterations": 0,
     "predicted_s": 0.25, "error": None, "relative_sd": 0.05, "is_trial": False},
]  # fmt: skip
PREDICTED_TEXT = """\
GPUS  STEP    SPEEDUP  PREDICTED  ERROR  SOURCE
1     0.4 s   1.00x    0.38 s     -5%    measured over 50 steps
2     0.42 s  0.95x    0.4 s      ±12%   estimated (from its profile; worth a trial)
3     0.3 s   1.33x    0.25 s     ±5%    remembered (measured by an earlier job)"""


def test_predictions_stand_beside_what_was_measured() -> None:
    told = plain(view.explain_lines(EXPLAINED | {"speeds": SPEEDS_PREDICTED}, NOW_S))
    assert PREDICTED_TEXT in told
    job = JOB | {"speeds": SPEEDS_PREDICTED, "resizes": 3, "trials": 1}
    told = plain(view.describe_lines(job, [], NOW_S))
    assert all(f"  {line}" in told for line in PREDICTED_TEXT.splitlines())
    assert "3 (1 to measure a size)" in told


def test_of_many_sizes_a_description_has_those_that_were_measured_and_powers_of_two() -> None:
    speeds = [SPEEDS_PREDICTED[1] | {"gpus": gpus} for gpus in range(1, 20)]
    speeds[10] = SPEEDS_PREDICTED[0] | {"gpus": 11}
    told = plain(view.describe_lines(JOB | {"speeds": speeds}, [], NOW_S))
    rows = told.split("SOURCE\n")[1].splitlines()
    assert [int(row.split()[0]) for row in rows] == [1, 2, 4, 8, 11, 16]


def test_seconds_that_nobody_has_seen_are_not_shown() -> None:
    assumed = [
        {"gpus": gpus, "step_s": 1 / gpus, "speedup": gpus, "source": "assumed", "iterations": 0}
        for gpus in (1, 2)
    ]
    told = EXPLAINED | {"job": WAITING, "speeds": assumed}
    text = plain(view.explain_lines(told, NOW_S))
    assert "2     ?     2.00x    assumed" in text
    opaque = told | {"job": WAITING | {"tier": "opaque"}}
    assert "assumed" not in plain(view.explain_lines(opaque, NOW_S))  # its size is fixed


def test_a_preview_tells_what_would_happen_to_everyone() -> None:
    assert plain(view.preview_lines(PREVIEW)) == (
        "dry run, nothing is submitted; 0 of 4 slots are free; policy afs-p\n"
        "JOB  NAME  GPUS   REASON\n"
        "new  vit   0 → 1  it is new\n"
        "12   bert  4 → 3  vit needs one"
    )


def test_nodes_are_rows() -> None:
    slot = {"index": 0, "kind": "h200", "job": None, "used_by_others": "process 7 (x)"}
    shared = {**NODE, "slots": [slot]}
    assert "n1: GPU 0 is in use by process 7 (x)" in plain(view.nodes_lines([shared]))
    assert plain(view.nodes_lines([NODE])) == (
        "NAME  STATE  USED  SLOTS    HOST      LEASE  JOBS\n"
        "n1    UP     2/2   2 x CPU  10.0.0.1  1m58s  12"
    )


LINES: dict[str, tuple[dict[str, Any], str]] = {
    "a worker's": ({}, "[0] loss 0.1"),
    "of a worker without a rank yet": ({"rank": None}, "[5] loss 0.1"),
    "the agent's": ({"stream": "coddl", "text": "starts"}, "coddl: starts"),
}


@pytest.mark.parametrize(("change", "want"), LINES.values(), ids=LINES.keys())
def test_log_lines_say_whose_they_are(change: dict[str, Any], want: str) -> None:
    assert view.log_line(LINE | change) == want


def test_changes_and_ends_are_told_in_a_line() -> None:
    assert view.change_line(WAITING) == (
        "vit (job 13) PENDING, GPUS 0/1..8: Resources: needs 1 GPU, 0 are free"
    )
    assert view.end_sentence(FAILED) == "bert (job 12) FAILED after 2m10s: train.py failed"
    assert view.event_line(DECISION, NOW_S).plain == "22:12:20  afs-p decided"


def test_a_file_gets_whole_lines_without_colour() -> None:
    out = io.StringIO()
    view.show(view.jobs_lines([WAITING | {"reason": "x" * 300}], NOW_S), Console(file=out))
    header, row = out.getvalue().splitlines()
    assert header.startswith("ID  NAME")
    assert row.endswith("x" * 300)
    assert "\x1b" not in out.getvalue()


def test_a_terminal_gets_colour_and_lines_that_fit() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=60, color_system="standard", _environ={})
    lines = view.jobs_lines([WAITING | {"reason": "x" * 300}], NOW_S, 60)
    view.show(lines, console, one_line_each=True)
    assert "\x1b[33mPENDING" in out.getvalue()
    assert out.getvalue().count("\n") == 2
    assert "…" in out.getvalue()


def test_a_terminal_gets_long_sentences_whole_below_each_other() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=40, color_system=None, _environ={})
    reason = "needs 2 CPU slots, no CPU slot is free; other jobs hold them"
    view.show([*view.fields([("reason", reason), ("GPUs", "0")])], console)
    *wrapped, last = out.getvalue().splitlines()
    assert len(wrapped) == 2
    assert [line[:10] for line in wrapped] == ["  reason  ", " " * 10]
    assert " ".join(line[10:].strip() for line in wrapped) == reason
    assert last == "  GPUs    0"
    assert max(map(len, wrapped)) <= 40


def test_the_answers_recorded_here_are_such_as_the_server_gives() -> None:
    from coddl.api import rest

    models: list[tuple[type[BaseModel], list[dict[str, Any]]]] = [
        (rest.JobView, [JOB, WAITING, ENDED, FAILED]),
        (rest.EventView, [EVENT, DECISION]),
        (rest.LogLineView, [LINE]),
        (rest.NodeView, [NODE]),
        (rest.ExplainView, [EXPLAINED]),
        (rest.PreviewView, [PREVIEW]),
    ]
    for model, answers in models:
        for answer in answers:
            model.model_validate_json(json.dumps(answer))
