"""A journal read by others than its server, which may run meanwhile. Nothing is ever written."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import Engine, create_engine, func, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from coddl.core.errors import UserError
from coddl.core.pool.recording import TimedRecord
from coddl.server.errors import JournalUnreadable
from coddl.server.journal import PAGE, SCHEMA, UnreadableRecord, record_of
from coddl.server.schema import meta, records
from coddl.server.store import StoredRecord

FILE: Final = "journal.db"  # in a state directory
TRY: Final = "--journal with a state directory, its journal.db, or the URL of a database"


def read_journal(where: str) -> Iterator[TimedRecord]:
    """Give all records that a journal has now; it is a file, a state directory, or a URL.

    Raises JournalUnreadable, and UserError if there is no journal.
    """
    engine, shown = _opened(where)
    try:
        with engine.connect() as connection:
            notes = {key: value for key, value in connection.execute(select(meta))}
            if int(notes.get("schema", SCHEMA)) > SCHEMA:
                written = notes.get("version", "a newer version")
                because = f"coddl {written} wrote it, with records unknown here"
                raise JournalUnreadable(f"the journal {shown} cannot be read", because, written)
            last = connection.execute(select(func.max(records.c.seq))).scalar() or 0
        after = 0
        while after < last:
            with engine.connect() as connection:
                query = select(records).where(records.c.seq > after, records.c.seq <= last)
                rows = connection.execute(query.order_by(records.c.seq).limit(PAGE)).all()
            lines = [StoredRecord(*row) for row in rows]
            yield from (_read(line, shown) for line in lines)
            after = lines[-1].seq if lines else last
    except DBAPIError as error:
        because = str(error.orig).strip().partition("\n")[0]
        raise UserError(f"the journal {shown} cannot be read", because, TRY) from None
    finally:
        engine.dispose()


def _read(line: StoredRecord, shown: str) -> TimedRecord:
    record = record_of(line)
    if isinstance(record, UnreadableRecord):
        because = record.because
        newer = "the version of coddl that wrote it, or a newer one"
        raise JournalUnreadable(f"the journal {shown} cannot be read", because, newer)
    return TimedRecord(line.at_s, record)


def _opened(where: str) -> tuple[Engine, str]:
    """Open a journal for reading alone; with what it may be called, which tells no password."""
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
