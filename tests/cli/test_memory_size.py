"""Amounts of memory on the command line."""

import pytest

from coddl.cli.memory_size import read_memory
from coddl.core.errors import UserError


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", None), ("0", 0), ("64GiB", 64 << 30), ("1.5 GB", 1_500_000_000), ("512MiB", 512 << 20)],
)
def test_amounts_are_read(text: str, expected: int | None) -> None:
    assert read_memory("--host-memory", text) == expected


@pytest.mark.parametrize("text", ["64", "GiB", "-1GiB", "1gb", "1 G B", "64 GiB more"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--host-memory"):
        read_memory("--host-memory", text)
