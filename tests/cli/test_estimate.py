"""`coddl estimate`, as a user calls it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coddl.cli.estimate import arrangement_from
from coddl.cli.estimateview import seconds
from coddl.core.errors import UserError
from coddl.core.speed.inspection import Inspection, LinkSpeed
from coddl.core.speed.profile import GradientBucket, SliceMemory, SliceTime, TrainingProfile
from tests.cli.conftest import Coddl
from tests.cli.stub_pool import StubPool

# A sample takes 30 ms; a gigabyte of gradients is complete with the backward pass.
PROFILE = TrainingProfile(
    device="cpu",
    batch=60,
    slices=(SliceTime(30, 0.3, 0.6), SliceTime(60, 0.6, 1.2)),
    update_s=0.0,
    other_s=0.0,
    data_s=0.0,
    buckets=(GradientBucket(10**9, 1.0),),
    memory=(SliceMemory(30, 4 * 10**9), SliceMemory(60, 7 * 10**9)),
)


def inspection(between_gb_s: float) -> Inspection:
    """A node with 10 GB/s, and so much between nodes."""
    speeds = {"node": 10.0, "cluster": between_gb_s}
    links = {name: LinkSpeed(gb_s, 0.0, 0.0, "gloo") for name, gb_s in speeds.items()}
    return Inspection.from_data(
        {
            "version": 1,
            "hardware": "",
            "links": {name: link.as_data() for name, link in links.items()},
            "update_gb_s": {},
            "copy_gb_s": {},
            "suspend_s": None,
        }
    )


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with a profile and the inspections of two clusters."""
    monkeypatch.chdir(tmp_path)
    Path("profile.json").write_text(json.dumps(PROFILE.as_data()))
    Path("fast.json").write_text(json.dumps(inspection(5.0).as_data()))
    Path("slow.json").write_text(json.dumps(inspection(0.5).as_data()))


def test_two_gpus_in_a_node_or_three_across_two(coddl: Coddl) -> None:
    """Two take 0.9 + 0.1 s; three 0.6 s and 4/3 of a GB: 0.27 s, or 2.7 s."""
    asked = ("estimate", "profile.json", "--on", "2", "--on", "2+1", "--links")
    fast, slow = coddl(*asked, "fast.json"), coddl(*asked, "slow.json")
    assert fast.code == slow.code == 0
    assert "2+1 is fastest: 3 workers on 2 nodes make 1.15x" in fast.out
    assert "within the uncertainty" in fast.out
    assert "2 is fastest: 2 workers on one node make 3.27x" in slow.out
    assert "within the uncertainty" not in slow.out


def test_the_table_has_a_row_for_each_and_one_worker_to_compare_with(coddl: Coddl) -> None:
    out = coddl("estimate", "profile.json", "--on", "2", "--on", "2x1", "--links", "slow.json").out
    rows = [line.split() for line in out.splitlines()]
    assert ["1", "1", "1", "1.8", "s", "3%", "33.3", "1.00x", "1", "compute"] in rows
    assert next(row for row in rows if row[:3] == ["2", "2", "1"])[3:5] == ["1", "s"]
    assert next(row for row in rows if row[:3] == ["2x1", "2", "2"])[-1] == "exchange"


def test_a_time_line_is_drawn_for_what_was_asked_for(coddl: Coddl) -> None:
    """0.3 s forward, 0.6 s backward, 0.1 s exchange: of 60 columns 18, 36 and 6."""
    out = coddl("estimate", "profile.json", "--on", "2", "--links", "fast.json").out
    drawn = {
        line.split("|")[0].strip(): line.split("|")[1] for line in out.splitlines() if "|" in line
    }
    assert drawn["forward"] == "#" * 18 + " " * 42
    assert drawn["backward"] == " " * 18 + "#" * 36 + " " * 6
    assert drawn["exchange"] == " " * 54 + "#" * 6
    assert "|" not in coddl("estimate", "profile.json").out


