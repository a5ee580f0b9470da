"""A journal in a database: SQLite in WAL mode by default, each batch on disk before it counts."""

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    bindparam,
    create_engine,
    delete,
    event,
    insert,
    select,
)
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

from coddl.server.errors import JournalFull, JournalUnreadable
from coddl.server.schema import history, idempotency, meta, record_jobs, records, snapshots
from coddl.server.sql_reading import SqlReader
from coddl.server.store import (
    HistoryRow,
    RecordJob,
    StoredAnswer,
    StoredRecord,
    StoredSnapshot,
)

BUSY_S: Final = 5.0  # to wait for a process that reads or copies the file at that moment
PRAGMAS: Final = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",  # a commit that was answered survives a power cut
    f"PRAGMA busy_timeout={int(BUSY_S * 1000)}",
)


def sqlite_url(path: Path) -> URL:
    """Return the URL of a journal in a file."""
    return URL.create("sqlite", database=str(path))


class SqlStore(SqlReader):
    """Keeps a journal in the database that a URL names, with its tables brought up to date."""

    def __init__(self, url: str | URL) -> None:
        super().__init__(create_engine(url))
        self._lock = threading.Lock()  # SQLite has one writer at a time: others would only poll
        self._where = self._engine.url.database or "?"
        if self._engine.dialect.name == "sqlite":
            event.listen(self._engine, "connect", _tune)
        try:
            _migrate(self._engine, self._where)
        except OperationalError as error:
            self.close()
            raise self._full(error) from error
        except DBAPIError as error:
            self.close()
            raise JournalUnreadable(
                "the journal cannot be read",
                f"{self._where}: {error.orig}",
                "restore a copy of it, or another --state-dir",
            ) from error
        except JournalUnreadable:
            self.close()
            raise

    def append(
        self,
        lines: Sequence[StoredRecord],
        links: Sequence[RecordJob],
        answers: Sequence[StoredAnswer],
    ) -> None:
        """Make all of it durable, or raise JournalFull and keep none of it."""
        with self._writing() as connection:
            for table, rows in ((records, lines), (record_jobs, links), (idempotency, answers)):
                if rows:
                    connection.execute(insert(table), [row._asdict() for row in rows])

    def forget_answers(self, before_s: float) -> None:
        """Drop the answers that are older."""
        with self._writing() as connection:
            connection.execute(delete(idempotency).where(idempotency.c.at_s < before_s))

    def save_snapshot(self, snapshot: StoredSnapshot, made_from: int | None = None) -> None:
        """Store a snapshot; drop all but the one it was made from, or the one before.

        Raises JournalFull.
        """
        with self._writing() as connection:
            connection.execute(delete(snapshots).where(snapshots.c.seq == snapshot.seq))
            numbers = connection.execute(select(snapshots.c.seq)).scalars().all()
            kept = made_from if made_from in numbers else max(numbers, default=0)
            connection.execute(delete(snapshots).where(snapshots.c.seq != kept))
            connection.execute(insert(snapshots), snapshot._asdict())

    def save_history(self, rows: Sequence[HistoryRow]) -> None:
        """Store jobs in the history, in place of rows with their numbers; raises JournalFull."""
        with self._writing() as connection:
            connection.execute(delete(history).where(history.c.job.in_([row.job for row in rows])))
            connection.execute(insert(history), [row._asdict() for row in rows])

    def trim(self, links: Sequence[RecordJob], through: int) -> None:
        """Remove the lines up to a number, and these links to them; raises JournalFull."""
        table = record_jobs.c
        gone = (table.job == bindparam("of_job")) & (table.seq == bindparam("of_seq"))
        with self._writing() as connection:
            connection.execute(delete(records).where(records.c.seq <= through))
            if links:
                rows = [{"of_seq": seq, "of_job": job} for seq, job in links]
                connection.execute(delete(record_jobs).where(gone), rows)

    def note(self, notes: Mapping[str, str]) -> None:
        """Note something about the journal as a whole; raises JournalFull."""
        with self._writing() as connection:
            connection.execute(delete(meta).where(meta.c.key.in_(list(notes))))
            rows = [{"key": key, "value": value} for key, value in notes.items()]
            connection.execute(insert(meta), rows)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        """Open a transaction that is on disk at its end, or was never there."""
        try:
            with self._lock, self._engine.begin() as connection:
                yield connection
        except OperationalError as error:
            raise self._full(error) from error

    def _full(self, error: DBAPIError) -> JournalFull:
        return JournalFull(
            "the journal cannot be written to",
            f"{self._where}: {error.orig}",
            "free disk space or make it writable; nothing is lost, and the server then continues",
        )


def _tune(line: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    cursor = line.cursor()
    for pragma in PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def _migrate(engine: Engine, where: str) -> None:
    """Bring the tables up to date, or raise if a newer version has been here."""
    config = Config()
    folder = str(Path(__file__).with_name("migrations"))
    config.set_main_option("script_location", folder.replace("%", "%%"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            ours = ScriptDirectory.from_config(config).get_current_head()
            raise JournalUnreadable(
                f"the journal {where} cannot be read",
                f"a newer coddl has changed its tables, and this one knows them up to {ours}: "
                f"{error}",
                "that version of coddl, or another --state-dir",
            ) from error
