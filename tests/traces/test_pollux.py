"""Step times measured on placements."""

from pathlib import Path

import numpy as np
import pytest

from coddl.core.errors import UserError
from coddl.traces.files import read_speeds
from coddl.traces.pollux import StepTime, global_batch, measurements, step_at
from tests.shared import T4_PLACEMENTS, needs_t4

HEADER = "placement,local_bsz,step_time,sync_time\n"
# On 3 GPUs batches of 2 and 8: their middle is 4, so the global batch is 12. One GPU takes it in
# passes of at most 8, two GPUs have 6 each, three have 4.
SMALL = (
    HEADER
    + """1,4,1.0,0.0
1,8,2.0,0.0
2,4,1.0,0.2
2,8,2.0,0.2
11,4,1.5,0.7
11,8,2.5,0.7
12,2,1.0,0.5
12,8,2.5,0.5
111,2,0.7,0.1
111,8,2.2,0.1
"""
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "resnet50.csv").write_text(SMALL)
    return tmp_path


def test_the_global_batch_gives_the_most_gpus_the_middle_of_what_was_measured(
    folder: Path,
) -> None:
    assert global_batch(measurements(folder)["resnet50"]) == 12


def test_a_large_part_is_accumulated_and_a_small_one_interpolated() -> None:
    steps = {4.0: StepTime(1.0, 0.2), 8.0: StepTime(2.0, 0.4)}
    assert step_at(steps, 6.0) == pytest.approx((1.5, 0.3))
    assert step_at(steps, 8.0) == pytest.approx((2.0, 0.4))
    assert step_at(steps, 12.0) == pytest.approx((1.2 + 1.5, 0.3))  # two passes of 6
    assert step_at(steps, 24.0) == pytest.approx((1.6 + 1.6 + 2.0, 0.4))


def test_the_table_tells_the_best_placement_of_each_share(folder: Path) -> None:
    speeds = read_speeds(folder)
    assert speeds.names == ("resnet50",)
    assert speeds.step_s[0, 1:] == pytest.approx([3.0, 1.5, 1.2])  # 2 x 1.5; at 6; at 4 on 111


def test_other_numbers_of_nodes_cost_what_was_measured(folder: Path) -> None:
    nodes = read_speeds(folder).places.nodes[0]
    assert nodes[2, 1:] == pytest.approx([1.0, 2.0 / 1.5, 2.0 / 1.5])  # more nodes: as the last
    assert nodes[3, 1:] == pytest.approx([1.5 / 1.2, 1.5 / 1.2, 1.0])  # one node: as the next


def test_a_card_that_is_shared_doubles_what_was_seen_of_the_exchange(folder: Path) -> None:
    network = read_speeds(folder).places.network[0]
    assert network == pytest.approx([0.0, 0.0, 0.7 / 2.0, (0.5 / 1.5 + 0.1 / 1.2) / 2])


def test_the_skew_is_that_of_the_model(folder: Path) -> None:
    assert read_speeds(folder).places.skew == pytest.approx([2359296 / 25557032])


BAD = {
    "no digits": ("a,4,1,0", 'placement is "a"'),
    "a node without GPUs": ("10,4,1,0", 'placement is "10"'),
    "no batch": ("1,0,1,0", 'local_bsz is "0"'),
    "more exchange than step": ("1,4,1,2", 'sync_time is "2"'),
    "no time": ("1,4,0,0", "step_time, which is above 0"),
    "no number": ("1,4,x,0", 'step_time is "x"'),
}


@pytest.mark.parametrize(("line", "because"), BAD.values(), ids=BAD.keys())
def test_a_bad_line_is_told(line: str, because: str, tmp_path: Path) -> None:
    (tmp_path / "bert.csv").write_text(HEADER + line + "\n")
    with pytest.raises(UserError) as caught:
        read_speeds(tmp_path)
    assert because in str(caught.value)


def test_a_folder_without_tables_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no file in that folder ends in \.csv"):
        read_speeds(tmp_path)


@needs_t4
def test_the_t4_table_covers_sixteen_gpus() -> None:
    speeds = read_speeds(T4_PLACEMENTS)
    assert speeds.names == ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
    assert speeds.step_s.shape == (6, 17)
    assert speeds.measured[:, 1:].all()
    assert speeds.places.nodes.shape == (6, 17, 5)
    assert (speeds.places.nodes >= 1.0).all()


@needs_t4
def test_two_gpus_apart_by_hand() -> None:
    """BERT's batch is 16 x round(sqrt(4 x 12)) = 112: on 2 GPUs five passes of 11.2 each."""
    speeds = read_speeds(T4_PLACEMENTS)
    steps = measurements(T4_PLACEMENTS)["bert"]
    for digits, factor in (((2,), 1.0), ((1, 1), speeds.places.nodes[0, 2, 2])):
        at = next(each for placement, each in steps.items() if placement.on_nodes == digits)
        step, sync = (
            np.interp(11.2, [11, 12], [at[11.0][part], at[12.0][part]]) for part in (0, 1)
        )
        assert speeds.step_s[0, 2] * factor == pytest.approx(5 * (step - sync) + sync)