def test_alike_ones_are_said_to_be_alike(coddl: Coddl) -> None:
    tiny = replace(PROFILE, buckets=(GradientBucket(1, 1.0),))
    Path("tiny.json").write_text(json.dumps(tiny.as_data()))
    out = coddl("estimate", "tiny.json", "--on", "2", "--on", "1+1").out
    assert "2 and 2x1 are about equally fast." in out


def test_one_worker_can_be_asked_for(coddl: Coddl) -> None:
    out = coddl("estimate", "profile.json", "--on", "1", "--on", "2").out
    assert "1: 1 worker on one node, 1.8 s a step" in out
    assert "2 is fastest" in out
    assert "fastest" not in coddl("estimate", "profile.json", "--on", "1").out


def test_the_order_in_which_arrangements_are_asked_for_makes_no_difference(coddl: Coddl) -> None:
    found = [
        json.loads(coddl("estimate", "profile.json", *words, "--json").out)["items"]
        for words in (("--on", "2", "--on", "1"), ("--on", "1", "--on", "2"))
    ]
    assert found[0] == found[1][::-1]
    assert found[0][0]["speedup"] > 1.0


def test_estimates_for_a_program(coddl: Coddl) -> None:
    out = coddl(
        "estimate", "profile.json", "--on", "2+1", "--on", "2", "--links", "slow.json", "--json"
    ).out
    told = json.loads(out)
    assert [each["on"] for each in told["items"]] == ["1", "2+1", "2"]
    assert told["fastest"] == "2"
    two = told["items"][2]
    assert two["step_s"] == pytest.approx(1.0)
    assert two["samples_per_s"] == pytest.approx(60.0)
    assert two["speedup"] == pytest.approx(1.8)
    assert two["samples"] == [30, 30]
    assert [span["what"] for span in two["spans"]] == ["data", "forward", "backward", "exchange"]
    assert json.loads(coddl("estimate", "profile.json", "--json").out)["fastest"] == "8"


def test_links_are_assumed_where_none_are_given_and_that_is_said(coddl: Coddl) -> None:
    assert "links: assumed, 20 GB/s" in coddl("estimate", "profile.json").out
    told = coddl("estimate", "profile.json", "--links", "slow.json").out
    assert "links: measured, slow.json" in told


def test_other_jobs_memory_and_ways_of_exchange_count(coddl: Coddl) -> None:
    def step_s(*options: str) -> float:
        out = coddl(
            "estimate", "profile.json", "--on", "2x1", "--links", "slow.json", "--json", *options
        ).out
        return float(json.loads(out)["items"][-1]["step_s"])

    assert step_s() == pytest.approx(0.9 + 2.0)
    assert step_s("--network-part", "0.5") == pytest.approx(0.9 + 4.0)
    assert step_s("--exchange", "sharded") == pytest.approx(0.9 + 1.0 + 1.0)
    assert step_s("--exchange", "servers") == pytest.approx(0.9 + 8.0)
    assert step_s("--exchange", "servers", "--servers", "2") == pytest.approx(0.9 + 4.0)
    assert step_s("--gpu-memory", "3GB") == pytest.approx(0.9 + 2.0)


BAD = {
    "no such file": (("nothere.json",), "there is no such file"),
    "no JSON": (("words.txt",), "it is not JSON"),
    "no profile": (("fast.json",), "it has no"),
    "no inspection": (("profile.json", "--links", "profile.json"), "is missing"),
    "no number": (("profile.json", "--on", "many"), '"many" is no number of workers'),
    "none": (("profile.json", "--on", "2+0"), '"0" is no number of workers'),
    "too many": (("profile.json", "--on", "999x999"), "more than 4096 workers"),
    "more than samples": (("profile.json", "--on", "8x8"), "an update has 60 samples"),
    "no link": (("profile.json", "--on", "1+1", "--links", "one.json"), "of different nodes"),
    "no room": (("profile.json", "--on", "2", "--gpu-memory", "1GB"), "needs more than"),
    "no size": (("profile.json", "--on", "2", "--gpu-memory", "much"), "no amount of memory"),
}


