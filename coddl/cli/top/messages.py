"""Messages from other threads to the program behind `coddl top`."""

import contextlib

from textual.message import Message
from textual.message_pump import MessagePump

from coddl.cli.poolview import Answer
from coddl.cli.top.feed import JobLook, PoolLook
from coddl.core.errors import UserError


class PoolTold(Message):
    """The server's answer about the pool, or the error."""

    def __init__(self, found: PoolLook | UserError) -> None:
        super().__init__()
        self.found = found


class JobTold(Message):
    """The server's answer about the job that is shown, or the error."""

    def __init__(self, found: JobLook | UserError) -> None:
        super().__init__()
        self.found = found


class JobChanged(Message):
    """The server has changed a job, or refused to."""

    def __init__(self, found: Answer | UserError) -> None:
        super().__init__()
        self.found = found


def tell(target: MessagePump, message: Message) -> None:
    """Hand a message from another thread to the program; nothing if that has ended."""
    with contextlib.suppress(RuntimeError):  # its loop is closed
        target.post_message(message)
