"""The tables of a journal. What they were before, and how they came to this: `migrations`."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

TABLES: Final = MetaData()
_Number = BigInteger().with_variant(Integer, "sqlite")  # there, only INTEGER is the row's own key

records: Final = Table(
    "records",
    TABLES,
    Column("seq", _Number, primary_key=True, autoincrement=False),
    Column("at_s", Float(53), nullable=False),
    Column("kind", String(64), nullable=False),
    Column("body", Text, nullable=False),
)
record_jobs: Final = Table(
    "record_jobs",
    TABLES,
    Column("job", _Number, primary_key=True, autoincrement=False),
    Column("seq", _Number, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
)
snapshots: Final = Table(
    "snapshots",
    TABLES,
    Column("seq", _Number, primary_key=True, autoincrement=False),
    Column("schema", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
idempotency: Final = Table(
    "idempotency",
    TABLES,
    Column("key", String(255), primary_key=True),
    Column("request", String(64), nullable=False),
    Column("response", Text, nullable=False),
    Column("at_s", Float(53), nullable=False),
    Index("idempotency_at_s", "at_s"),
)
history: Final = Table(
    "history",
    TABLES,
    Column("job", _Number, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("program", Text, nullable=False),
    Column("signature", Text, nullable=False),
    Column("phase", String(16), nullable=False),
    Column("submitted_s", Float(53), nullable=False),
    Column("started_s", Float(53), nullable=True),
    Column("ended_s", Float(53), nullable=False),
    Column("iterations", _Number, nullable=False),
    Column("gpu_s", Float(53), nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("history_name", "name", "job"),
    Index("history_user", "user", "job"),
    Index("history_ended_s", "ended_s"),
)
meta: Final = Table(
    "meta",
    TABLES,
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)
