"""Journals for tests: one that a pool has written, and what writes one into a state directory."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from coddl.core.pool.recording import TimedRecord
from coddl.server.folding import KINDS
from coddl.server.journal import Journal
from coddl.server.journal_reading import FILE
from coddl.server.store_sql import SqlStore, sqlite_url

DEMO: Final = Path(__file__).with_name("data") / "demo_journal.jsonl.gz"  # of `coddl demo`


def demo_records() -> list[TimedRecord]:
    """Give the records of a demo: seven trainings on four CPU slots, under AFS-P."""
    lines = gzip.decompress(DEMO.read_bytes()).decode().splitlines()
    told = (json.loads(line) for line in lines)
    return [
        TimedRecord(at_s, msgspec.convert(body, KINDS[kind], strict=False))
        for at_s, kind, body in told
    ]


def write_journal(folder: Path, records: Iterable[TimedRecord]) -> Path:
    """Write a journal as a server does; give its file."""
    path = folder / FILE
    journal = Journal(SqlStore(sqlite_url(path)))
    for at_s, record in records:
        journal.append([record], [], at_s)
    journal.close()
    return path
