"""Slows a training down, so that there is time to disturb it, until there is a file "hurry"."""

import os
import time
from pathlib import Path

from coddl.runtime.worker import prepare

REST_S_MAX = 4.0
LOOK_EVERY_S = 0.05


def rest(seconds: float) -> None:
    """Wait after a pass, unless nothing more is going to be done to this training.

    In its second half longer and longer: it must not end before a test is done with it, though
    machines that are shared stand still for seconds.
    """
    until_s = time.monotonic() + min(seconds * _slowness() ** 2, max(seconds, REST_S_MAX))
    while (left_s := until_s - time.monotonic()) > 0 and not Path("hurry").exists():
        time.sleep(min(left_s, LOOK_EVERY_S))


def _slowness() -> float:
    """Give 1 in the first half of a training; after it, half the steps for each that is left.

    Always 1 if nobody is going to hurry it.
    """
    session = prepare._session
    if session is None or not session.steps or "TO_BE_HURRIED" not in os.environ:
        return 1.0
    return max(1.0, session.steps / 2 / max(1, session.steps - session.step))
