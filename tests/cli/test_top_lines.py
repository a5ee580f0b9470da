"""What `coddl top` draws: the chart, nodes, jobs and decisions, as text."""

from typing import Any

import pytest

from coddl.cli.top.chart import COLOURS, OTHERS, JobMarks, chart_lines
from coddl.cli.top.feed import PoolLook, newest_decisions
from coddl.cli.top.lines import (
    SORTS,
    decision_lines,
    job_counts,
    live_table,
    matches,
    node_lines,
    pool_line,
)
from coddl.cli.top.model import ACTIONS, PoolModel
from coddl.core.errors import UserError
from tests.cli.recorded import ENDED, FAILED, JOB, NODE, NOW_S, WAITING

SUSPENDED = JOB | {"state": "SUSPENDED", "gpus": 0}


def span(job: int, gpus: int, from_s: float, to_s: float | None = None) -> dict[str, Any]:
    return {"job": job, "name": f"job-{job}", "gpus": gpus, "from_s": from_s, "to_s": to_s}


def timeline(*spans: dict[str, Any], gpus: dict[float, int]) -> dict[str, Any]:
    """An account of 100 seconds, with the number of GPUs from some moments on."""
    steps = [{"at_s": at_s, "gpus": number} for at_s, number in gpus.items()]
    return {"since_s": 0.0, "until_s": 100.0, "gpus": steps, "spans": spans, "truncated": False}


# Ten columns of 10 s: at 10 s, 20 s, ... 100 s.
CHARTS: dict[str, tuple[dict[str, Any], int, list[str]]] = {
    "jobs are stacked": (
        timeline(span(7, 2, 0), span(8, 1, 50), gpus={0: 4}),
        4,
        ["    4 ··········", "      ····bbbbbb", "      aaaaaaaaaa", "      aaaaaaaaaa"],
    ),
    "a job leaves": (
        timeline(span(7, 2, 0, 50), gpus={0: 2}),
        4,
        ["    2 aaaa······", "      aaaa······"],
    ),
    "a row stands for several GPUs": (
        timeline(span(7, 7, 0), gpus={0: 8}),
        2,
        ["    8 aaaaaaaaaa", "      aaaaaaaaaa"],
    ),
    "GPUs come later": (
        timeline(gpus={0: 1, 70: 2}),
        4,
        ["    2       ····", "      ··········"],
    ),
    "what takes turns is not drawn above the edge": (
        timeline(span(7, 1, 0), span(8, 1, 0), gpus={0: 1}),
        4,
        ["    1 aaaaaaaaaa"],
    ),
    "no GPU, no chart": (timeline(gpus={0: 0}), 4, []),
}


@pytest.mark.parametrize(("told", "rows", "want"), CHARTS.values(), ids=CHARTS.keys())
def test_a_chart_is_read_without_colour(told: dict[str, Any], rows: int, want: list[str]) -> None:
    marks = JobMarks()
    marks.name(told["spans"])
    *drawn, axis = [line.plain for line in chart_lines(told, marks, 16, rows)] or [""]
    assert drawn == want
    assert axis == ("      1m40s agonow" if want else "")


def test_a_job_keeps_its_letter_as_long_as_it_is_seen() -> None:
    marks = JobMarks()
    marks.name([span(1, 1, 0), span(2, 4, 0)])
    assert [marks.of(job)[0] for job in (2, 1, 3)] == ["a", "b", OTHERS[0]]  # the largest first
    marks.name([span(1, 1, 0), span(3, 8, 0)])
    assert [marks.of(job)[0] for job in (1, 3)] == ["b", "a"]
    marks.name([span(job, 1, 0) for job in range(40)])
    letters = [marks.of(job)[0] for job in range(40)]
    assert letters.count(OTHERS[0]) == 40 - 26
    styles = {marks.of(job)[1] for job in range(40)} - {OTHERS[1]}
    assert styles == set(COLOURS)


