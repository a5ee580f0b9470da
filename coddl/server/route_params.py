"""Query parameters and headers that several routes share."""

from typing import Annotated, Final

from fastapi import Header, Query

from coddl.api.rest import BY_HEADER
from coddl.server.journal import Journal, ReadEntry

PAGE_MAX: Final = 1_000

Limit = Annotated[int, Query(ge=1, le=PAGE_MAX, description="Items per page.")]
After = Annotated[
    int | None, Query(ge=0, description="Number of the last event that the client already has.")
]
WithinSeconds = Annotated[
    float | None, Query(gt=0, le=30 * 86400, description="Seconds until it must have been done.")
]
By = Annotated[
    str,
    Header(
        alias=BY_HEADER,
        max_length=64,
        pattern=r"^[^\x00-\x1f]*$",
        description="User that makes the request.",
    ),
]


def at_page(journal: Journal, after: int | None, limit: int, job: int | None) -> list[ReadEntry]:
    """Read the records after a number; or, without one, the newest."""
    if after is None:
        return journal.newest(limit, job)
    return journal.read(after, limit, job)
