"""What can be wrong with a request to the pool.

UserError             exit code 2, HTTP 422
├── NotFound          exit code 102, HTTP 404   no such job or node
├── Conflict          exit code 2, HTTP 409     not in this phase
└── Infeasible        exit code 2, HTTP 422     can never be, with the arithmetic
"""

from coddl.core.errors import UserError


class NotFound(UserError):
    """There is no such job or node."""

    exit_code = 102


class Conflict(UserError):
    """What was asked for can't be done to a job in its phase."""


class Infeasible(UserError):
    """What was asked for can never be had from this pool."""
