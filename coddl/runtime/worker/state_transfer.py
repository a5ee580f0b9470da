"""Brings the image of one worker's state to the workers that lack it, once per node.

Workers of the source's node map its image. On each other node one worker receives the bytes, and
the others there map the file it has written: neither the network nor the node's memory carries the
state more than once per node, however many workers there are.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from coddl.runtime.worker.group import Group

PATH_BYTES: Final = 1024
CHUNK_BYTES: Final = 16 << 20


def writers(source: int, behind: Sequence[int], nodes: Sequence[int]) -> dict[int, int]:
    """Return which rank's file each rank that is behind reads; `nodes` has the node of each rank.

    On the source's node that is the source's, on any other node that of the first rank behind.
    """
    first = {nodes[rank]: rank for rank in sorted(behind, reverse=True)}
    first[nodes[source]] = source
    return {rank: first[nodes[rank]] for rank in behind}


@contextlib.contextmanager
def brought(
    group: Group, source: int, writer_of: Mapping[int, int], *, image: Path | None, received: Path
) -> Iterator[Path | None]:
    """Bring the source's image to every rank in `writer_of`; all members of the group take part.

    `image` is None on all but the source. A rank that receives the bytes keeps them in `received`
    until each rank that maps them has left this context. Yields the file to read, or None.
    """
    receivers = sorted(set(writer_of.values()) - {source})
    receives = group.rank in receivers
    try:
        if receivers:
            _send(group, source, receivers, image, received if receives else None)
        files = _told(group, received if receives else image)
        yield files[writer_of[group.rank]] if group.rank in writer_of else None
        if any(rank != writer != source for rank, writer in writer_of.items()):
            group.finish(group.all_reduce(torch.zeros(1)))  # none of them reads a file any more
    finally:
        if receives:
            received.unlink(missing_ok=True)


def _send(
    group: Group, source: int, receivers: Sequence[int], image: Path | None, to: Path | None
) -> None:
    """Send an image's bytes to the receivers, each of which writes a file of them."""
    told = torch.tensor([0 if image is None else image.stat().st_size])
    group.finish(group.broadcast(told, source))
    size = int(told.item())
    with contextlib.ExitStack() as files:
        reader = None if image is None else files.enter_context(image.open("rb"))
        writer = None if to is None else files.enter_context(to.open("wb"))
        for start in range(0, size, CHUNK_BYTES):
            length = min(CHUNK_BYTES, size - start)
            read = b"" if reader is None else reader.read(length)
            sent = [len(read) if rank in receivers else 0 for rank in range(group.world)]
            lacks = writer is not None
            received = [length if lacks and rank == source else 0 for rank in range(group.world)]
            chunk = bytearray(sum(received))
            given = _tensor(bytearray(read * len(receivers)))
            group.finish(group.all_to_all(_tensor(chunk), given, received, sent))
            if writer is not None:
                writer.write(chunk)


def _told(group: Group, mine: Path | None) -> list[Path]:
    """Exchange file paths with the members of the group; return theirs."""
    data = bytearray(b"" if mine is None else str(mine).encode()).ljust(PATH_BYTES, b"\0")
    told = torch.empty(group.world * PATH_BYTES, dtype=torch.uint8)
    group.finish(group.all_gather(told, _tensor(data)))
    rows: list[list[int]] = told.view(group.world, PATH_BYTES).tolist()
    return [Path(bytes(row).rstrip(b"\0").decode()) for row in rows]


def _tensor(data: bytearray) -> Tensor:
    """Return a tensor of the same memory."""
    if not data:  # torch refuses an empty buffer
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(data, dtype=torch.uint8)
