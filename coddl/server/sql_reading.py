"""A journal in a database, as it is read: by its server, and by others while that runs."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Engine, Select, func, select

from coddl.server.schema import history, idempotency, meta, record_jobs, records, snapshots
from coddl.server.store import (
    HistoryQuery,
    HistoryRow,
    StoredAnswer,
    StoredRecord,
    StoredSnapshot,
)


class SqlReader:
    """Reads the journal in a database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def lines(
        self, after: int, limit: int, job: int | None = None, *, without: Collection[str] = ()
    ) -> list[StoredRecord]:
        """Return the oldest lines after a number, less some kinds; of a job if one is named."""
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
        """Return the newest lines before a number, in order; of a job if one is named.

        Less some kinds, or of some kinds only.
        """
        query = select(records) if job is None else self._of_job(job)
        query = query.where(records.c.kind.not_in(without)) if without else query
        query = query.where(records.c.kind.in_(only)) if only else query
        query = query.where(records.c.seq < before) if before is not None else query
        with self._engine.connect() as connection:
            rows = connection.execute(query.order_by(records.c.seq.desc()).limit(max(limit, 0)))
            return [StoredRecord(*row) for row in rows][::-1]

    def first_seq(self) -> int:
        """Return the number of the oldest line that is left; 0 if there is none."""
        with self._engine.connect() as connection:
            return connection.execute(select(func.min(records.c.seq))).scalar() or 0

    def last_seq(self) -> int:
        """Return the number of the newest line; 0 if there is none."""
        with self._engine.connect() as connection:
            return connection.execute(select(func.max(records.c.seq))).scalar() or 0

    def answer(self, key: str) -> StoredAnswer | None:
        """Find what a key was answered."""
        with self._engine.connect() as connection:
            row = connection.execute(select(idempotency).where(idempotency.c.key == key)).first()
            return StoredAnswer(*row) if row else None

    def stored_snapshots(self) -> Iterator[StoredSnapshot]:
        """Return the stored snapshots, newest first."""
        with self._engine.connect() as connection:
            rows = connection.execute(select(snapshots).order_by(snapshots.c.seq.desc())).all()
        return (StoredSnapshot(*row) for row in rows)

    def history(self, wanted: HistoryQuery, limit: int) -> list[HistoryRow]:
        """Return jobs of the history, by falling number."""
        # The sum keeps SQLite from going through all numbers where the index of ends is what helps.
        number = history.c.job if wanted.since_s is None else history.c.job + 0
        query = select(history).order_by(number.desc()).limit(limit)
        with self._engine.connect() as connection:
            rows = connection.execute(query.where(*_wanted(wanted)))
            return [HistoryRow(*row) for row in rows]

    def notes(self) -> Mapping[str, str]:
        """Return what is noted about the journal as a whole."""
        with self._engine.connect() as connection:
            return {key: value for key, value in connection.execute(select(meta))}

    def close(self) -> None:
        """Close the database connection."""
        self._engine.dispose()

    @staticmethod
    def _of_job(job: int) -> Select[Any]:  # Any: a row of `records`
        joined = select(records).join(record_jobs, record_jobs.c.seq == records.c.seq)
        return joined.where(record_jobs.c.job == job)


def _wanted(wanted: HistoryQuery) -> Iterator[ColumnElement[bool]]:
    row = history.c
    if wanted.job is not None:
        yield row.job == wanted.job
    if wanted.before is not None:
        yield row.job < wanted.before
    if wanted.phases:
        yield row.phase.in_(wanted.phases)
    if wanted.user is not None:
        yield row.user == wanted.user
    if wanted.name is not None:
        yield row.name == wanted.name
    if wanted.since_s is not None:
        yield row.ended_s >= wanted.since_s
    if wanted.until_s is not None:
        yield row.submitted_s <= wanted.until_s
