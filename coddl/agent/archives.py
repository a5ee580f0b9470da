"""Unpacks archives: nothing of one may lie, or point, outside of the folder."""

import copy
import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

HAS_FILTERS: Final = hasattr(tarfile, "data_filter")  # from Python 3.11.4 on


def extract(tar: tarfile.TarFile, folder: Path, members: Iterable[tarfile.TarInfo]) -> None:
    """Unpack members of an archive; raises tarfile.TarError for one that leads out of it."""
    if HAS_FILTERS:
        tar.extractall(folder, members, filter="data")
    else:
        tar.extractall(folder, _checked(members, os.path.realpath(folder)))


def _checked(members: Iterable[tarfile.TarInfo], folder: str) -> Iterator[tarfile.TarInfo]:
    """Do what the filter `data` does."""
    for member in members:
        checked = copy.copy(member)
        checked.name = member.name.lstrip("/")
        _check_within(folder, os.path.join(folder, checked.name), member)
        if not (member.isfile() or member.isdir() or member.islnk() or member.issym()):
            raise tarfile.TarError(f"{member.name!r} is a special file")
        if member.islnk() or member.issym():
            beside = os.path.dirname(checked.name) if member.issym() else ""
            if os.path.isabs(member.linkname):
                raise tarfile.TarError(f"{member.name!r} is a link to an absolute path")
            _check_within(folder, os.path.join(folder, beside, member.linkname), member)
        checked.mode = 0o755 if member.isdir() else member.mode & 0o755 | 0o600
        checked.uid = checked.gid = -1  # as who unpacks it
        checked.uname = checked.gname = ""
        yield checked


def _check_within(folder: str, path: str, member: tarfile.TarInfo) -> None:
    if os.path.commonpath([os.path.realpath(path), folder]) != folder:
        raise tarfile.TarError(f"{member.name!r} would be outside of the folder")
