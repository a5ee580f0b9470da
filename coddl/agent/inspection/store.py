"""Inspections in the state folder of a node, one file for each hardware."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from coddl.agent.inspection.hardware import words_for
from coddl.core.errors import UserError
from coddl.core.pool.records import Device
from coddl.core.speed.inspection import (
    ExchangeTime,
    Inspection,
    LinkClass,
    LinkSpeed,
    read_inspection,
)

FOLDER: Final = "inspections"


def stored_inspection(state_dir: Path, hardware: str) -> Inspection | None:
    """Give what is known of this hardware; None if it was never inspected.

    A file that can't be read counts as none: to measure again is the cure.
    """
    try:
        text = path_of(state_dir, hardware).read_text("utf-8", errors="replace")
        found = read_inspection(text)
    except (OSError, UserError):
        return None
    return found if found.hardware == hardware else None


def known_links(
    state_dir: Path, devices: Sequence[Device], cores: int
) -> dict[LinkClass, LinkSpeed]:
    """Give the links of a node with these devices; none if not inspected.

    Of the sweeps one time remains for each number of workers: it tells how many were tried.
    """
    known = stored_inspection(state_dir, words_for(devices, cores))
    links = known.links.items() if known is not None else ()
    return {name: replace(link, measured=_one_each(link.measured), sent=()) for name, link in links}


def _one_each(measured: Sequence[ExchangeTime]) -> tuple[ExchangeTime, ...]:
    return tuple({each.workers: each for each in sorted(measured)}.values())


def store_inspection(state_dir: Path, inspection: Inspection) -> Path:
    """Keep an inspection in place of an earlier one of the same hardware; tell where."""
    path = path_of(state_dir, inspection.hardware)
    write_inspection(path, inspection)
    return path


def write_inspection(path: Path, inspection: Inspection) -> None:
    """Write an inspection to a file, whole or not at all; raises UserError if that fails."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(inspection.as_data(), indent=2) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise UserError(
            f"the inspection can't be written to {path}",
            f"{error.filename}: {error.strerror}",
            "another file, or another --state-dir",
        ) from None


def path_of(state_dir: Path, hardware: str) -> Path:
    """Name the file for some hardware."""
    key = hashlib.blake2b(hardware.encode(), digest_size=8).hexdigest()
    return state_dir / FOLDER / f"{key}.json"
