"""Snapshots: a pool's recording at one moment, in parts, so that no step of reading or writing one
takes long.

The version that wrote a snapshot reads it back exactly. Another one prefers the records; once they
are trimmed it reads the snapshot as far as it knows its fields, and takes the rest for unknown.
(ADR 24)
"""

import io
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple, TypeVar

import msgspec

from coddl import __version__
from coddl.core.pool.nodes import NodeState, SlotState
from coddl.core.pool.recording import RecordedJob, Recording
from coddl.server.store import JournalReader

ITEMS: Final = 32  # jobs, nodes or slots of a part

# What a recording is made of, so that a snapshot with other fields is known as such.
LAYOUT: Final = zlib.crc32(json.dumps(msgspec.json.schema(Recording)).encode()) & 0x7FFFFFFF

T = TypeVar("T")


class _Head(msgspec.Struct, frozen=True):
    """The first line of a snapshot."""

    version: str  # of coddl that wrote it
    at_s: float
    parts: int
    recording: Recording  # less what the parts hold


class _Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """Any other line."""

    jobs: list[RecordedJob] = []
    nodes: list[NodeState] = []
    slots: list[SlotState] = []


class DecodedSnapshot(NamedTuple):
    """What was read."""

    version: str
    at_s: float
    recording: Recording


class FoldBase(NamedTuple):
    """Where a fold begins: after record `seq`."""

    recording: Recording
    seq: int
    at_s: float  # of that record; no later event is earlier


_encoder: Final = msgspec.json.Encoder()
_head: Final = msgspec.json.Decoder(_Head)
_part: Final = msgspec.json.Decoder(_Part)


def _no_rest() -> None:
    """Go on at once."""


def encoded_snapshot(
    recording: Recording, at_s: float, rest: Callable[[], None] = _no_rest
) -> bytes:
    """Write a snapshot; raises msgspec.DecodeError if it could not be read back.

    `rest` is called between parts.
    """
    pool = recording.pool
    jobs = [_Part(jobs=each) for each in _in_batches(list(recording.jobs.values()))]
    nodes = [_Part(nodes=each) for each in _in_batches(list(pool.nodes.values()))]
    slots = [_Part(slots=each) for each in _in_batches(list(pool.slots.values()))]
    parts = [*jobs, *nodes, *slots]
    bare = replace(pool, jobs={}, nodes={}, slots={}, touched=set())
    head = _Head(__version__, at_s, len(parts), replace(recording, pool=bare, jobs={}))
    packer = zlib.compressobj(1)
    line = _encoder.encode(head)
    _head.decode(line)
    packed = [packer.compress(line + b"\n")]
    for part in parts:
        line = _encoder.encode(part)
        _part.decode(line)
        packed.append(packer.compress(line + b"\n"))
        rest()
    return b"".join([*packed, packer.flush()])


def decoded_snapshot(body: bytes, rest: Callable[[], None] = _no_rest) -> DecodedSnapshot | None:
    """Read a snapshot; None: it can't be read."""
    try:
        lines = io.BytesIO(zlib.decompress(body))
        head = _head.decode(lines.readline())
        recording, count = head.recording, 0
        pool = recording.pool
        for count, line in enumerate(lines, start=1):  # noqa: B007  # it is compared below
            part = _part.decode(line)
            recording.jobs |= {each.job.id: each for each in part.jobs}
            pool.jobs |= {each.job.id: each.job for each in part.jobs}
            pool.nodes |= {each.name: each for each in part.nodes}
            pool.slots |= {each.slot: each for each in part.slots}
            rest()
    except (zlib.error, msgspec.DecodeError):
        return None
    return DecodedSnapshot(head.version, head.at_s, recording) if count == head.parts else None


def base_of(reader: JournalReader, rest: Callable[[], None] = _no_rest) -> FoldBase | None:
    """Return where a fold of a journal begins; None: it was trimmed, and no snapshot can be read.

    The newest snapshot that this version wrote; else the first record; else, if that was trimmed,
    the newest snapshot that can be read at all.
    """
    first, last = reader.first_seq(), reader.last_seq()
    stored = [each for each in reader.stored_snapshots() if first - 1 <= each.seq <= last]
    for each in stored:
        found = decoded_snapshot(each.body, rest) if each.schema == LAYOUT else None
        if found is not None and found.version == __version__:
            return FoldBase(found.recording, each.seq, found.at_s)
    if first <= 1:
        return FoldBase(Recording(), 0, 0.0)
    for each in stored:
        if (found := decoded_snapshot(each.body, rest)) is not None:
            return FoldBase(found.recording, each.seq, found.at_s)
    return None


def _in_batches(items: Sequence[T]) -> Iterator[list[T]]:
    left = iter(items)
    while batch := list(islice(left, ITEMS)):
        yield batch