@pytest.mark.parametrize(("words", "because"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_explained(coddl: Coddl, words: tuple[str, ...], because: str) -> None:
    Path("words.txt").write_text("not JSON")
    one = inspection(1.0).as_data()
    del one["links"]["cluster"]
    Path("one.json").write_text(json.dumps(one))
    code, out, err = coddl("estimate", *words)
    assert (code, out) == (2, "")
    assert because in err
    assert "  try     " in err


def test_a_strict_training_has_no_more_workers_than_virtual_nodes(coddl: Coddl) -> None:
    Path("strict.json").write_text(json.dumps(replace(PROFILE, virtual_nodes=4).as_data()))
    assert "an update has 4 virtual nodes" in coddl("estimate", "strict.json", "--on", "5").err
    told = json.loads(coddl("estimate", "strict.json", "--json").out)
    assert max(each["workers"] for each in told["items"]) == 4


@pytest.mark.parametrize(
    ("spec", "on_nodes"),
    [("4", (4,)), ("2x4", (4, 4)), ("2+1", (2, 1)), ("2x4+1", (4, 4, 1)), ("1 + 1", (1, 1))],
)
def test_arrangements_are_read(spec: str, on_nodes: tuple[int, ...]) -> None:
    assert arrangement_from(spec).on_nodes == on_nodes


@pytest.mark.parametrize("spec", ["", "x", "0", "2x", "x4", "-1", "2+", "2x0", "1.5", "9" * 5000])
def test_other_words_are_refused(spec: str) -> None:
    with pytest.raises(UserError, match="cannot be used"):
        arrangement_from(spec)


@pytest.mark.parametrize(
    ("value", "want"),
    [(0.0, "0 µs"), (5e-5, "50 µs"), (0.99999, "1 s"), (0.0123, "12.3 ms"), (12345.0, "12,345 s")],
)
def test_short_times_have_three_digits(value: float, want: str) -> None:
    assert seconds(value) == want


def told(
    *,
    links: dict[str, list[int]] | None = None,
    measured: dict[int, float] | None = None,
    remembered: dict[int, float] | None = None,
) -> dict[str, Any]:
    """What the pool tells of a job; links with the numbers of workers they were inspected with."""
    ours = {"node": [2, 3], "cluster": [2]} if links is None else links
    one = {"gb_s": 10.0, "latency_us": 0.0, "call_us": 0.0, "backend": "gloo"}
    found = (measured or {}, remembered or {})
    own, others = ([{"gpus": n, "step_s": s} for n, s in each.items()] for each in found)
    return {
        "profile": PROFILE.as_data(),
        "links": {name: {**one, "workers": workers} for name, workers in ours.items()},
        "node_gpus": 2,
        "measured": own,
        "remembered": others,
    }


def test_a_job_is_estimated_with_the_links_of_the_pool_and_what_it_has_measured(
    coddl: Coddl, pool: StubPool
) -> None:
    """Its computing takes twice as long as in the profile, and 2 workers 10 % longer besides."""
    pool.will("GET", "/jobs/bert/estimate", told(measured={1: 3.6, 2: 2.09}))
    shown = json.loads(coddl("estimate", "bert", "--on", "2", "--on", "2+1", "--json").out)
    one, two, three = shown["items"]
    assert (one["step_s"], one["source"]) == (3.6, "measured")
    assert (two["step_s"], two["source"]) == (2.09, "measured")
    assert two["predicted_s"] == pytest.approx(1.0)
    assert two["speedup"] == pytest.approx(3.6 / 2.09)
    replayed_s = 1.2 + 4 / 3 * 0.1
    assert replayed_s < three["step_s"] < 1.1 * replayed_s
    assert three["source"] == "estimated"
    assert shown["links"]["cluster"]["gb_s"] == 10.0
    out = coddl("estimate", "bert", "--on", "2", "--on", "2+1").out
    assert "links: of the pool, node 10 GB/s and 0 µs, cluster 10 GB/s" in out
    assert "measured steps: 1, 2 GPUs" in out
    assert "2: 2 workers on one node, 2.09 s a step (measured; 1 s as replayed" in out


def test_steps_of_earlier_jobs_count_and_that_is_said(coddl: Coddl, pool: StubPool) -> None:
    pool.will("GET", "/jobs/bert/estimate", told(measured={1: 1.8}, remembered={1: 1.8, 2: 1.5}))
    out = coddl("estimate", "bert", "--on", "2").out
    assert "measured steps: 1 GPU; by earlier jobs that train the same: 2 GPUs" in out
    row = next(line.split() for line in out.splitlines() if line.startswith("2 "))
    assert row[3:5] == ["1.5", "s"]
    assert "remembered" in row


def test_links_of_a_file_come_before_those_of_the_pool(coddl: Coddl, pool: StubPool) -> None:
    pool.will("GET", "/jobs/bert/estimate", told(measured={1: 1.8}))
    shown = json.loads(
        coddl("estimate", "bert", "--on", "1+1", "--links", "slow.json", "--json").out
    )
    assert shown["links_from"] == "links: measured, slow.json"
    assert shown["items"][1]["predicted_s"] == pytest.approx(0.9 + 2.0)


def test_a_pool_that_was_not_inspected_says_so(coddl: Coddl, pool: StubPool) -> None:
    pool.will("GET", "/jobs/bert/estimate", told(links={}))
    assert "(no node of the pool was inspected: coddl inspect)" in coddl("estimate", "bert").out


def test_steps_with_another_exchange_are_not_those_that_were_measured(
    coddl: Coddl, pool: StubPool
) -> None:
    pool.will("GET", "/jobs/bert/estimate", told(measured={1: 1.8, 2: 5.0}))
    words = ("estimate", "bert", "--on", "2", "--exchange", "sharded", "--json")
    shown = json.loads(coddl(*words).out)
    assert shown["measured"] == {"1": 1.8}
    assert shown["items"][1]["step_s"] == pytest.approx(1.0, rel=0.01)


def test_more_workers_than_a_link_was_inspected_with_are_warned_of(
    coddl: Coddl, pool: StubPool
) -> None:
    pool.will("GET", "/jobs/bert/estimate", told())
    out = coddl("estimate", "bert", "--on", "3", "--on", "4", "--on", "2+1", "--on", "1+1").out
    warned = [line for line in out.splitlines() if line.startswith("warning: ")]
    assert [line.split(":")[1] for line in warned] == [" 4", " 2+1"]
    assert "the link node was inspected with (3)" in warned[0]
    shown = json.loads(coddl("estimate", "bert", "--on", "4", "--json").out)
    assert len(shown["warnings"]) == 1


def test_an_arrangement_that_can_not_be_estimated_fails_no_other(
    coddl: Coddl, pool: StubPool
) -> None:
    pool.will("GET", "/jobs/bert/estimate", told(links={"node": [2]}))
    asked = ("estimate", "bert", "--on", "2", "--on", "1+1", "--on", "80")
    code, out, _ = coddl(*asked)
    assert code == 0
    rows = [line for line in out.splitlines() if "not estimated" in line]
    assert [row.split()[0] for row in rows] == ["2x1", "80"]
    assert "nothing is known of the link between workers of different nodes" in rows[0]
    assert "an update has 60 samples" in rows[1]
    items = json.loads(coddl(*asked, "--json").out)["items"]
    assert ["error" in each for each in items] == [False, False, True, True]
    assert coddl("estimate", "bert", "--on", "1+1", "--on", "80").code == 2
