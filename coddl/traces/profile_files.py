"""Profiles of trainings and inspections of links, as files."""

import json
from pathlib import Path
from typing import Any

from coddl.core.errors import UserError
from coddl.core.speed.inspection import Inspection
from coddl.core.speed.profile import TrainingProfile
from coddl.traces.text_file import read_text


def read_profile(path: str | Path) -> TrainingProfile:
    """Read what `coddl run --profile` writes; raises UserError."""
    what = f"profile {path} cannot be read"
    try:
        return TrainingProfile.from_data(_json(path, what))
    except UserError as error:
        raise error if error.what == what else UserError(what, error.because, error.try_) from None


def read_links(path: str | Path) -> Inspection:
    """Read what `coddl inspect --save` writes; raises UserError."""
    what = f"inspection {path} cannot be read"
    try:
        return Inspection.from_data(_json(path, what))
    except UserError as error:
        raise error if error.what == what else UserError(what, error.because, error.try_) from None


def _json(path: str | Path, what: str) -> Any:  # Any: whatever a file holds
    text = read_text(Path(path), what)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(what, f"it is not JSON: {error}", "a file written as JSON") from None
