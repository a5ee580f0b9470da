"""What a worker's process is called in `ps`, which shows what it is doing."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

PARKED: Final = "coddl-parked"  # one that waits, parked or for its turn, and uses no GPU


@contextmanager
def named(name: str) -> Iterator[None]:
    """Be called something else for a while; to the end, if that comes meanwhile."""
    comm = Path(f"/proc/{os.getpid()}/comm")
    before = ""
    with suppress(OSError):
        before = comm.read_text().rstrip()
        comm.write_text(name)
    yield
    with suppress(OSError):
        comm.write_text(before)
