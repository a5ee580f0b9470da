"""What a job's checkpoints at a URI need of it; the agent knows how to reach it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol


class RemoteFiles(Protocol):
    """The files of one job at a URI, by name. Every call may raise OSError."""

    @property
    def uri(self) -> str:
        """Give where they are, for people."""
        ...

    def names(self) -> list[str]:
        """List the files that are there; written a moment ago, by any node, counts."""
        ...

    def read(self, name: str, to: Path) -> None:
        """Copy a file to a path."""
        ...

    def write(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Write a file, all of it or nothing, in the place of an older one; it is durable then."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no mistake."""
        ...


def uri_for(files: RemoteFiles | None) -> str:
    """Give the URI where a job may keep files of its own; empty if there is none."""
    return "" if files is None else f"{files.uri}/files"
