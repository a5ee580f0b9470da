"""What the server says about itself: for people in the terminal, or as JSON for collectors."""

import logging
import sys
from typing import Literal

import structlog
from structlog.typing import Processor


def set_up_logging(form: Literal["console", "json"]) -> None:
    """Write all log events to stderr in one format, those of libraries too."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Plain tracebacks: others show local variables, and what users put into their environment.
    plain = structlog.dev.plain_traceback
    last: list[Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if form == "json"
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    for chatty in ("uvicorn", "uvicorn.error", "alembic", "sse_starlette"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
