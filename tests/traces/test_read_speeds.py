"""Speed tables as files."""

from pathlib import Path

import numpy as np
import pytest

from coddl.core.errors import UserError
from coddl.core.speed.table import Speeds
from coddl.traces.files import read_speeds

HEADER = "model,global_batch,gpus,step_s"


def read(folder: Path, *rows: str, header: str = HEADER) -> Speeds:
    path = folder / "speeds.csv"
    path.write_text("\n".join([header, *rows]), "utf-8")
    return read_speeds(path)


def test_step_time_is_linear_between_points_given_in_any_order(tmp_path: Path) -> None:
    speeds = read(tmp_path, "b,8,4,1", "a,32,2,0.5", "b,8,1,4")
    assert speeds.names == ("b", "a")
    assert speeds.step_s[0].tolist() == [np.inf, 4, 3, 2, 1]
    assert speeds.step_s[1].tolist() == [np.inf, np.inf, 0.5, 0.5, 0.5]
    assert speeds.gpus_max.tolist() == [4, 2]


def test_gandivas_table_has_a_name_unless_a_file_is_called_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    speeds = read_speeds("gandiva")
    assert speeds.names[0] == "vae"
    assert speeds.gpus_max.tolist() == [8] * 8
    assert 1.0 <= speeds.places.packed.min() < speeds.places.packed.max()
    (tmp_path / "gandiva").write_text(f"{HEADER}\na,8,1,1\n", "utf-8")
    assert read_speeds("gandiva").names == ("a",)


BAD = {
    "no rows": ((), "no data"),
    "a step of no time": (("a,8,1,0",), 'line 2: step_s is "0"'),
    "a negative step": (("a,8,1,1", "a,8,2,-1"), 'line 3: step_s is "-1"'),
    "a step that is no number": (("a,8,1,nan",), 'line 2: step_s is "nan"'),
    "a step without end": (("a,8,1,inf",), 'line 2: step_s is "inf"'),
    "a step too short to divide by": (("a,8,1,1e-320",), 'line 2: step_s is "1e-320"'),
    "no batch": (("a,0,1,1",), 'line 2: global_batch is "0"'),
    "a broken batch": (("a,1.5,1,1",), 'line 2: global_batch is "1.5"'),
    "two batches": (("a,8,1,1", "b,9,1,1", "a,9,2,1"), 'line 4: global_batch is "9" and must be'),
    "a share of 0": (("a,8,0,1",), 'line 2: gpus is "0"'),
    "a share past memory": (("a,8,1000000000,1",), 'line 2: gpus is "1000000000"'),
    "a point twice": (("a,8,2,1", "b,8,2,1", "a,8,2,1"), 'line 4: gpus is "2" and must not appear'),
    "no name": ((",8,1,1",), 'line 2: model is ""'),
    "a short line": (("a,8,1",), 'line 2: "a,8,1" has 3 values for 4 columns'),
}


@pytest.mark.parametrize(("rows", "said"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_named(rows: tuple[str, ...], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, *rows)
    assert caught.value.what == f"speed table {tmp_path / 'speeds.csv'} cannot be read"
    assert said in caught.value.because
    assert caught.value.try_


def test_an_unknown_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='column "memory" is unknown'):
        read(tmp_path, "a,8,1,1,9", header=f"{HEADER},memory")
