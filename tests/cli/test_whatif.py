"""`coddl whatif`, on a journal that a demo has written."""

import io
import json
import os
import time
from pathlib import Path

import pytest
from rich.console import Console

from coddl.api.rest_whatif import WhatIfResultView
from coddl.cli.table import plain_table, print_widest, short_duration
from coddl.cli.whatif import since_of
from coddl.core.errors import UserError
from coddl.server.journal import Journal
from coddl.server.store_sql import SqlStore, sqlite_url
from tests.cli.conftest import Coddl
from tests.journals import demo_records, write_journal

pytestmark = pytest.mark.usefixtures("work_folder")
NOW_S = 1_795_000_000.0


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The state directory of a pool."""
    folder = tmp_path / "pool"
    folder.mkdir()
    write_journal(folder, demo_records())
    return folder


def test_a_journal_is_replayed_as_the_server_expects_it(coddl: Coddl, state: Path) -> None:
    told = coddl("whatif", "--policy=max-min", "--gpus=8", f"--journal={state}", "-o", "json")
    found = WhatIfResultView.model_validate_json(told.out)
    assert [(run.policy, run.gpus) for run in found.runs[1:]] == [("max-min", 8)]
    assert found.replay.within_5_percent is not None
    progress = [json.loads(line)["progress"] for line in told.err.splitlines()]
    assert progress == sorted(progress)
    assert (progress[0], progress[-1]) == (0.0, 1.0)


def test_a_table_compares_what_was_with_what_if(coddl: Coddl, state: Path) -> None:
    told = coddl("whatif", "--policy", "max-min", "--state-dir", str(state), "--report", "r.html")
    lines = [line.split() for line in told.out.splitlines()]
    rows = [line for line in lines if line[:1] in (["recorded"], ["replayed"], ["what"])]
    assert [row[0] for row in rows] == ["recorded", "replayed", "what"]
    assert rows[0][4] == "s", "a time has its unit"
    heads = lines[1:4]
    assert any(line[:1] == ["CPU"] for line in heads)
    assert any("slots" in line for line in heads)
    assert "The replay of what was" in told.out
    assert "Only 7 jobs have ended: too few to compare policies." in told.out
    assert "(recorded)" in Path("r.html").read_text("utf-8")


def test_a_narrow_terminal_hides_the_last_columns() -> None:
    rows = [{"": "replayed", "policy": "fifo", "p50": "1.00 s", "p95": "2.00 s"}]
    console = Console(width=36, file=io.StringIO())
    text, numbers = ["", "policy"], ["p50", "p95"]
    print_widest(lambda count: plain_table("7 jobs", rows, text, numbers[:count]), 2, console)
    assert isinstance(console.file, io.StringIO)
    told = console.file.getvalue()
    assert "1.00 s" in told
    assert "2.00 s" not in told
    assert "1 column hidden" in told


DURATIONS = {0.25: "0.25 s", 59.0: "59.0 s", 3904.0: "1.08 h", 635808.0: "7.36 d", None: ""}


@pytest.mark.parametrize(("seconds", "want"), DURATIONS.items())
def test_a_duration_has_the_unit_that_suits_it(seconds: float | None, want: str) -> None:
    assert short_duration(seconds) == want


def test_a_span_counts_from_the_clock_of_the_pool(coddl: Coddl, tmp_path: Path) -> None:
    records = demo_records()
    ahead_s = time.time() + 40 * 86400.0 - records[-1].at_s  # as in an emulated pool
    write_journal(tmp_path, [record._replace(at_s=record.at_s + ahead_s) for record in records])
    words = ("whatif", "--policy", "max-min", "--state-dir", str(tmp_path), "-o", "json")
    found = coddl(*words, "--since", "20s")
    assert found.code == 0, found.err
    told = json.loads(found.out)
    assert told["until_s"] - told["since_s"] == pytest.approx(20.0)


def test_a_journal_is_read_while_its_server_writes_and_is_left_as_it_is(
    coddl: Coddl, state: Path
) -> None:
    journal = Journal(SqlStore(sqlite_url(state / "journal.db")))  # as a server has it
    before = journal.last_seq
    journal.append([demo_records()[-1].record], [], NOW_S)
    words = ("whatif", "--policy", "max-min", "-o", "json")
    assert coddl(*words, "--journal", str(state / "journal.db")).code == 0
    assert coddl(*words, "--journal", f"sqlite:///{state / 'journal.db'}").code == 0
    assert journal.last_seq == before + 1
    journal.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_journal_in_a_folder_that_is_read_only_is_read(coddl: Coddl, state: Path) -> None:
    state.chmod(0o500)
    assert coddl("whatif", "--policy", "max-min", "--journal", str(state)).code == 0


MISTAKES = {
    "no journal": (("--journal", "nowhere"), "nowhere does not exist"),
    "no database": (("--journal", "no-such://host/db"), "not the URL of a database"),
    "no policy": (("--policy", "best"), 'named "best"'),
    "no time": (("--since", "soon"), "neither a time nor a span of time"),
    "no GPUs": (("--gpus", "0"), "from 1 to 100,000 GPUs"),
    "no folder": (("--report", "no/report.html"), "not a writable folder"),
    "after its end": (("--since", "2100-01-01"), "the last record is of 2026-11-18"),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_told(coddl: Coddl, state: Path, mistake: tuple[tuple[str, str], str]) -> None:
    words, because = mistake
    found = coddl("whatif", *words, "--state-dir", str(state))
    assert found.code == 2
    assert because in found.err


def test_a_password_is_not_shown(coddl: Coddl) -> None:
    url = "postgresql://ada:secret-word@127.0.0.1:1/coddl"
    found = coddl("whatif", "--journal", url)
    assert found.code == 2
    assert "secret-word" not in found.err + found.out


@pytest.mark.parametrize(
    ("text", "at_s"),
    {"90m": NOW_S - 5400, "12h": NOW_S - 43200, "7d": NOW_S - 604800, "1e9": 1e9}.items(),
)
def test_a_time_is_read(text: str, at_s: float) -> None:
    assert since_of(text, NOW_S) == at_s


def test_a_time_may_have_a_zone() -> None:
    assert since_of("2026-11-02T08:00+00:00", NOW_S) == 1_793_606_400.0
    with pytest.raises(UserError, match="neither a time"):
        since_of("nan", NOW_S)
