"""The history: jobs that have ended and have left the server's memory."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_number = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "history",
        sa.Column("job", _number, primary_key=True, autoincrement=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("user", sa.Text, nullable=False),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("program", sa.Text, nullable=False),
        sa.Column("signature", sa.Text, nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("submitted_s", sa.Float(53), nullable=False),
        sa.Column("started_s", sa.Float(53), nullable=True),
        sa.Column("ended_s", sa.Float(53), nullable=False),
        sa.Column("iterations", _number, nullable=False),
        sa.Column("gpu_s", sa.Float(53), nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_index("history_name", "history", ["name", "job"])
    op.create_index("history_user", "history", ["user", "job"])
    op.create_index("history_ended_s", "history", ["ended_s"])
