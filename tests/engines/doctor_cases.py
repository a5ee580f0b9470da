"""What was gathered, and what `coddl doctor` must say of it."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from coddl.engines.doctor.results import CheckResult


class Case(NamedTuple):
    """What was gathered, and what must be said of it; empty: that all is fine."""

    facts: Any  # Any: one of several kinds
    state: str = "OK"
    check: str = ""
    words: str = ""


def judged(results: Iterable[CheckResult], case: Case) -> None:
    found = list(results)
    bad = [each for each in found if each.state != "OK"]
    assert all(each.because and each.try_ for each in bad), "each says why, and what to try"
    if case.state == "OK":
        assert not bad
        assert case.words in " ".join(each.what for each in found)
        return
    [one] = bad
    assert (one.state, one.check) == (case.state, case.check)
    assert case.words in f"{one.what}: {one.because}; {one.try_}"
