"""What files at a URI promise: inherit RemoteFilesContract, give it yours. And a fake."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coddl.runtime.supervisor.slots import RemoteFiles


@dataclass(slots=True)
class FakeRemoteFiles:
    """Files in memory. A test says that they can't be reached: `is_away`."""

    uri: str = "fake://jobs"
    files: dict[str, bytes] = field(default_factory=dict)
    is_away: bool = False

    def names(self) -> list[str]:
        """List the files."""
        self._check()
        return sorted(self.files)

    def read(self, name: str, to: Path) -> None:
        """Copy a file to a path."""
        self._check()
        if name not in self.files:
            raise FileNotFoundError(f"{self.uri}/{name}")
        to.write_bytes(self.files[name])

    def write(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Write a file."""
        self._check()
        self.files[name] = b"".join(bytes(piece) for piece in pieces)

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._check()
        self.files.pop(name, None)

    def _check(self) -> None:
        if self.is_away:
            raise ConnectionRefusedError(f"{self.uri} does not answer")


class RemoteFilesContract:
    """The promises. A subclass has a fixture `files` that gives an empty place.

    class TestMine(RemoteFilesContract):
        @pytest.fixture
        def files(self):
            return Mine()
    """

    @pytest.fixture
    def files(self) -> RemoteFiles:
        """The files under test."""
        raise NotImplementedError("give the contract files: a fixture named `files`")

    def test_a_place_that_was_never_written_to_is_empty(self, files: RemoteFiles) -> None:
        assert files.names() == []

    def test_what_was_written_is_listed_and_read(self, files: RemoteFiles, tmp_path: Path) -> None:
        big = bytes(range(256)) * (60_000)  # more than one part of an upload
        files.write("big", [big[:100], memoryview(big)[100:]])
        files.write("empty", ())
        assert sorted(files.names()) == ["big", "empty"]
        files.read("big", tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == big
        files.read("empty", tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == b""

    def test_a_file_is_replaced_as_a_whole(self, files: RemoteFiles, tmp_path: Path) -> None:
        files.write("x", [b"old and long"])
        files.write("x", [b"new"])
        files.read("x", tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == b"new"

    def test_a_write_that_fails_half_way_leaves_what_was_there(
        self, files: RemoteFiles, tmp_path: Path
    ) -> None:
        def torn() -> Iterator[bytes]:
            yield b"half of it"
            raise KeyError("the rest is gone")

        files.write("x", [b"old"])
        for name in ("x", "y"):
            with pytest.raises(KeyError):
                files.write(name, torn())
        assert files.names() == ["x"]
        files.read("x", tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == b"old"

    def test_a_file_can_be_removed_twice(self, files: RemoteFiles) -> None:
        files.write("x", [b"1"])
        files.remove("x")
        files.remove("x")
        assert files.names() == []

    def test_what_is_not_there_can_not_be_read(self, files: RemoteFiles, tmp_path: Path) -> None:
        with pytest.raises(OSError, match="x"):
            files.read("x", tmp_path / "copy")
