"""What a pool keeps of what is over, and for how long; and files that are removed by these rules.

Nothing that belongs to an active job, or to a job in memory, is ever removed.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from coddl.core.pool.forgetting import PAST_MAX

DAY_S: Final = 86_400.0
GB: Final = 10**9
SIZE_AGE_S: Final = 3_600.0  # a file that is younger is not removed for want of room


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The rules. Ages are those of the end, or of the last change of a file."""

    jobs: int = PAST_MAX  # that have ended, in memory: the newest
    events_s: float = 30 * DAY_S  # records of the journal behind its snapshots
    logs_s: float = 30 * DAY_S  # what jobs print
    logs_bytes: int = 20 * GB
    metrics_s: float = 90 * DAY_S  # what jobs log with `coddl.log`
    metrics_bytes: int = 4 * GB
    code_s: float = 7 * DAY_S  # archives of submitted code
    code_bytes: int = 20 * GB
    nodes_s: float = 7 * DAY_S  # nodes that are lost


class Collected(NamedTuple):
    """What was removed of a folder, and what is left."""

    files: int
    size_bytes: int
    left_files: int
    left_bytes: int


class _File(NamedTuple):
    changed_s: float
    size_bytes: int
    path: Path


def removed(path: Path) -> bool:
    """Remove a file; return whether it was there."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def collect(
    folder: Path,
    is_needed: Callable[[str], bool],
    age_s: float,
    most_bytes: int,
    *,
    now_s: float,
    remove: Callable[[Path], bool] = removed,
) -> Collected:
    """Remove files of a folder that are too old, and the oldest while there are too many bytes.

    `is_needed` tells, by a file's name, whether it stays; `remove` may decline.
    """
    files = sorted(_files(folder))
    left_bytes = sum(each.size_bytes for each in files)
    count = size_bytes = 0
    for each in files:
        file_age_s = now_s - each.changed_s
        is_too_much = left_bytes > most_bytes and file_age_s > SIZE_AGE_S
        if not (file_age_s > age_s or is_too_much):
            break  # all others are younger
        if is_needed(each.path.name) or not remove(each.path):
            continue
        count, size_bytes = count + 1, size_bytes + each.size_bytes
        left_bytes -= each.size_bytes
    return Collected(count, size_bytes, len(files) - count, left_bytes)


def job_of(name: str) -> int | None:
    """Return which job a file of `logs` or `metrics` is of; None: of none."""
    number = name.partition(".")[0]
    return int(number) if number.isdecimal() else None


def _files(folder: Path) -> list[_File]:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                about = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if entry.is_file(follow_symlinks=False):
                found.append(_File(about.st_mtime, about.st_size, Path(entry.path)))
    return found
