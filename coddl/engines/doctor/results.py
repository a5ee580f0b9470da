"""What a check has found: in order, worth a look, or in the way of a pool."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from coddl.core.errors import UserError


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of one check."""

    check: str  # its name
    state: Literal["OK", "WARN", "FAIL"]
    what: str
    because: str = ""
    try_: str = ""

    def parts(self) -> dict[str, str]:
        """Return it for programs."""
        found = {"check": self.check, "state": self.state, "what": self.what}
        return found if self.state == "OK" else {**found, "because": self.because, "try": self.try_}


def fine(check: str, what: str) -> CheckResult:
    """Say that nothing is to be done."""
    return CheckResult(check, "OK", what)


def failure_of(check: str, error: UserError) -> CheckResult:
    """Say that a pool can't be had, as an error does."""
    return CheckResult(check, "FAIL", error.what, error.because, error.try_)


def has_failed(results: Iterable[CheckResult]) -> bool:
    """Return whether something is in the way of a pool."""
    return any(result.state == "FAIL" for result in results)


def counts(results: Iterable[CheckResult]) -> str:
    """Count the results in one line."""
    states = [result.state for result in results]
    return f"{len(states)} checks: " + ", ".join(
        f"{states.count(state)} {state}" for state in ("OK", "WARN", "FAIL")
    )
