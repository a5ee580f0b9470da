"""Keeps one agent running for a process of an engine, and ends it with that process.

A process of its own, which leaves its parent's process group at once: engines kill the children of
what they end, and an agent that is killed saves no jobs. It is connected to its starter only
through a pipe. (The signal of a dying parent would come once per thread of the starter; an agent
takes the second one as impatience.)

    stdin    one line: what to start (`GuardOrder`); then lines with a number of seconds:
             `S`          end the agent within that time
             `leave S`    the machine goes away in that time: the agent is given notice, and ends
                          when its jobs have moved, or are saved; what is left then is killed
             The end of the input says that the starter is dead.
    stdout   one line when the agent was started (`AgentStarted`), one when nothing is left of it
             (`AgentEnded`)

Nothing is left in the folder at the end: neither the token nor logs. What the agent said last is
in `AgentEnded`.
"""

import contextlib
import json
import math
import os
import select
import shutil
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from coddl.agent.lease_clock import now_s
from coddl.agent.leave_notice import is_nearer, write_notice
from coddl.agent.orphans import OrphanProcesses, Process, process
from coddl.engines.engine import CA_FILE
from coddl.engines.processes import Child, rotate

ABANDONED_S: Final = 60.0
TICK_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class GuardOrder:
    """What to start, and where its files are."""

    words: tuple[str, ...]  # the command
    token: str
    state_dir: str  # is made, and removed at the end
    agent_dir: str  # in it: the agent's own
    ca: str = ""  # certificates for `CA_FILE`
    abandoned_s: float = ABANDONED_S  # that jobs have to be saved when the starter is dead

    @property
    def token_file(self) -> Path:
        """Where the agent finds the token."""
        return Path(self.state_dir) / "token"


@dataclass(frozen=True, slots=True)
class AgentStarted:
    """The agent's process runs."""

    pid: int
    niceness: int  # that could not be taken back


@dataclass(frozen=True, slots=True)
class AgentEnded:
    """The agent has ended, and so have the processes of its jobs."""

    code: int
    said: str


class AgentGuard:
    """Runs one agent until it ends, or must end."""

    def __init__(self, order: GuardOrder) -> None:
        self._order = order
        state_dir = Path(order.state_dir)
        state_dir.mkdir(mode=0o700)  # fails if there is one: it would be another's
        descriptor = os.open(order.token_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with open(descriptor, "w") as file:
            file.write(order.token)
        if order.ca:
            (state_dir / CA_FILE).write_text(order.ca)
        self._agent = Child("agent", list(order.words), state_dir / "agent.log")
        self._is_told = False  # to end
        self._leaves_at_s: float | None = None  # by the clock of leases
        self._end_at_s = math.inf

    def start(self) -> AgentStarted:
        """Start it, at the usual niceness if that is allowed."""
        # The agent inherits it. Workers of Ray, for one, run at niceness 15.
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        pid = self._agent.start(time.monotonic())
        return AgentStarted(pid, os.getpriority(os.PRIO_PROCESS, 0))

    def run(self, orders: int) -> AgentEnded:
        """Wait until it has ended, as the file with that descriptor says."""
        input_ = open(orders, "rb", buffering=0, closefd=False)  # noqa: SIM115  # stays open
        heard = [input_]
        while (code := self._agent.ended(time.monotonic())) is None:
            if select.select(heard, [], [], TICK_S)[0]:
                line = input_.readline()
                heard = heard if line else []
                self._obey(line.decode().split())
            if time.monotonic() > self._end_at_s:
                self._agent.signal(signal.SIGKILL)
            rotate(self._agent.log)
        error = self._agent.words_of_end()
        said = f"{error.what}: {error.because}" if code else ""
        clear(self._order)
        return AgentEnded(code, said)

    def _obey(self, words: list[str]) -> None:
        match words:
            case ["leave", within_s]:
                self._give_notice(float(within_s))
            case [within_s]:
                self._end(float(within_s))
            case _:
                self._end(self._order.abandoned_s)

    def _give_notice(self, within_s: float) -> None:
        """Notify the agent of when the machine goes away, unless it knows that already."""
        at_s = now_s() + within_s
        self._kill_in(within_s)
        if self._is_told or not is_nearer(at_s, self._leaves_at_s):
            return
        self._leaves_at_s = at_s
        try:
            write_notice(Path(self._order.agent_dir), at_s)
        except OSError:
            self._end(within_s)  # the deadline can't be delivered, so the agent saves its jobs now
        else:
            self._agent.signal(signal.SIGUSR1)

    def _end(self, within_s: float) -> None:
        if not self._is_told:
            self._is_told = True
            self._agent.signal(signal.SIGTERM)  # once: a second one would kill its jobs
        self._kill_in(within_s)

    def _kill_in(self, within_s: float) -> None:
        self._end_at_s = min(self._end_at_s, time.monotonic() + within_s)


def clear(order: GuardOrder) -> None:
    """End what is left of an agent's jobs, and remove its files."""
    OrphanProcesses(Path(order.agent_dir)).end()
    shutil.rmtree(order.state_dir, ignore_errors=True)


def end_unguarded(order: GuardOrder, agent: Process) -> None:
    """End an agent whose guard was killed; the kernel has signalled it."""
    until_s = time.monotonic() + order.abandoned_s
    while (found := process(agent.pid)) is not None and found.name == agent.name:
        if found.is_zombie:
            break
        if time.monotonic() > until_s:
            agent.kill()
        time.sleep(TICK_S)
    clear(order)


def main() -> int:
    """Leave the starter's family, then serve it."""
    if os.fork():
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: None)  # it lives as long as its agent
    with open(0, "rb", buffering=0, closefd=False) as input_:
        guard = AgentGuard(GuardOrder(**json.loads(input_.readline())))
    _tell(guard.start())
    _tell(guard.run(0))
    return 0


def _tell(about: AgentStarted | AgentEnded) -> None:
    with contextlib.suppress(BrokenPipeError):  # the starter is dead
        sys.stdout.write(json.dumps(asdict(about)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
