"""Files that appear whole or not at all."""

from contextlib import suppress
from os import getpid
from pathlib import Path

from coddl.core.errors import UserError


def write_atomically(path: Path, data: bytes, what: str) -> None:
    """Write a file; at `path` there is all of it, or what was there before and a UserError.

    A link stays a link, and what is no regular file (a pipe, a device) is written to as it is.
    """
    try:
        target = path.resolve()
        if target.exists() and not target.is_file() and not target.is_dir():
            target.write_bytes(data)
        else:
            _replace(target, data)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"{what} {path} cannot be written",
            f"the file system says: {reason}",
            "a file name in a folder that exists and that you may write to",
        ) from None


def _replace(path: Path, data: bytes) -> None:
    part = path.parent / f".{path.name}.{getpid()}.part"
    try:
        part.write_bytes(data)
        part.replace(path)
    finally:
        with suppress(OSError, ValueError):
            part.unlink(missing_ok=True)
