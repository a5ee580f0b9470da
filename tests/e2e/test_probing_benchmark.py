"""The benchmark of probing runs and reports what it promises; its figures are not tested."""

import pytest

from benchmarks.probing import measure, parsed, summary

pytestmark = pytest.mark.matrix


def test_resizes_of_a_job_that_was_never_seen_are_counted() -> None:
    words = ["--rounds", "1", "--slots", "2", "--still-s", "4", "--no-truth"]
    found = measure(parsed([*words, "--pools", "inspected"]))
    (informed,) = found["inspected"]
    assert informed["resizes"] >= informed["probing"] >= 0
    assert {"estimated", "measured"} >= {each["source"] for each in informed["speeds"]}
    assert len(summary(found)) == 1
