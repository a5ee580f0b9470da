"""Policies and placements from a file."""

from pathlib import Path

import pytest

import coddl
from coddl.core.errors import UserError
from coddl.sim.plugin import placement_named

FILE = """
from dataclasses import dataclass
from coddl.core.placement.spread import SpreadOut

@dataclass(frozen=True)
class Mine(SpreadOut):
    times: int = 1

def function(snapshot, allocation):
    return SpreadOut()(snapshot, allocation)
"""


def test_a_placement_comes_from_a_file_as_a_policy_does(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE)
    names = ("spread", f"{file}:function", f"{file}:Mine:times=2")
    results = [
        coddl.simulate(policies="afs-l", cluster="4x4", placement=name, first=20)["avg_jct_s"][0]
        for name in names
    ]
    assert results == results[:1] * 3


@pytest.mark.parametrize(
    ("spec", "because"),
    {
        "{file}": "it does not say which placement of the file",
        "{file}:nosuch": 'has no "nosuch"',
        "{file}:Mine:size=1": 'has no parameter "size"',
        "nowhere.py:Mine": "there is no file nowhere.py",
    }.items(),
)
def test_what_is_wrong_with_it_is_said_of_a_placement(
    spec: str, because: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    with pytest.raises(UserError, match=because) as raised:
        placement_named(spec.format(file=tmp_path / "mine.py"))
    assert raised.value.what.startswith("placement ")