SLOTS: Any = NODE["slots"]
NODE_LINES: dict[str, tuple[list[dict[str, Any]], int, list[str]]] = {
    "slots by the letters of their jobs": ([NODE], 1, ["n1 aa"]),
    "a node that is lost": ([NODE | {"state": "LOST", "slots": []}], 1, ["n1 LOST"]),
    "large ones by number": ([NODE | {"slots": SLOTS * 20, "used": 30}], 1, ["n1 30/40"]),
    "as many as fit": ([NODE] * 9, 2, ["n1 aa  n1 aa  n1 aa", "n1 aa  … 5 more: n"]),
}


@pytest.mark.parametrize(("nodes", "most", "want"), NODE_LINES.values(), ids=NODE_LINES.keys())
def test_nodes_are_drawn(nodes: list[dict[str, Any]], most: int, want: list[str]) -> None:
    marks = JobMarks()
    marks.name([span(12, 2, 0)])
    assert [line.plain.rstrip() for line in node_lines(nodes, marks, 20, most)] == want


def test_the_pool_is_a_line() -> None:
    pool = {
        "policy": "afs-p:tie=keep", "slots_used": 3, "slots_total": 8, "nodes": 2, "nodes_up": 1,
        "jobs": {"RUNNING": 2, "STARTING": 1, "PENDING": 4, "SUSPENDED": 1, "SUCCEEDED": 9},
    }  # fmt: skip
    rest = "  CPU slots 3/8  nodes 1/2 up  jobs 3 running, 4 waiting, 1 suspended"
    assert pool_line(pool, [NODE], is_short=True).plain == f"policy afs-p{rest}"
    assert pool_line(pool, [NODE], is_short=False).plain == f"policy afs-p:tie=keep{rest}"
    assert job_counts({}) == "0 running, 0 waiting"


def test_jobs_are_rows_that_fit_80_columns_with_progress_eta_and_speed() -> None:
    marks = JobMarks()
    marks.name([span(12, 3, 0)])
    wordy = JOB | {"name": "bert-large-with-warm-up"}
    header, lines = live_table([wordy, WAITING], marks, NOW_S, 80)
    assert header.plain.split() == [
        "ID", "NAME", "STATE", "GPUS", "PROGRESS", "ETA", "SAMPLES/S", "REASON"
    ]  # fmt: skip
    assert lines[0].plain.startswith("a  12  bert-large-w…  RUNNING  3/1..8  42%")
    assert "1m35s  1,234      afs-p: it" in lines[0].plain
    assert lines[1].plain.startswith("   13  vit")


MATCHES = {
    "nothing": ("", True),
    "part of the name, in any letters": ("BER", True),
    "the state and the node": ("running n2", True),
    "the user and another node": ("ann n3", False),
}


@pytest.mark.parametrize(("words", "want"), MATCHES.values(), ids=MATCHES.keys())
def test_a_filter_wants_all_its_words(words: str, want: bool) -> None:
    assert matches(JOB, words.split()) == want


ORDERS = {
    "ID": [10, 11, 12],
    "NAME": [12, 10, 11],
    "STATE": [11, 10, 12],
    "GPUS": [10, 12, 11],
    "PROGRESS": [12, 10, 11],
    "ETA": [12, 10, 11],
    "SAMPLES/S": [10, 12, 11],
}


@pytest.mark.parametrize("by", SORTS)
def test_jobs_are_sorted_and_those_without_a_number_come_last(by: str) -> None:
    jobs = [
        JOB | {"id": 10, "name": "b", "gpus": 8, "progress": 0.1, "eta_s": 99.0,
               "samples_per_s": 2000.0},
        WAITING | {"id": 11, "name": "c"},
        JOB | {"id": 12, "name": "a", "state": "FAILED"},
    ]  # fmt: skip
    assert [job["id"] for job in sorted(jobs, key=SORTS[by])] == ORDERS[by]


