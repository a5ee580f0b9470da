"""Server-sent events, as a stream of the server carries them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event of a stream."""

    kind: str
    data: Any  # Any: what JSON can hold


def events_of(lines: Iterator[str]) -> Iterator[tuple[str, StreamEvent]]:
    """Read server-sent events: the id and what was said."""
    id_, kind, data = "", "message", list[str]()
    for line in lines:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match field:
            case "id":
                id_ = value
            case "event":
                kind = value
            case "data":
                data.append(value)
            case "" if not line:
                if data or kind == "end":
                    yield id_, StreamEvent(kind, _decoded("\n".join(data)))
                id_, kind, data = "", "message", []
            case _:
                pass  # a comment, that keeps the line alive


def _decoded(data: str) -> Any:  # Any: the same
    try:
        return json.loads(data)
    except ValueError:
        return data  # plain text
