"""The journal: records and the jobs they concern, snapshots, answers given, notes."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_number = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "records",
        sa.Column("seq", _number, primary_key=True, autoincrement=False),
        sa.Column("at_s", sa.Float(53), nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "record_jobs",
        sa.Column("job", _number, primary_key=True, autoincrement=False),
        sa.Column("seq", _number, primary_key=True, autoincrement=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "snapshots",
        sa.Column("seq", _number, primary_key=True, autoincrement=False),
        sa.Column("schema", sa.Integer, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "idempotency",
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("request", sa.String(64), nullable=False),
        sa.Column("response", sa.Text, nullable=False),
        sa.Column("at_s", sa.Float(53), nullable=False),
    )
    op.create_index("idempotency_at_s", "idempotency", ["at_s"])
    op.create_table(
        "meta",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
