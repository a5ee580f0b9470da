"""`coddl reproduce`: lists, runs, draws, and says what could not be run."""

import json
import math
from pathlib import Path

import pytest

from coddl.cli.reproduce import complete_experiments
from coddl.core.errors import UserError
from coddl.reproduce import registry
from coddl.reproduce.experiment import Details, Experiment, Figure, Finding, Inputs, Plot
from tests.cli.conftest import Coddl


def found(inputs: Inputs) -> Finding:
    interval = 0.5 if inputs.seeds > 1 else math.nan
    plot = Plot("t", "x", "y", bars={"a": [1.0]}, categories=["one"], errors={"a": [interval]})
    figure = Figure("speed-up", "2.00x", f"{inputs.seeds}.00x")
    return Finding((figure,), plot, ("Read it so.",), Details(["a", "b"], [["c", "d"]]))


def on_data(inputs: Inputs) -> Finding:
    inputs.folder("philly")
    return found(inputs)


def broken(_inputs: Inputs) -> Finding:
    raise UserError("the trace cannot be read", "line 7 is no number", "another file")


def stopped(_inputs: Inputs) -> Finding:
    raise KeyboardInterrupt


ALL = (
    Experiment("sys-quick", "A claim", "A paper", "All of it.", found),
    Experiment("sys-data", "Another claim", "A paper", "Much of it.", on_data, "philly"),
    Experiment("sys-broken", "A third claim", "A paper", "Some of it.", broken),
    Experiment("sys-stopped", "A fourth claim", "A paper", "None of it.", stopped),
)


@pytest.fixture(autouse=True)
def experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have these experiments and no data."""
    choose(monkeypatch, *ALL)
    monkeypatch.delenv("CODDL_DATA", raising=False)


def choose(monkeypatch: pytest.MonkeyPatch, *experiments: Experiment) -> None:
    monkeypatch.setattr(registry, "ALL", experiments)
    monkeypatch.setattr(registry, "EXPERIMENTS", {each.name: each for each in experiments})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data" / "philly").mkdir(parents=True)
    return tmp_path / "data"


def test_without_a_name_it_lists_what_there_is(coddl: Coddl) -> None:
    code, out, _ = coddl("reproduce")
    assert code == 0
    assert all(each.name in out and each.title in out for each in ALL)
    listed = json.loads(coddl("reproduce", "-o", "json").out)["experiments"]
    assert listed[1] == {
        "name": "sys-data", "title": "Another claim", "source": "A paper", "needs": "philly"
    }  # fmt: skip


def test_the_published_number_stands_beside_ours(coddl: Coddl) -> None:
    code, out, _ = coddl("reproduce", "sys-quick", "--seeds", 5)
    assert code == 0
    row = next(line for line in out.splitlines() if "speed-up" in line)
    assert row.split() == ["speed-up", "2.00x", "5.00x"]
    assert "Differs: All of it." in out
    assert "Note: Read it so." in out


def test_a_program_gets_all_of_it(coddl: Coddl) -> None:
    code, out, _ = coddl("reproduce", "sys-quick", "sys-data", "--json")
    quick, skipped = json.loads(out)["results"]
    assert code == 1
    assert quick["figures"] == [{"what": "speed-up", "published": "2.00x", "ours": "3.00x"}]
    assert quick["status"] == "done"
    assert quick["wall_s"] >= 0
    assert skipped["status"] == "skipped"
    assert "philly" in skipped["error"]["because"]


def test_what_json_cannot_express_is_null(coddl: Coddl) -> None:
    _, out, _ = coddl("reproduce", "sys-quick", "--seeds", 1, "--json")
    [quick] = json.loads(out, parse_constant=pytest.fail)["results"]
    assert quick["plot"]["errors"] == {"a": [None]}


CASES = {
    "one that was named has no data": (["sys-quick", "sys-data"], 1),
    "of all, some have no data": (["all"], 0),
    "bad data is an error": (["sys-broken"], 1),
    "there is no such name": (["sys-quik"], 2),
    "a run without seeds": (["sys-quick", "--seeds", "0"], 2),
}


@pytest.mark.parametrize(("words", "want"), CASES.values(), ids=CASES.keys())
def test_exit_codes(
    coddl: Coddl, monkeypatch: pytest.MonkeyPatch, words: list[str], want: int
) -> None:
    if words == ["all"]:
        choose(monkeypatch, *ALL[:2])
    assert coddl("reproduce", *words).code == want


def test_what_has_no_data_is_said_to_be_skipped(
    coddl: Coddl, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(monkeypatch, *ALL[:2])
    _, out, err = coddl("reproduce", "all")
    assert "skipped: there is no folder philly" in out
    assert "--data DIR" in out
    assert "skipped 1 of 2 experiments" in err


def test_data_is_found_by_option_or_variable(
    coddl: Coddl, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert coddl("reproduce", "sys-data", "--data", data).code == 0
    monkeypatch.setenv("CODDL_DATA", str(data))
    assert coddl("reproduce", "sys-data").code == 0
    assert coddl("reproduce", "sys-data", "--data", data / "no").code == 1  # the option wins


def test_pictures_go_to_a_file_or_to_a_folder(coddl: Coddl, tmp_path: Path, data: Path) -> None:
    assert coddl("reproduce", "sys-quick", "--plot", tmp_path / "a.svg").code == 0
    assert (tmp_path / "a.svg").read_text().startswith("<svg")
    words = ("reproduce", "sys-quick", "sys-data", "--data", data, "--plot")
    assert coddl(*words, tmp_path / "new" / "plots").code == 0
    names = {path.name for path in (tmp_path / "new" / "plots").iterdir()}
    assert names == {"sys-quick.svg", "sys-data.svg"}
    refused = coddl(*words, tmp_path / "b.svg")
    assert refused.code == 2
    assert "2 experiments do not fit into one file" in refused.err
    assert coddl("reproduce", "sys-quick", "--plot", tmp_path / "a.svg" / "in").code == 2


def test_a_picture_of_another_kind_is_refused(coddl: Coddl, tmp_path: Path) -> None:
    refused = coddl("reproduce", "sys-quick", "--plot", tmp_path / "x.png")
    assert refused.code == 2
    assert f"--plot {tmp_path / 'x.svg'}" in refused.err
    assert not (tmp_path / "x.png").exists()


def test_ctrl_c_leaves_what_was_found_so_far(coddl: Coddl) -> None:
    code, out, err = coddl("reproduce", "sys-quick", "sys-stopped", "sys-data", "--json")
    assert code == 130
    told = json.loads(out)
    assert told["stopped"]
    assert [each["name"] for each in told["results"]] == ["sys-quick"]
    assert "stopped in sys-stopped" in err


def test_a_shell_completes_names() -> None:
    assert dict(complete_experiments("sys-d")) == {"sys-data": "Another claim"}
    assert "all" in dict(complete_experiments(""))


def test_help_has_examples(coddl: Coddl) -> None:
    assert "coddl reproduce poster-512" in coddl("reproduce", "--help").out
