"""Unpacks archives: nothing of one may lie, or point, outside of the folder."""

import copy
import os
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

HAS_FILTERS: Final = hasattr(tarfile, "data_filter")  # from Python 3.11.4 on


def extract(tar: tarfile.TarFile, folder: Path, members: Iterable[tarfile.TarInfo]) -> None:
    """Unpack members of an archive; raises tarfile.TarError for one that leads out of it."""
    if HAS_FILTERS:
        tar.extractall(folder, members, filter="data")
    else:
        tar.extractall(folder, (_checked(member, folder) for member in members))


def extracted_at(member: tarfile.TarInfo, folder: Path) -> Path:
    """Tell where `extract` puts a member; raises tarfile.TarError if it would not."""
    if HAS_FILTERS:
        return folder / tarfile.data_filter(member, str(folder)).name
    return folder / _checked(member, folder).name


def _checked(member: tarfile.TarInfo, folder: Path) -> tarfile.TarInfo:
    """Do what the filter `data` does."""
    checked = copy.copy(member)
    checked.name = member.name.lstrip("/")
    _check_within(folder, folder / checked.name, member)
    if not (member.isfile() or member.isdir() or member.islnk() or member.issym()):
        raise tarfile.TarError(f"{member.name!r} is a special file")
    if member.islnk() or member.issym():
        beside = os.path.dirname(checked.name) if member.issym() else ""
        if os.path.isabs(member.linkname):
            raise tarfile.TarError(f"{member.name!r} is a link to an absolute path")
        _check_within(folder, folder / beside / member.linkname, member)
    checked.mode = 0o755 if member.isdir() else member.mode & 0o755 | 0o600
    checked.uid = checked.gid = -1  # of whom unpacks it
    checked.uname = checked.gname = ""
    return checked


def _check_within(folder: Path, path: Path, member: tarfile.TarInfo) -> None:
    root = os.path.realpath(folder)
    if os.path.commonpath([os.path.realpath(path), root]) != root:
        raise tarfile.TarError(f"{member.name!r} would be outside of the folder")
