"""Where a pool keeps checkpoints when its nodes share no file system: a URI, as s3://bucket/x."""

import re
from typing import Final

from coddl.core.errors import UserError

_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*://")
_EXAMPLE: Final = "--checkpoints s3://BUCKET/FOLDER"


def check_uri(uri: str) -> str:
    """Return the URI as it is compared and recorded; raise UserError if it can't be used."""
    scheme = _SCHEME.match(uri)
    place = uri[scheme.end() :] if scheme else ""
    if scheme is None or not place.strip("/"):
        try_ = f"--checkpoints file://{uri}" if uri.strip("/") and uri[0] == "/" else _EXAMPLE
        raise unusable(_without_password(uri), "it is not a URI of a bucket or folder", try_)
    if scheme[0] in ("file://", "local://") and place[0] != "/":
        try_ = f"--checkpoints {scheme[0]}/{place}"
        raise unusable(uri, "a path in a URI begins with a slash: file:///folder", try_)
    if "@" in place.partition("/")[0]:
        try_ = "the credentials in the environment of the agents, as AWS_ACCESS_KEY_ID"
        raise unusable(_without_password(uri), "it contains credentials, which are logged", try_)
    if scheme[0] == "memory://":
        raise unusable(uri, "each process has a memory of its own", _EXAMPLE)
    return uri.rstrip("/")


def unusable(uri: str, because: str, try_: str) -> UserError:
    """Say that a URI can't be used."""
    return UserError(f"checkpoints can't be kept at {uri}", because, try_)


def _without_password(uri: str) -> str:
    return re.sub(r"//[^/@]*@", "//…@", uri)
