"""Rates on several kinds of GPU, alone and in pairs."""

import json
from pathlib import Path

import numpy as np
import pytest

from coddl.core.errors import UserError
from coddl.traces.clusters import cluster_from
from coddl.traces.files import read_speeds
from coddl.traces.models import model_named, speeds_on
from tests.shared import PAIRS, needs_pairs

A, B, A2 = "('A', 1)", "('B (batch size 4)', 1)", "('A', 2)"
SMALL: dict[str, object] = {
    "k80": {A: {"null": 1.0}, B: {"null": 0.0}},
    "v100": {
        A: {"null": 4.0, A: [2.5, 2.5], B: [2.0, 1.0]},
        B: {"null": 2.0, A: [1.0, 2.0], B: [0.0, 0.0]},
        A2: {"null": 8.0, A2: [0.0, 0.0]},
    },
    "v100_unconsolidated": {A: {"null": 4.0}, B: {"null": 2.0}, A2: {"null": 5.0}},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "throughputs.json"
    path.write_text(json.dumps(SMALL))
    return path


def test_rates_become_step_times_at_the_better_placement(path: Path) -> None:
    speeds = read_speeds(path)
    assert speeds.names == ("A", "B (batch size 4)")
    assert speeds.step_s[:, 1:].tolist() == [[0.25, 0.125], [0.5, 0.5]]
    assert speeds.gpus_max.tolist() == [2, 1]


def test_distance_costs_what_was_measured(path: Path) -> None:
    assert read_speeds(path).places.nodes[0, 2].tolist() == [1.0, 1.0, 8.0 / 5.0]


def test_where_apart_is_faster_that_is_the_best_case(tmp_path: Path) -> None:
    path = tmp_path / "throughputs.json"
    apart = {A: {"null": 4.0}, B: {"null": 2.0}, A2: {"null": 10.0}}
    path.write_text(json.dumps(SMALL | {"v100_unconsolidated": apart}))
    speeds = read_speeds(path)
    assert speeds.step_s[0, 2] == 0.1
    assert speeds.places.nodes[0, 2].tolist() == [1.0, 1.25, 1.0]


def test_kinds_are_compared_on_one_gpu(path: Path) -> None:
    speeds = read_speeds(path)
    assert speeds.kinds == ("v100", "k80")
    assert speeds.places.kinds.tolist() == [[1.0, 4.0], [1.0, np.inf]]


def test_company_costs_what_was_measured(path: Path) -> None:
    assert read_speeds(path).places.packed.tolist() == [[1.6, 2.0], [2.0, np.inf]]


class TestOnACluster:
    def test_kinds_come_in_the_cluster_s_order(self, path: Path) -> None:
        speeds = speeds_on(read_speeds(path), cluster_from("1x4:k80+1x4:v100"))
        assert speeds.kinds == ("k80", "v100")
        assert speeds.places.kinds[0].tolist() == [4.0, 1.0]

    def test_a_cluster_that_does_not_say_has_the_base_kind(self, path: Path) -> None:
        assert speeds_on(read_speeds(path), cluster_from("2x4")).places.kinds[0].tolist() == [1.0]

    def test_an_unknown_kind_is_told(self, path: Path) -> None:
        with pytest.raises(UserError, match="16x4:v100"):
            speeds_on(read_speeds(path), cluster_from("2x4:a100"))

    def test_what_was_measured_stays(self, path: Path) -> None:
        speeds = read_speeds(path)
        places = speeds_on(speeds, cluster_from("2x4:v100")).places
        assert np.array_equal(places.nodes, speeds.places.nodes)
        assert np.array_equal(places.packed, speeds.places.packed)


def test_a_model_is_known_by_several_spellings() -> None:
    known = model_named("resnet50")
    assert known.gradient_bytes == 4 * 25557032
    assert model_named("ResNet-50 (batch size 64)") == known
    assert model_named("resnet50-512") == known
    unknown = model_named("nobody's")
    assert unknown == model_named("A3C")
    assert 4e6 < unknown.gradient_bytes < 500e6


BAD = {
    "no JSON": ("{", "it is not JSON"),
    "no such kind": ("{}", 'it has no "v100", "v100_unconsolidated"'),
    "no such key": (
        '{"v100": {"A": {"null": 1}}, "v100_unconsolidated": {}}',
        "does not name a job",
    ),
    "no rate": ('{"v100": {"(\'A\', 1)": 3}, "v100_unconsolidated": {}}', "it is not as expected"),
}


@pytest.mark.parametrize(("text", "because"), BAD.values(), ids=BAD.keys())
def test_a_bad_file_is_told(text: str, because: str, tmp_path: Path) -> None:
    path = tmp_path / "throughputs.json"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_speeds(path)
    assert because in str(caught.value)


@needs_pairs
def test_the_whole_file_is_read() -> None:
    speeds = read_speeds(PAIRS)
    assert len(speeds.names) == 26
    assert set(speeds.kinds) == {"v100", "p100", "k80"}
    at = speeds.names.index("ResNet-50 (batch size 64)")
    assert speeds.step_s[at, 1] == 1 / 4.394774823323071
    k80 = speeds.kinds.index("k80")
    assert speeds.places.kinds[at, k80] == pytest.approx(4.394774823323071 / 0.619, rel=1e-3)
    large = speeds.names.index("ResNet-50 (batch size 128)")
    assert np.isinf(speeds.places.packed[at, large])  # both do not fit
