"""The errors a user can cause, and what they carry.

    CoddlError            exit code 1
    └── UserError         exit code 2   bad input: says what, because, try; changed nothing
        └── InvalidAllocation           a policy's answer can't be carried out (`invariants`)

Bugs are assertions and are not caught.
"""


class CoddlError(Exception):
    """Anything this package raises on purpose."""

    exit_code = 1


class UserError(CoddlError):
    """Bad input: what is wrong, because of which value, and what to try instead."""

    exit_code = 2

    def __init__(self, what: str, because: str, try_: str) -> None:
        super().__init__(what, because, try_)
        self.what = what
        self.because = because
        self.try_ = try_

    def parts(self) -> dict[str, str]:
        """Return it for programs."""
        return {"what": self.what, "because": self.because, "try": self.try_}

    def __str__(self) -> str:
        return f"{self.what}\n  because {self.because}\n  try     {self.try_}"
