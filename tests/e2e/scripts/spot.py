"""Sits down on the slots that this process was given, and says so if somebody sits there.

The kernel keeps a lock for each slot, from here to the end of the process, however that comes.
"""

import fcntl
import json
import os
import sys
from pathlib import Path
from typing import IO

seats: list[IO[str]] = []  # held for as long as we live


def sit_down() -> None:
    """Take the locks of our slots; write down who we are, and whom we have met."""
    folder = Path(os.environ["E2E_SPOTS"])
    slots = [int(slot) for slot in os.environ["CODDL_SLOT"].split(",")]
    me = {
        "pid": os.getpid(),
        "started": Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19].decode(),
        "job": int(os.environ["CODDL_JOB_ID"]),
        "attempt": int(os.environ["CODDL_ATTEMPT"]),
        "slots": slots,
    }
    _append(folder / "processes", me)
    for slot in slots:
        seat = (folder / f"slot-{slot}").open("a+")
        try:
            fcntl.flock(seat, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            seat.seek(0)
            met = seat.read()
            if not _is_parked(json.loads(met)["pid"]):
                _append(folder / "meetings", {"slot": slot, "who": me, "met": met})
            continue
        seat.truncate(0)
        seat.write(json.dumps(me))
        seat.flush()
        seats.append(seat)


def _is_parked(pid: int) -> bool:
    """Tell whether a process waits without its slot; who looks all the time sees it come back."""
    try:
        return Path(f"/proc/{pid}/comm").read_text() == "coddl-parked\n"
    except OSError:
        return False


def _append(path: Path, line: object) -> None:
    """Add a line, whole, whoever else does."""
    handle = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.write(handle, json.dumps(line).encode() + b"\n")
    os.close(handle)


if "E2E_SPOTS" in os.environ and "CODDL_SLOT" in os.environ:
    sit_down()
else:
    print("nobody has given us a slot: a lone run", file=sys.stderr)
