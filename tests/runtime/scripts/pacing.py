"""Slows a training down, so that there is time to disturb it, until there is a file "hurry"."""

import time
from pathlib import Path


def rest(seconds: float) -> None:
    """Wait after a pass, unless nothing more is going to be done to this training."""
    if not Path("hurry").exists():
        time.sleep(seconds)
