"""What Alembic runs: the migrations that are missing, in one transaction, on the store's line."""

from alembic import context
from sqlalchemy import Connection

from coddl.server.schema import TABLES


def migrate(connection: Connection) -> None:
    """Bring the tables up to date."""
    context.configure(connection=connection, target_metadata=TABLES, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()


migrate(context.config.attributes["connection"])
