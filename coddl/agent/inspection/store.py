"""Inspections in the state folder of a node, one file for each hardware."""

import hashlib
import json
import os
from pathlib import Path
from typing import Final

from coddl.core.errors import UserError
from coddl.core.speed.inspection import Inspection, read_inspection

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
