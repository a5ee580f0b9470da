"""Errors as application/problem+json: for people what, because, try; for programs code. (RFC 9457)

The tree in `server.errors` has the status of each.
"""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from fastapi.responses import Response

from coddl.api.rest import PROBLEM_JSON
from coddl.core.errors import UserError
from coddl.core.pool.errors import Conflict, NotFound
from coddl.server.errors import Forbidden, HostRefused, JournalFull, TooLarge, Unauthorized

STATUS: Final[dict[type[UserError], int]] = {
    NotFound: 404,
    Conflict: 409,
    JournalFull: 507,
    Unauthorized: 401,
    Forbidden: 403,
    HostRefused: 421,
    TooLarge: 413,
}
INVALID: Final = 422


def status_of(error: UserError) -> int:
    """Return the HTTP status that an error is answered with."""
    return next((status for kind, status in STATUS.items() if isinstance(error, kind)), INVALID)


def problem(error: UserError) -> Response:
    """Answer a user's error."""
    code = type(error).__name__ if type(error) is not UserError else "Invalid"
    headers = {"WWW-Authenticate": "Bearer"} if isinstance(error, Unauthorized) else None
    return problem_of(status_of(error), code, error, headers)


def problem_of(
    status: int,
    code: str,
    error: UserError,
    headers: Mapping[str, str] | None = None,
    instance: str | None = None,
) -> Response:
    """Answer with a status, a code and an error's words."""
    body = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": f"{error.what}: {error.because}",
        "code": code,
        "what": error.what,
        "because": error.because,
        "try": error.try_,
        "instance": instance,
    }
    content = json.dumps({key: value for key, value in body.items() if value is not None})
    return Response(content, status, headers=headers, media_type=PROBLEM_JSON)


def bug(instance: str) -> Response:
    """Answer when something failed that can't fail; the log has more under `instance`."""
    error = UserError(
        "the request cannot be met",
        "the server hit a bug",
        f"search for {instance} in the server's log, and please report it",
    )
    return problem_of(500, "Internal", error, instance=instance)
