"""Files of jobs at a URI, through fsspec: s3://bucket/prefix with `coddl[s3]`, file:///folder, …

Each node finds its credentials as the tools of the store do: AWS_ACCESS_KEY_ID, AWS_PROFILE,
AWS_ENDPOINT_URL and so on, or what its machine was given.
"""

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from coddl.api.checkpoint_uri import unusable

T = TypeVar("T")
PROBE: Final = ".coddl-probe"
BUCKETED: Final = frozenset({"s3", "gs", "gcs", "abfs", "abfss", "az", "oss"})
# While a job that leaves is saved, it does not train: a store that hangs must be noticed soon. Who
# saves tries again.
S3_OPTIONS: Final[dict[str, Any]] = {
    "config_kwargs": {
        "connect_timeout": 5,
        "read_timeout": 20,
        "retries": {"total_max_attempts": 1},
    }
}
S3_TRIES: Final = 2


class ObjectStore:
    """What lies below a URI."""

    def __init__(self, uri: str) -> None:
        """Raise UserError if the URI can't be understood here."""
        import fsspec

        scheme = uri.partition("://")[0]
        # Other nodes write there, too; and the environment, which is not part of a key, may change.
        options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
        options |= S3_OPTIONS if scheme == "s3" else {}
        try:
            # Any: fsspec has no types.
            self._fs: Any
            self._fs, self._root = fsspec.core.url_to_fs(uri, **options)
        except (ImportError, ValueError) as error:
            try_ = "pip install 'coddl[s3]'" if scheme == "s3" else "the package that fsspec needs"
            raise unusable(uri, f"{error}", try_) from None
        if scheme == "s3":
            self._fs.retries = S3_TRIES
        self._has_folders = scheme not in BUCKETED
        self.uri = uri

    def check(self) -> None:
        """Write a file, read it and remove it, or raise UserError with what was refused."""
        files, name, word = self.files(), f"{PROBE}-{secrets.token_hex(4)}", secrets.token_bytes(8)
        try:
            files.write(name, [word])
            is_same = files.content(name) == word
            files.remove(name)
        except OSError as error:
            try_ = "check the address, and that this agent's credentials may read and write there"
            raise unusable(self.uri, f"{error}", try_) from None
        if not is_same:
            raise unusable(self.uri, "it does not give back what was written", "another store")

    def files(self, *folders: str) -> "ObjectFiles":
        """Give the files of a folder, which need not exist."""
        path = "/".join((self._root, *folders))
        uri = "/".join((self.uri, *folders))
        return ObjectFiles(self._fs, path, uri, has_folders=self._has_folders)


class ObjectFiles:
    """The files of one folder at a URI. OSError is all that is raised."""

    def __init__(self, fs: Any, path: str, uri: str, *, has_folders: bool) -> None:
        self._fs = fs  # Any: fsspec has no types
        self._path = path
        self._has_folders = has_folders
        self.uri = uri

    def names(self) -> list[str]:
        """List the files that are there."""

        def listed() -> list[str]:
            try:
                found = self._fs.ls(self._path, detail=True)
            except FileNotFoundError:
                return []
            return sorted(_name(each["name"]) for each in found if each["type"] == "file")

        return _asked(listed)

    def read(self, name: str, to: Path) -> None:
        """Copy a file to a path."""
        _asked(lambda: self._fs.get_file(f"{self._path}/{name}", str(to)))

    def content(self, name: str) -> bytes:
        """Give what a small file holds."""
        found: bytes = _asked(lambda: self._fs.cat_file(f"{self._path}/{name}"))
        return found

    def write(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Write a file, all of it or nothing."""
        if self._has_folders:  # else this would make a bucket
            _asked(lambda: self._fs.makedirs(self._path, exist_ok=True))
        # Nothing is seen of it before `commit`.
        file = _asked(lambda: self._fs.open(f"{self._path}/{name}", "wb", autocommit=False))
        try:
            for piece in pieces:
                _asked(partial(file.write, piece))
            _asked(lambda: _finish(file))
        except BaseException:
            with contextlib.suppress(Exception):
                file.close()
                file.discard()
            raise

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no mistake."""
        with contextlib.suppress(FileNotFoundError):
            _asked(lambda: self._fs.rm_file(f"{self._path}/{name}"))

    def remove_all(self) -> None:
        """Remove the folder, with what jobs have put there themselves."""
        with contextlib.suppress(FileNotFoundError):
            _asked(lambda: self._fs.rm(self._path, recursive=True))


def _finish(file: Any) -> None:  # Any: fsspec has no types
    file.flush()
    if _is_local(file):
        os.fsync(file.fileno())  # a rename may reach the disk before what was written
    file.close()
    file.commit()


def _is_local(file: Any) -> bool:  # Any: fsspec has no types
    from fsspec.implementations.local import LocalFileOpener

    return isinstance(file, LocalFileOpener)


def _asked(call: Callable[[], T]) -> T:
    """Make a call; what the clients of stores raise becomes OSError."""
    try:
        return call()
    except Exception as error:  # each has its own tree of errors
        if isinstance(error, FileNotFoundError):
            raise
        said = re.sub(r"\?[^\s\"']*", "", f"{error}")  # without the queries of its addresses
        name = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
        raise OSError(f"{name}{said}") from error


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
