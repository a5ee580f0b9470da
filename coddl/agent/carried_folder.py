"""The folder where a command saves its own state, carried between nodes through the pool's store.

files-000003.tar    what it held when attempt 3 ended; older ones are removed
"""

import contextlib
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from coddl.agent.archives import extract
from coddl.runtime.supervisor.slots import RemoteFiles

PREFIX: Final = "files-"
PIECE_BYTES: Final = 4 << 20


def bring(files: RemoteFiles, folder: Path, here: int) -> None:
    """Have the folder hold what the newest attempt has left; raises OSError.

    `here` is the newest attempt on this node: after a crash, what it has left was not stored.
    """
    newest = max(_stored(files), default="")
    if newest <= _name(here):
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    archive = _archive_of(folder)
    try:
        files.read(newest, archive)
        with tarfile.open(archive) as tar:
            extract(tar, folder, tar)
    except tarfile.TarError as error:
        raise OSError(f"{files.uri}/{newest} can't be unpacked: {error}") from error
    finally:
        archive.unlink(missing_ok=True)


def store(files: RemoteFiles, folder: Path, attempt: int) -> None:
    """Store what an attempt leaves in its folder; raises OSError."""
    name, archive = _name(attempt), _archive_of(folder)
    try:
        with tarfile.open(archive, "w") as tar:
            tar.add(folder, ".")
        files.write(name, _pieces(archive))
    finally:
        archive.unlink(missing_ok=True)
    for older in _stored(files):
        if older < name:
            with contextlib.suppress(OSError):
                files.remove(older)


def _stored(files: RemoteFiles) -> list[str]:
    return [name for name in files.names() if name.startswith(PREFIX)]


def _name(attempt: int) -> str:
    return f"{PREFIX}{attempt:06}.tar"


def _archive_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.tar")


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece
