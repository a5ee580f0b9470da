"""Stands between the agent and a command: a process that ends with nothing left behind.

    python -I command_guard.py STATUS_FD

Standard input brings one line of JSON (argv, cwd, env, cpus), then words, one a line: the
number of a signal for the command's process group. STATUS_FD is told `started`, `refused` or
`exited` as JSON lines. The end of standard input means that the agent is gone.

Whatever the command starts and abandons becomes our child (we are a subreaper). So when we end,
every process of the command has ended, seen by us. We are small, and have one thread: the kernel
ties the command's life to ours safely. Standard library alone.
"""

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
REFUSED = 127  # as a shell says it of a command it can't start


def main() -> int:
    """Run the command, and see the last of it."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake_out, wake_in = os.pipe()
    for end in (wake_out, wake_in):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)
    signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
    status = int(sys.argv[1])
    os.set_inheritable(status, False)
    words = _InputLines()
    request = words.first()
    if request is None:
        return 1
    command = _started(json.loads(request), libc, status)
    if command is None:
        return REFUSED
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(wake_out, selectors.EVENT_READ)
    for line in words.left():  # they came along with the request
        _signal(command.pid, int(line))
    while _code_of(command) is None:
        for key, _ in selector.select():
            if key.fd == wake_out:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_out, 4096)
            elif not _obey(words, command.pid):
                selector.unregister(0)
    code = _code_of(command)
    _tell(status, {"is": "exited", "code": code})
    _end_family()
    return 0


class _InputLines:
    """Lines of standard input."""

    def __init__(self) -> None:
        self._rest = b""

    def first(self) -> bytes | None:
        """Wait for the first line; None if it never comes."""
        while b"\n" not in self._rest:
            data = os.read(0, 1 << 16)
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def left(self) -> list[bytes]:
        """Give the lines that have been read and not been given."""
        *lines, self._rest = self._rest.split(b"\n")
        return lines

    def more(self) -> list[bytes] | None:
        """Wait for more; give the lines that have come, or None if there will be none."""
        data = os.read(0, 1 << 16)
        self._rest += data
        return self.left() if data else None


def _started(
    request: dict[str, Any], libc: ctypes.CDLL, status: int
) -> "subprocess.Popen[bytes] | None":
    parent = os.getpid()

    def prepare() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        if request["cpus"]:
            with contextlib.suppress(OSError):  # not ours to use: the system shares what there is
                os.sched_setaffinity(0, request["cpus"])

    try:
        command = subprocess.Popen(
            request["argv"],
            cwd=request["cwd"],
            env=request["env"],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=prepare,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        because = getattr(error, "strerror", None) or str(error)
        _tell(status, {"is": "refused", "because": because})
        return None
    _tell(status, {"is": "started", "pid": command.pid})
    # Its output ends when its own processes do, and not with us.
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    return command


def _obey(words: _InputLines, group: int) -> bool:
    """Do what the agent says; tell whether it may say more."""
    lines = words.more()
    if lines is None:
        _signal(group, signal.SIGKILL)
        return False
    for line in lines:
        _signal(group, int(line))
    return True


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _code_of(command: "subprocess.Popen[bytes]") -> int | None:
    """Reap the processes that have ended; give the command's exit code once it has."""
    code = command.poll()
    if code is None:
        _reap_others(command.pid)
    return code


def _reap_others(command: int) -> None:
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, options)) is not None:
            if ended.si_pid == command:
                return  # poll() is to see it
            os.waitpid(ended.si_pid, 0)


def _end_family() -> None:
    """Kill all that is left, however deep, until nothing is."""
    while True:
        for pid in _below(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def _below(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
                parents.setdefault(parent, []).append(int(name))
    found: list[int] = []
    look = [pid]
    while look:
        below = parents.get(look.pop(), [])
        found += below
        look += below
    return found


def _tell(status: int, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the agent is gone: standard input will say so
        os.write(status, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
