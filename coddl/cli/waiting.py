"""Wait for a job of the pool, through absences of its server; and how a wait ends."""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from coddl.core.errors import UserError

if TYPE_CHECKING:
    from coddl.api.client import Client

FAILED: Final = 100  # exit codes, as SkyPilot has them
NOT_FINISHED: Final = 101
CANCELLED: Final = 103
LEFT_EARLY: Final = 104
OVER: Final = {"SUCCEEDED": 0, "FAILED": FAILED, "CANCELLED": CANCELLED}
LOOK_S: Final = (0.1, 0.2, 0.5, 1.0)  # between two looks; the last one again and again
SLOW_S: Final = 1.0  # after which the command prints what it waits for
AWAY_S: Final = 120.0  # a server that was there is waited for so long

Answer = Mapping[str, Any]  # Any: what JSON can hold


class NotSaved(UserError):
    """A job can't be suspended or stopped, because its state can't be saved."""

    exit_code = 1


class TooLate(UserError):
    """A wait has timed out."""

    exit_code = 124


def exit_code_of(job: Answer) -> int:
    """Return the exit code that tells how a job ended."""
    code = OVER.get(job["state"], NOT_FINISHED)
    return LEFT_EARLY if code == 0 and job.get("left_early") else code


def check_saved(job: Answer) -> None:
    """Raise if a job that is about to leave has not ended, as its state can't be saved."""
    if job["state"] == "STOPPING" and (why := job.get("unsaved")):
        does = "keeps training" if job["gpus"] else "stays in memory"
        goes_on = f" and {does}" if job.get("tier", "elastic") == "elastic" else ""
        raise NotSaved(
            f"{job['name']} (job {job['id']}) is not suspended{goes_on}",
            f"its state can't be saved: {why['what']}: {why['because']}",
            f"{why['try']}, then it stops by itself; or coddl cancel, without saving",
        )


def has_come(job: Answer, state: str) -> bool:
    """Return whether a job has come to a state; "" stands for any end."""
    if state in ("", job["state"]):
        return job["state"] in OVER or bool(state)
    # States may pass between two looks.
    return state in ("STARTING", "RUNNING") and job["state"] in OVER and bool(job["started_s"])


def wait_for(
    client: "Client",
    name: str,
    state: str = "",
    *,
    within_s: float | None = None,
    tell: Callable[[Answer], None] | None = None,
    tell_slow: Callable[[Answer], None] | None = None,
    check: Callable[[Answer], None] = lambda _job: None,
) -> Answer:
    """Look at a job until it is in a state, or over; give it as it is then.

    `tell` is called with the job whenever its state or its share has changed, `tell_slow` once if
    this takes long, `check` at each look.
    """
    from coddl.api.client import Unreachable, in_path

    begin_s = seen_s = time.monotonic()
    looks, last = 0, None
    while True:
        try:
            job: Answer = client.get(f"/jobs/{in_path(name)}")
        except Unreachable:
            if last is None or time.monotonic() - seen_s > AWAY_S:
                raise
        else:
            seen_s = time.monotonic()
            name = str(job["id"])  # a newer job may take the name
            if tell is not None and last != (job["state"], job["gpus"]):
                tell(job)
            last = (job["state"], job["gpus"])
            if has_come(job, state) or job["state"] in OVER:
                return job
            check(job)
            if tell_slow is not None and time.monotonic() - begin_s > SLOW_S:
                tell_slow(job)
                tell_slow = None
        if within_s is not None and time.monotonic() - begin_s > within_s:
            raise TooLate(
                f"job {name} is not {state or 'finished'} yet",
                f"the --timeout of {within_s:g} s has passed",
                f"coddl explain {name}",
            )
        time.sleep(LOOK_S[min(looks, len(LOOK_S) - 1)])
        looks += 1
