"""The folder that a job takes along: one archive, named by the hash of its bytes.

The archive is a function of what the folder holds: entries are sorted, times and owners are left
out. So the same folder gives the same name, and is sent once.
"""

import errno
import fnmatch
import gzip
import hashlib
import os
import stat
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from coddl.core.errors import UserError

BYTES_MAX: Final = 256 << 20  # of an archive, and of the files that go into one

IGNORED: Final = (".git", "__pycache__", ".venv", "node_modules")
IGNORE_FILE: Final = ".coddlignore"
CHUNK_BYTES: Final = 1 << 20
LARGEST_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class CodeArchive:
    """A folder, packed."""

    hash: str
    path: Path
    bytes_: int  # as packed
    names: frozenset[str]  # of the files in it, with slashes
    left_out: tuple[str, ...]  # why, for what is neither ignored nor packed


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """A file, folder or link that is to be packed."""

    name: str  # within the folder, with slashes
    path: Path
    status: os.stat_result

    @property
    def bytes_(self) -> int:
        """How much it adds."""
        return self.status.st_size if stat.S_ISREG(self.status.st_mode) else 0


def digest_of(file: IO[bytes]) -> str:
    """Hash what a file holds: the name of an archive."""
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def pack(folder: Path, archive: Path) -> CodeArchive:
    """Write a folder to an archive, less what is ignored; raise UserError if it is too large."""
    left_out: list[str] = []
    try:
        entries = list(_entries(folder, folder.resolve(), _patterns(folder), left_out))
        _check_size(folder, entries)
        _write(entries, archive)
    except OSError as error:
        raise UserError(
            f"{folder} can't be submitted",
            f"{error.filename or folder}: {error.strerror or error}",
            f"add it to {IGNORE_FILE}, or submit from another directory",
        ) from None
    with archive.open("rb") as file:
        digest = digest_of(file)
    names = frozenset(entry.name for entry in entries if stat.S_ISREG(entry.status.st_mode))
    return CodeArchive(digest, archive, archive.stat().st_size, names, tuple(left_out))


def _patterns(folder: Path) -> tuple[str, ...]:
    try:
        lines = (folder / IGNORE_FILE).read_text("utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        lines = []
    said = (line.strip() for line in lines)
    return (*IGNORED, *(line.rstrip("/") for line in said if line and not line.startswith("#")))


def _is_ignored(name: str, patterns: tuple[str, ...]) -> bool:
    """Match the last part of a name, or the whole of it."""
    last = name.rpartition("/")[2]
    return any(
        fnmatch.fnmatchcase(last, each) or fnmatch.fnmatchcase(name, each.lstrip("/"))
        for each in patterns
    )


def _entries(
    folder: Path, root: Path, patterns: tuple[str, ...], left_out: list[str], above: str = ""
) -> Iterator[ArchiveEntry]:
    """Yield what is to be packed, in the order of names."""
    for found in sorted(os.scandir(folder), key=lambda each: os.fsencode(each.name)):
        entry = ArchiveEntry(
            f"{above}{found.name}", Path(found.path), found.stat(follow_symlinks=False)
        )
        mode = entry.status.st_mode
        if _is_ignored(entry.name, patterns):
            continue
        if stat.S_ISDIR(mode):
            yield entry
            yield from _entries(entry.path, root, patterns, left_out, f"{entry.name}/")
        elif stat.S_ISREG(mode) or (stat.S_ISLNK(mode) and _stays_inside(entry.path, root)):
            yield entry
        elif stat.S_ISLNK(mode):
            left_out.append(
                f"{entry.name} (a link to {os.readlink(entry.path)}, outside of the directory)"
            )
        else:
            left_out.append(f"{entry.name} (neither a file nor a directory)")


def _stays_inside(link: Path, root: Path) -> bool:
    """Return whether a link leads to what is packed, or to nothing; raises OSError at a loop."""
    try:
        link.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:  # nodes could not unpack it
            raise
    is_relative = not os.path.isabs(os.readlink(link))
    return is_relative and Path(os.path.realpath(link)).is_relative_to(root)


def _check_size(folder: Path, entries: list[ArchiveEntry]) -> None:
    total = sum(entry.bytes_ for entry in entries)
    if total <= BYTES_MAX:
        return
    parts: Counter[str] = Counter()
    for entry in entries:
        top, slash, _ = entry.name.partition("/")
        parts[f"{top}{slash}"] += entry.bytes_
    largest = [part for part in parts.most_common(LARGEST_SHOWN) if part[1] > total // 100]
    raise UserError(
        f"{folder} can't be submitted",
        f"its files take {_megabytes(total)}, more than {_megabytes(BYTES_MAX)}: "
        + ", ".join(f"{name} {_megabytes(size)}" for name, size in largest),
        f"add {largest[0][0]} to {IGNORE_FILE}, and keep data where every node can read it",
    )


def _megabytes(bytes_: int) -> str:
    return f"{bytes_ / (1 << 20):,.0f} MB"


def _write(entries: list[ArchiveEntry], archive: Path) -> None:
    with (
        archive.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=3, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for entry in entries:
            _add(tar, entry)


def _add(tar: tarfile.TarFile, entry: ArchiveEntry) -> None:
    about = tarfile.TarInfo(entry.name)
    about.mode = stat.S_IMODE(entry.status.st_mode) & 0o777
    if stat.S_ISDIR(entry.status.st_mode):
        about.type = tarfile.DIRTYPE
        tar.addfile(about)
    elif stat.S_ISLNK(entry.status.st_mode):
        about.type, about.linkname = tarfile.SYMTYPE, os.readlink(entry.path)
        tar.addfile(about)
    else:
        with entry.path.open("rb") as file:
            about.size = os.fstat(file.fileno()).st_size
            tar.addfile(about, file)
