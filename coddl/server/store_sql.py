"""A journal in a database: SQLite in WAL mode by default, each batch on disk before it counts."""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    Select,
    create_engine,
    delete,
    event,
    func,
    insert,
    select,
)
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

from coddl.server.errors import JournalFull, JournalUnreadable
from coddl.server.schema import idempotency, meta, record_jobs, records, snapshots
from coddl.server.store import RecordJob, StoredAnswer, StoredRecord, StoredSnapshot

BUSY_S: Final = 5.0  # to wait for whoever reads or copies the file at that moment
PRAGMAS: Final = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",  # a commit that was answered survives a power cut
    f"PRAGMA busy_timeout={int(BUSY_S * 1000)}",
)


def sqlite_url(path: Path) -> URL:
    """Give the URL of a journal in a file."""
    return URL.create("sqlite", database=str(path))


class SqlStore:
    """Keeps a journal in the database that a URL names, with its tables brought up to date."""

    def __init__(self, url: str | URL) -> None:
        self._engine = create_engine(url)
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

    def lines(
        self, after: int, limit: int, job: int | None = None, *, without: Collection[str] = ()
    ) -> list[StoredRecord]:
        """Give the oldest lines after a number, less some kinds; of a job if one is named."""
        query = select(records).where(records.c.seq > after)
        if job is not None:
            query = self._of_job(job).where(record_jobs.c.seq > after)
        query = query.where(records.c.kind.not_in(without)) if without else query
        with self._engine.connect() as connection:
            rows = connection.execute(query.order_by(records.c.seq).limit(limit))
            return [StoredRecord(*row) for row in rows]

    def newest(
        self,
        limit: int,
        job: int | None = None,
        *,
        without: Collection[str] = (),
        only: Collection[str] = (),
        before: int | None = None,
    ) -> list[StoredRecord]:
        """Give the newest lines before a number, in order; of a job if one is named.

        Less some kinds, or of some kinds only.
        """
        query = select(records) if job is None else self._of_job(job)
        query = query.where(records.c.kind.not_in(without)) if without else query
        query = query.where(records.c.kind.in_(only)) if only else query
        query = query.where(records.c.seq < before) if before is not None else query
        with self._engine.connect() as connection:
            rows = connection.execute(query.order_by(records.c.seq.desc()).limit(max(limit, 0)))
            return [StoredRecord(*row) for row in rows][::-1]

    def last_seq(self) -> int:
        """Give the number of the newest line; 0 if there is none."""
        with self._engine.connect() as connection:
            return connection.execute(select(func.max(records.c.seq))).scalar() or 0

    def answer(self, key: str) -> StoredAnswer | None:
        """Find what a key was answered."""
        with self._engine.connect() as connection:
            row = connection.execute(select(idempotency).where(idempotency.c.key == key)).first()
            return StoredAnswer(*row) if row else None

    def forget_answers(self, before_s: float) -> None:
        """Drop the answers that are older."""
        with self._writing() as connection:
            connection.execute(delete(idempotency).where(idempotency.c.at_s < before_s))

    def stored_snapshots(self) -> Iterator[StoredSnapshot]:
        """Give the stored snapshots, newest first."""
        with self._engine.connect() as connection:
            rows = connection.execute(select(snapshots).order_by(snapshots.c.seq.desc())).all()
        return (StoredSnapshot(*row) for row in rows)

    def save_snapshot(self, snapshot: StoredSnapshot) -> None:
        """Store a snapshot, and drop all but the one before; raises JournalFull."""
        with self._writing() as connection:
            connection.execute(delete(snapshots).where(snapshots.c.seq == snapshot.seq))
            older = connection.execute(select(func.max(snapshots.c.seq))).scalar() or 0
            connection.execute(delete(snapshots).where(snapshots.c.seq < older))
            connection.execute(insert(snapshots), snapshot._asdict())

    def notes(self) -> Mapping[str, str]:
        """Give what is noted about the journal as a whole."""
        with self._engine.connect() as connection:
            return {key: value for key, value in connection.execute(select(meta))}

    def note(self, notes: Mapping[str, str]) -> None:
        """Note something about the journal as a whole; raises JournalFull."""
        with self._writing() as connection:
            connection.execute(delete(meta).where(meta.c.key.in_(list(notes))))
            rows = [{"key": key, "value": value} for key, value in notes.items()]
            connection.execute(insert(meta), rows)

    def close(self) -> None:
        """Let go of it."""
        self._engine.dispose()

    @staticmethod
    def _of_job(job: int) -> Select[Any]:  # Any: a row of `records`
        joined = select(records).join(record_jobs, record_jobs.c.seq == records.c.seq)
        return joined.where(record_jobs.c.job == job)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        """Open a transaction that is on disk at its end, or was never there."""
        try:
            with self._engine.begin() as connection:
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
