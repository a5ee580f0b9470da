"""Spans of time as users write them: 90s, 10m, 2h, 1d."""

import re
from typing import Final

from coddl.core.errors import UserError

UNITS_S: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def read_span(option: str, text: str) -> float:
    """Read `10m` as seconds; `option` is what the user has written it for."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if not found:
        raise UserError(
            f"{option} {text} can't be used",
            f'"{text}" is not a number followed by s, m, h or d',
            f"{option} 10m",
        )
    return float(found[1]) * UNITS_S[found[2]]
