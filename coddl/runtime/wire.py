"""JSON lines: how worker, fork server, supervisor and command line talk to each other."""

import json
from collections.abc import Iterator
from typing import Any, Final

Message = dict[str, Any]  # Any: what JSON can hold; `do` or `is` names the kind


def encoded(message: Message) -> bytes:
    """Give the line that carries the message."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


LINE_BYTES_MAX: Final = 64 << 20


class Lines:
    """Cuts a stream of bytes into messages, whatever pieces it comes in."""

    def __init__(self, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._rest = b""
        self.line_bytes_max = line_bytes_max

    def feed(self, data: bytes) -> Iterator[Message]:
        """Give the messages that are complete now; raises ValueError at what is none."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > self.line_bytes_max:
            raise ValueError("a line without an end")
        for line in lines:
            if line:
                try:
                    message = json.loads(line)
                except RecursionError:
                    raise ValueError("it is too deep to be a message") from None
                if not isinstance(message, dict):
                    raise ValueError(f"{message!r} is no message")
                yield message
