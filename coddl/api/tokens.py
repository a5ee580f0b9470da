"""The file with a pool's token: for its owner alone."""

from pathlib import Path

from coddl.core.errors import UserError


def read_token(path: Path, option: str = "--token-file") -> str:
    """Return the token in a file; raises UserError if there is none, or others may know it."""
    try:
        mode = path.stat().st_mode & 0o777
        token = path.read_text("utf-8", errors="replace").strip()
    except OSError as error:
        because = f"{path}: {error.strerror}"
        raise UserError("the token can't be read", because, f"{option} FILE") from None
    if mode & 0o077:
        because = f"others can read {path}: its mode is {mode:o}"
        raise UserError("the token can't be used", because, f"chmod 600 {path}")
    if not token:
        raise UserError("the token can't be used", f"{path} is empty", f"{option} FILE")
    return token