FITS = {
    "suspend": [JOB, WAITING],
    "resume": [SUSPENDED],
    "cancel": [JOB, WAITING, SUSPENDED],
}


@pytest.mark.parametrize("verb", ACTIONS)
def test_what_a_job_can_be_asked_for_depends_on_its_state(verb: str) -> None:
    jobs = [JOB, WAITING, SUSPENDED, ENDED, FAILED, JOB | {"state": "STOPPING"}]
    assert [job for job in jobs if ACTIONS[verb].fits(job)] == FITS[verb]


def decision(number: int, *changes: tuple[str, int, int], trouble: str = "") -> dict[str, Any]:
    names = ("name", "gpus_before", "gpus")
    return {
        "number": number, "at_s": NOW_S, "cause": f"cause {number}", "trouble": trouble or None,
        "changes": [dict(zip(names, change, strict=True)) for change in changes],
    }  # fmt: skip


def look_with(*decisions: dict[str, Any], jobs: tuple[dict[str, Any], ...] = ()) -> PoolLook:
    account = timeline(gpus={0: 2}) | {"until_s": NOW_S}
    return PoolLook({}, [NODE], jobs, account, decisions, may_change=True)


def test_decisions_are_told_in_words_the_newest_last() -> None:
    look = look_with(
        decision(9, trouble="the policy raised an error"),
        decision(8, ("bert", 4, 2), ("vit", 0, 2)),
        decision(7, ("bert", 0, 1)),
    )
    assert [line.plain.partition("  ")[2] for line in decision_lines(look, 3)] == [
        "bert: 0 → 1 CPU slot (cause 7)",
        "bert: 4 → 2, vit: 0 → 2 CPU slots (cause 8)",
        "decision failed (cause 9): the policy raised an error",
    ]
    assert len(decision_lines(look, 1)) == 1


class Recorded:
    """A client that is answered from a list."""

    def __init__(self, decisions: list[dict[str, Any]]) -> None:
        self.decisions = decisions

    def get(self, _path: str, *, limit: int) -> dict[str, Any]:
        return {"items": self.decisions[:limit]}


def test_decisions_that_change_nothing_are_left_out_and_old_ones_are_kept() -> None:
    decisions = [decision(n, *([("a", 0, 1)] if n % 2 else [])) for n in range(400, 0, -1)]
    newest = newest_decisions(Recorded(decisions[100:]), ())  # type: ignore[arg-type]
    assert [each["number"] for each in newest[:2]] == [299, 297]
    more = newest_decisions(Recorded(decisions[:100]), newest)  # type: ignore[arg-type]
    assert [each["number"] for each in more[48:52]] == [303, 301, 299, 297]


def test_an_absence_of_the_server_is_told_while_it_lasts_and_at_its_end() -> None:
    model = PoolModel()
    assert model.take(look_with(), NOW_S) == ""
    model.fail(UserError("the server is away", "it is stopped", "again"), NOW_S)
    model.fail(UserError("the server is away", "it is starting", "again"), NOW_S + 5)
    assert model.status(NOW_S + 5).endswith("trying again: it is starting")
    assert model.take(look_with(), NOW_S + 7) == "the server answers again, after 7s"
    assert (model.status(NOW_S), model.take(look_with(), NOW_S)) == ("", "")


def test_jobs_are_filtered_and_their_order_reversed() -> None:
    model = PoolModel()
    model.take(look_with(jobs=(JOB, WAITING)), NOW_S)
    model.is_reversed = True
    assert [job["id"] for job in model.jobs()] == [13, 12]
    model.words = ["vit"]
    assert [job["id"] for job in model.jobs()] == [13]
    assert model.list_title("1/1") == 'jobs 1/1  by ID, reversed  filter "vit"'
    for _ in SORTS:
        model.sort_by_next()
    assert (model.sort, model.is_reversed) == ("ID", False)
