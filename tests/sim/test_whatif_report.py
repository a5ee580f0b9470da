"""The report of a what-if: its runs are compared with the replay of what happened."""

from pathlib import Path

import numpy as np
import pytest

from coddl.sim.report.summary import AgainstReplay, finding, labels_of, table_of
from coddl.sim.run import Run
from tests.sim.test_report import SLOW, page_of, run


def against(*ratios: float) -> AgainstReplay:
    """What was recorded, its replay, and alternatives."""
    return AgainstReplay(1, [{"jobs": 2.0, "slower": ratio} for ratio in ratios])


def what_if_runs(*others: tuple[str, int]) -> list[Run]:
    recorded, replayed = run("a (recorded)"), run("a (replayed)")
    return [recorded, replayed, *(run(policy, gpus=gpus) for policy, gpus in others)]


AGAINST = {
    "policies": (
        [("b", 4), ("c", 4)],
        (0.99, 1.0, 1.2, 0.8),
        "Mean completion time against the replay (a on 4 GPUs), at best, with c: 0.80× on 4 GPUs.",
    ),
    "sizes": (
        [("a", 8), ("a", 1)],
        (0.99, 1.0, 0.5, 3.0),
        "Mean completion time against the replay (a on 4 GPUs), with a: "
        "3.00× on 1 GPU, 0.50× on 8 GPUs.",
    ),
    "both": (
        [("a", 8), ("b", 8), ("a", 1), ("b", 1)],
        (0.99, 1.0, 0.5, 0.6, 3.0, 2.5),
        "Mean completion time against the replay (a on 4 GPUs), at best: "
        "2.50× on 1 GPU (b), 0.50× on 8 GPUs (a).",
    ),
    "no end": ([("b", 4)], (np.nan, np.nan, np.nan), "No job has finished."),
    "nothing": ([], (1.0, 1.0), "Nothing else was tried."),
}


@pytest.mark.parametrize(("others", "ratios", "want"), AGAINST.values(), ids=AGAINST.keys())
def test_a_what_if_is_compared_with_its_replay(
    others: list[tuple[str, int]], ratios: tuple[float, ...], want: str
) -> None:
    runs, told = what_if_runs(*others), against(*ratios)
    rows = table_of(runs, told)
    assert finding(runs, labels_of(runs), rows, told) == want
    assert [row["slower"] for row in rows] == pytest.approx(ratios, nan_ok=True)


def test_a_what_if_marks_the_best_of_all_sizes(tmp_path: Path) -> None:
    runs = [run("a (recorded)"), run("a (replayed)"), run("a", SLOW, gpus=1), run("b", SLOW)]
    page = page_of(runs, tmp_path, against=against(1.0, 1.0, 1.7, 1.7))
    assert ["avg_jct_s" in shown["best"] for shown in page.data["runs"]] == [
        True,
        True,
        False,
        False,
    ]
    names = {column["key"]: column["name"] for column in page.data["columns"]}
    assert names["slower"] == "vs. replay"
    assert page.data["has_job_numbers"]
    assert any("finish-time fairness" in note for note in page.data["notes"])
