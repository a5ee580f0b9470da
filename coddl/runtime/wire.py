"""JSON lines: how worker, zygote, supervisor and command line talk to each other."""

import json
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]  # Any: what JSON can hold; `do` or `is` names the kind


def encoded(message: Message) -> bytes:
    """Give the line that carries the message."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class Lines:
    """Cuts a stream of bytes into messages, whatever pieces it comes in."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Message]:
        """Give the messages that are complete now."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line:
                yield json.loads(line)
