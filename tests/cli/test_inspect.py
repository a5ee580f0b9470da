"""`coddl inspect`: what it prints of an inspection, and which words it refuses."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from coddl.agent.inspection.hardware import look_at_hardware
from coddl.agent.inspection.store import path_of, store_inspection
from coddl.cli.inspectionview import inspection_lines, plot_lines, seconds, size_words
from coddl.core.speed.inspection import (
    ExchangeTime,
    Inspection,
    LinkSpeed,
    SendTime,
    fitted_link,
)
from tests.cli.conftest import Coddl

SIZES = tuple(1 << bits for bits in range(10, 27, 2))
WIRE = LinkSpeed(1.2, 40.0, 60.0, "gloo")
LINK = fitted_link(
    [ExchangeTime(n, x, WIRE.all_reduce_s(n, x)) for n in (2, 4) for x in SIZES],
    "gloo",
    sent=[SendTime(x, 30e-6 + x / 2e9) for x in SIZES],
)
FOUND = Inspection(
    "2 x NVIDIA H200, driver 580, EPYC, 2 cores",
    {"gpu": WIRE, "node": LINK},
    {"gpu": 1480.0, "cpu": 2.5},
    {"to_host": 50.0, "from_host": 52.0},
    0.04,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give the folder with an inspection of this machine in it."""
    state = tmp_path / "pool"
    store_inspection(state, replace(FOUND, hardware=look_at_hardware(2).hardware))
    return state


def test_an_inspection_is_a_table_of_links_and_rates() -> None:
    lines = [" ".join(line.plain.split()) for line in inspection_lines(FOUND)]
    assert lines[2] == "LINK BACKEND WORKERS GB/S LATENCY CALL ERROR MESSAGES"
    assert lines[3] == "gpu workers that share a GPU gloo 1.2 40 µs 60 µs"
    assert lines[4] == "node workers of one node gloo 2,4 1.2 40 µs 60 µs 0% 2 GB/s, 30 µs"
    assert "Adam on the GPU 1480 GB/s" in lines
    assert "1 GB out and in 40 ms" in lines


def test_a_plot_has_each_measured_time_on_the_line_that_fits_it() -> None:
    plot = [line.plain for line in plot_lines("node", LINK)]
    assert plot[0] == "node: all-reduce, gloo"
    rows = [line[10:] for line in plot[1:-3]]
    points = {(x, y): c for y, row in enumerate(rows) for x, c in enumerate(row) if c in "24"}
    columns = {x for x, _ in points}
    assert len(columns) == len(SIZES)
    assert (min(columns), max(columns)) == (0, 59)
    for number in "24":  # a larger size never takes a shorter time
        heights = [y for (_, y), c in sorted(points.items()) if c == number]
        assert heights == sorted(heights, reverse=True)
    assert plot[-2].split() == ["1", "KB", "256", "KB", "64", "MB"]
    assert plot[1].startswith(f"{seconds(WIRE.all_reduce_s(4, SIZES[-1])):>8} ┤")


def test_a_link_without_times_has_no_plot() -> None:
    assert plot_lines("gpu", WIRE) == []


@pytest.mark.parametrize(
    ("value", "words"), [(2.0, "2 s"), (0.0123, "12.3 ms"), (45e-6, "45 µs"), (0.0, "0 µs")]
)
def test_times_are_short(value: float, words: str) -> None:
    assert seconds(value) == words


@pytest.mark.parametrize(
    ("value", "words"), [(512, "512 B"), (25 << 20, "25 MB"), (1 << 30, "1 GB")]
)
def test_sizes_are_short(value: int, words: str) -> None:
    assert size_words(value) == words


def test_what_is_known_is_shown_and_not_measured_again(
    coddl: Coddl, folder: Path, tmp_path: Path
) -> None:
    words = ("inspect", "--state-dir", folder)
    shown = coddl(*words, "--slots", 2, "--show")
    assert shown.code == 0
    assert "node: all-reduce, gloo" in shown.out
    told = coddl(*words, "--show", "--slots", 2, "--json", "--save", tmp_path / "saved.json")
    assert json.loads(told.out)["links"]["node"] == LINK.as_data()
    assert json.loads((tmp_path / "saved.json").read_text()) == json.loads(told.out)


def test_what_was_never_measured_cannot_be_shown(coddl: Coddl, tmp_path: Path) -> None:
    refused = coddl("inspect", "--state-dir", tmp_path, "--slots", 2, "--show")
    assert refused.code == 2
    assert "this machine has not been inspected" in refused.err
    assert str(path_of(tmp_path, look_at_hardware(2).hardware)) in refused.err


WRONG = {
    "both ways to meet": (("--listen", "a", "--join", "b"), "one node listens"),
    "no code": (("--join", "10.0.0.1"), "--join needs --code"),
    "no host": (("--listen", ":7434"), "neither HOST nor HOST:PORT"),
    "no port": (("--listen", "here:soon"), '"here:soon"'),
    "a port too large": (("--join", "here:70000", "--code", "a"), '"here:70000"'),
    "no port to join": (("--join", "here:0", "--code", "a"), '"here:0"'),
    "one node": (("--listen", "127.0.0.1", "--nodes", "1"), "--nodes"),
    "a show of what is measured": (("--show", "--again"), "--show measures nothing"),
    "no slots": (("--slots", "0"), "--slots"),
}


@pytest.mark.parametrize(("words", "because"), WRONG.values(), ids=WRONG.keys())
def test_words_that_make_no_sense_are_refused(
    coddl: Coddl, tmp_path: Path, words: tuple[str, ...], because: str
) -> None:
    refused = coddl("inspect", "--state-dir", tmp_path / "state", *words)
    assert refused.code == 2
    assert because in refused.err
    assert not (tmp_path / "state").exists()
