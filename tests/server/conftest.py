"""A live pool for a test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.server.harness import LivePool


@pytest.fixture(autouse=True, scope="session")
def plain_logs() -> Iterator[None]:
    """Show what servers log when a test fails, without pages of local variables."""
    plain = structlog.dev.ConsoleRenderer(
        colors=False, exception_formatter=structlog.dev.plain_traceback
    )
    structlog.configure(processors=[structlog.processors.add_log_level, plain])
    yield
    structlog.reset_defaults()


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LivePool]:
    with LivePool(tmp_path) as pool:
        yield pool
