"""A journal read by others than its server, which may run meanwhile. Nothing is ever written."""

import sqlite3
import zlib
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from coddl.core.errors import UserError
from coddl.core.pool.recording import Recording
from coddl.server.errors import JournalUnreadable
from coddl.server.folding import BrokenTail, tail_of
from coddl.server.history_rows import recorded_job
from coddl.server.journal import SCHEMA
from coddl.server.snapshots import base_of
from coddl.server.sql_reading import SqlReader
from coddl.server.store import HistoryQuery, JournalReader

FILE: Final = "journal.db"  # in a state directory
ROWS: Final = 1_000  # of the history, that are read together
TRY: Final = "--journal with a state directory, its journal.db, or the URL of a database"


def read_recording(where: str) -> Recording:
    """Return a journal's recording of its pool; it is a file, a state directory, or a URL.

    Raises JournalUnreadable, and UserError if there is no journal.
    """
    engine, shown = _opened(where)
    reader = SqlReader(engine)
    try:
        return recording_of(reader)
    except BrokenTail as broken:
        raise JournalUnreadable(
            f"the journal {shown} cannot be read", str(broken), _newer(reader)
        ) from None
    except DBAPIError as error:
        because = str(error.orig).strip().partition("\n")[0]
        raise UserError(f"the journal {shown} cannot be read", because, TRY) from None
    finally:
        engine.dispose()


def _newer(reader: JournalReader) -> str:
    written = reader.notes().get("version")
    return f"coddl {written} or newer" if written else "the version of coddl that wrote it"


def recording_of(reader: JournalReader) -> Recording:
    """Return a journal's recording of its pool; raises BrokenTail.

    As long as it has all its records, they are used; else a snapshot, the records since, and the
    history. It is the same.
    """
    if (schema := int(reader.notes().get("schema", SCHEMA))) > SCHEMA:
        raise BrokenTail(f"its records follow schema {schema}, not {SCHEMA}")
    if reader.first_seq() <= 1:
        recording, seq = Recording(), 0
    elif (base := base_of(reader)) is not None:
        recording, seq = base.recording, base.seq
        _add_history(recording, reader)
    else:
        raise BrokenTail("it was trimmed, and no snapshot of it can be read")
    for _, at_s, record in tail_of(reader, seq):
        recording.take(at_s, record)
    return recording.ended()


def _add_history(recording: Recording, reader: JournalReader) -> None:
    """Add the jobs that had left memory when a snapshot was taken."""
    before: int | None = None
    while rows := reader.history(HistoryQuery(before=before), ROWS):
        for row in rows:
            try:
                recording.jobs.setdefault(row.job, recorded_job(row))
            except (msgspec.DecodeError, zlib.error) as error:
                raise BrokenTail(f"job {row.job} of its history: {error}") from None
        before = rows[-1].job
    recording.jobs = dict(sorted(recording.jobs.items()))


def _opened(where: str) -> tuple[Engine, str]:
    """Open a journal for reading alone; return its URL for display, too, without the password."""
    if "://" not in where:
        path = Path(where) / FILE if Path(where).is_dir() else Path(where)
        return _of_file(path), str(path)
    try:
        url = make_url(where)
        if url.get_backend_name() == "sqlite":
            path = Path(url.database or "")
            return _of_file(path), str(path)
        # Only PostgreSQL knows the option; others ignore it.
        engine = create_engine(url, execution_options={"postgresql_readonly": True})
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        because = f"{error.name} is not installed" if isinstance(error, ModuleNotFoundError) else ""
        because = because or "it is not the URL of a database that is known here"
        raise UserError("the journal cannot be opened", because, TRY) from None
    return engine, url.render_as_string(hide_password=True)


def _of_file(path: Path) -> Engine:
    """Open SQLite's file so that nothing can be written to it."""
    if not path.is_file():
        raise UserError("there is no journal to read", f"{path} does not exist", TRY)

    def connect() -> Any:  # Any: what SQLAlchemy takes
        line = sqlite3.connect(_uri(path), uri=True, check_same_thread=False)
        try:
            line.execute("SELECT 1 FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            # The folder is read-only, and no server has the file open: nothing will change it.
            line.close()
            immutable = f"{_uri(path)}&immutable=1"
            return sqlite3.connect(immutable, uri=True, check_same_thread=False)
        return line

    return create_engine("sqlite://", creator=connect)


def _uri(path: Path) -> str:
    return f"file:{quote(str(path.absolute()))}?mode=ro"
