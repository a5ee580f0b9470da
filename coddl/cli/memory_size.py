"""Amounts of memory as people write them."""

import re
from typing import Final

from coddl.core.errors import UserError

UNITS: Final = {
    "": 1,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}


def read_memory(option: str, text: str) -> int | None:
    """Read `64GiB`, `500 MB` or `0`; None if nothing was given. Raises UserError."""
    if not text:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)", text)
    if found is None or found[2] not in UNITS or (not found[2] and float(found[1])):
        because = f'"{text}" is no amount of memory: a number and one of {", ".join(UNITS)[2:]}'
        raise UserError(f"{option} {text} cannot be used", because, f"{option} 64GiB")
    return int(float(found[1]) * UNITS[found[2]])
