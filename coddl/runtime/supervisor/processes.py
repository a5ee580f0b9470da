"""Tells whether a process that is no child of ours is really gone."""

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class ProcessHandle:
    """A process: its number may be given to another one, but not with the same start."""

    pid: int
    start_ticks: int | None  # None: it was gone before we could look

    @classmethod
    def of(cls, pid: int) -> Self:
        """Take down which process has this number now."""
        found = _found(pid)
        return cls(pid, None if found is None else found[1])

    @property
    def lives(self) -> bool:
        """Tell whether it runs; one that only waits for its parent's attention does not."""
        found = _found(self.pid)
        return found is not None and found == ("alive", self.start_ticks)

    def kill_group(self) -> None:
        """Kill it and whatever it has started, if it leads a group; its own may outlive it."""
        found = _found(self.pid)
        if found is None or found[1] == self.start_ticks:  # else its number is another's now
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


def _found(pid: int) -> tuple[str, int] | None:
    """Tell whether a process is alive or dead, and when it was started; None: there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "dead" if fields[0] in "ZX" else "alive", int(fields[19])
