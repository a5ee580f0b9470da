"""Files that appear whole or not at all."""

import os
from contextlib import suppress
from pathlib import Path

from coddl.core.errors import UserError


def write_whole(path: Path, data: bytes, what: str) -> None:
    """Write a file; at `path` there is all of it, or what was there before and a UserError."""
    part = path.parent / f".{path.name}.{os.getpid()}.part"
    try:
        part.write_bytes(data)
        part.replace(path)
    except (OSError, ValueError) as error:
        with suppress(OSError, ValueError):
            part.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"{what} {path} cannot be written",
            f"the file system says: {reason}",
            "a file name in a folder that exists and that you may write to",
        ) from None
