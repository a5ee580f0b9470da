"""Read a text file, plain or gzipped; errors say why it cannot be read."""

import gzip
import zlib
from pathlib import Path

from coddl.core.errors import UserError

GZIP_MAGIC = b"\x1f\x8b"


def read_text(path: Path, what: str) -> str:
    """The file's text. Gzip is recognised by content; a byte order mark is dropped."""
    data = _unpacked(_bytes_of(path, what), path, what)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _not_text(what, line, data[error.start]) from None
    if "\0" in text:
        raise _not_text(what, text.count("\n", 0, text.index("\0")) + 1, 0)
    if not text.strip():
        raise UserError(what, "the file is empty", "a file with a header line and data below it")
    return text


def _bytes_of(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(what, "there is no such file", "the path of an existing file") from None
    except IsADirectoryError:
        raise UserError(what, "it is a folder", "the path of a file in it") from None
    except (OSError, ValueError) as error:  # ValueError: a path that no file system takes
        reason = getattr(error, "strerror", None) or error
        raise UserError(what, f"opening it failed: {reason}", "a file you may read") from None


def _unpacked(data: bytes, path: Path, what: str) -> bytes:
    if not data.startswith(GZIP_MAGIC):
        if path.suffix == ".gz" and data:
            raise UserError(
                what,
                f"its name ends in .gz, but it starts with {data[:2]!r}, which is not gzip",
                "a name without .gz, or compressing it with gzip",
            )
        return data
    try:
        return gzip.decompress(data)
    except EOFError:
        because = f"its gzip data is cut off after {len(data)} bytes"
    except (gzip.BadGzipFile, zlib.error) as error:
        because = f"its gzip data is damaged: {error}"
    raise UserError(what, because, "copying it again from its source")


def _not_text(what: str, line: int, byte: int) -> UserError:
    because = f"line {line}: the byte 0x{byte:02x} there is not UTF-8 text"
    return UserError(what, because, "a text file, saved as UTF-8, plain or compressed with gzip")
