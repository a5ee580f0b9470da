"""Policies and placements from a file."""

from pathlib import Path

import pytest

import coddl
from coddl.core.errors import UserError
from coddl.plugins import placement_named, registry_of, registry_of_usable

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


MIXED = """
from dataclasses import dataclass
import math
from coddl.core.allocation import Allocation
from coddl.core.policies.max_min import MaxMin
from coddl.core.placement.spread import SpreadOut

@dataclass(frozen=True)
class Mine:
    \"\"\"Shares them all.\"\"\"

    times: int = 1

    def __call__(self, snapshot) -> Allocation:
        return MaxMin()(snapshot)

def share(snapshot):
    return MaxMin()(snapshot)

ready = Mine(3)

def place(snapshot, allocation):
    return SpreadOut()(snapshot, allocation)

def double(number: float) -> float:
    return 2 * number

class Table:
    pass

def _hidden(snapshot):
    pass
"""


def test_a_pool_offers_what_a_file_defines_and_no_helper(tmp_path: Path) -> None:
    file = tmp_path / "mixed.py"
    file.write_text(MIXED)
    registry = registry_of([file])
    assert list(registry.policies) == ["mixed.py:Mine", "mixed.py:share", "mixed.py:ready"]
    assert list(registry.placements) == ["mixed.py:place"]
    assert registry.policy("mixed.py:Mine:times=2") == registry.policies["mixed.py:Mine"](2)
    registry.placement("mixed.py:place")


UNUSABLE = {
    "it is missing": (None, "there is no file"),
    "it fails": ("import nosuch_module", "No module named 'nosuch_module'"),
    "it exits": ("raise SystemExit(3)", "SystemExit: 3"),
    "it is no Python": ("def (", "SyntaxError"),
    "it defines nothing": ("import math\nX = 3", "no policy and no placement, only nothing public"),
    "it defines a helper only": ("def f(a, b, c): pass", "only f"),
}


@pytest.mark.parametrize(("text", "because"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_a_file_that_can_not_be_used_is_refused(
    text: str | None, because: str, tmp_path: Path
) -> None:
    file = tmp_path / "bad.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError) as refused:
        registry_of([file])
    assert refused.value.what == f'plug-in "{file}" cannot be used'
    assert because in refused.value.because
    with pytest.raises(UserError) as unknown:
        registry_of_usable([file]).policy("bad.py:Mine")
    assert because in unknown.value.because


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    files = [tmp_path / name / "mine.py" for name in "ab"]
    for file in files:
        file.parent.mkdir()
        file.write_text(MIXED)
    with pytest.raises(UserError, match="has the same name"):
        registry_of(files)
    registry_of([files[0], files[0]])
    with pytest.raises(UserError, match="does not end in"):
        registry_of([tmp_path / "mine.txt"])
