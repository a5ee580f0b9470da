"""Records as the journal stores them, and those that follow a snapshot, one after the other."""

from collections.abc import Iterator
from typing import Final, NamedTuple, get_args

import msgspec

from coddl.core.pool import records as r
from coddl.core.pool.records import Record
from coddl.server.store import JournalReader, StoredRecord

PAGE: Final = 1_000
KINDS: Final[dict[str, type[Record]]] = {r.kind_of(kind): kind for kind in get_args(Record)}

_decoders: Final = {name: msgspec.json.Decoder(kind) for name, kind in KINDS.items()}


class JournalEntry(NamedTuple):
    """A record with its number in the journal."""

    seq: int
    at_s: float
    record: Record


class UnreadableRecord(msgspec.Struct, frozen=True):
    """Stands for a record that can't be read."""

    kind: str
    because: str


class BrokenTail(Exception):
    """A record that a fold needs can't be read, or is missing; says which, and why."""


def tail_of(reader: JournalReader, after: int) -> Iterator[JournalEntry]:
    """Yield the records after a number; raises BrokenTail: a fold can leave none out."""
    while page := reader.lines(after, PAGE, None):
        for line in page:
            if line.seq != after + 1:
                raise BrokenTail(f"record {after + 1} is missing, or was removed just now")
            record = record_of(line)
            if isinstance(record, UnreadableRecord):
                raise BrokenTail(record.because)
            yield JournalEntry(line.seq, line.at_s, record)
            after = line.seq


def record_of(line: StoredRecord) -> Record | UnreadableRecord:
    """Read a stored record."""
    if line.kind not in _decoders:
        because = f'record {line.seq} is a "{line.kind}", unknown to this version'
        return UnreadableRecord(line.kind, because)
    try:
        return _decoders[line.kind].decode(line.body)
    except msgspec.DecodeError as error:
        return UnreadableRecord(line.kind, f"record {line.seq} ({line.kind}): {error}")
