"""What a pilot job does: runs the agent of a node, and tells it what Slurm is about to do.

    python -m coddl.engines.slurm.pilot FOLDER      as a job of Slurm, in its first process

    SIGUSR2     the pool gives the node back: the agent saves its jobs and ends
    SIGUSR1     the time limit is near, as `sbatch --signal` was told
    SIGTERM     the limit, a preemption, `scancel`: SIGKILL follows after the cluster's `KillWait`

In the last two cases the agent tells the pool by when it must be gone, and the pool has its jobs
move. Slurm may send a signal to all processes of a job, though only this one can do something with
it; the agent is not among them, because its guard has left this process's family. Processes that
Slurm tracks by control group stay in the group all the same. When Slurm kills this process, the
guard kills the agent.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from coddl.agent.devices import NONE, VISIBLE
from coddl.agent.orphans import Process, process
from coddl.core.errors import UserError
from coddl.engines.agent_guard import AgentEnded, GuardOrder, end_unguarded
from coddl.engines.agent_order import GUARD, order_of
from coddl.engines.engine import AgentLaunch
from coddl.engines.processes import LEAVE_S

SHELL: Final = Path(__file__).with_name("pilot.sh")
ORDER: Final = "pilot.json"
MARGIN_S: Final = 3.0  # before Slurm kills what is left
# What Slurm sets for jobs. Libraries that find it take a training for one of Slurm's own.
OF_SLURM: Final = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "PMI_", "PMIX_")
GRANTED: Final = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", VISIBLE)


@dataclass(frozen=True, slots=True)
class PilotOrder:
    """What the pilot jobs of a pool shall do."""

    launch: AgentLaunch
    gpus: int
    notice_s: float  # that remain after SIGUSR1
    kill_wait_s: float  # and after SIGTERM


def write_order(folder: Path, order: PilotOrder) -> None:
    """Leave word for pilot jobs, with the token; nobody else can read it. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    half = folder / f".{ORDER}.{socket.gethostname()}.{os.getpid()}"
    half.unlink(missing_ok=True)
    descriptor = os.open(half, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with open(descriptor, "w") as file:
        json.dump(asdict(order), file)
        file.flush()
        os.fsync(file.fileno())
    half.replace(folder / ORDER)


def read_order(folder: Path) -> PilotOrder:
    """Read what a pilot job shall do. Raises OSError, ValueError."""
    found = json.loads((folder / ORDER).read_text("utf-8"))
    return PilotOrder(**{**found, "launch": AgentLaunch(**found["launch"])})


def gpu_ids(env: Mapping[str, str], order: PilotOrder) -> tuple[str, ...]:
    """Give the ids of the GPUs that Slurm has granted; raises UserError if they are others."""
    # An agent uses those of CUDA_VISIBLE_DEVICES, and without it all that the machine has.
    names = GRANTED if order.launch.slots is not None else (VISIBLE,)
    granted = next((env[name] for name in names if env.get(name, "") not in NONE), "")
    found = tuple(_numbers(granted))
    if len(found) == order.gpus:
        return found
    raise UserError(
        f"Slurm has not granted {order.gpus} GPUs",
        f"{VISIBLE} is {env.get(VISIBLE) or 'empty'}",
        "File= for each GPU in gres.conf of the cluster; the number by --gpus-per-node alone",
    )


def _numbers(text: str) -> list[str]:
    """Read 0,2-3 as 0 2 3; ids that are no numbers stay as they are."""
    found = []
    for word in filter(None, text.split(",")):
        first, dash, last = word.partition("-")
        if dash and first.isdecimal() and last.isdecimal():
            found += [str(number) for number in range(int(first), int(last) + 1)]
        else:
            found.append(word)
    return found


def agent_env(env: Mapping[str, str]) -> dict[str, str]:
    """Give what the agent and its jobs may find, less what Slurm and the pool's owner have set."""
    kept = {n: v for n, v in env.items() if not n.startswith((*OF_SLURM, "CODDL_"))}
    return kept | {name: env[name] for name in ("SLURM_CONF",) if name in env}


class Pilot:
    """Runs an agent until it ends, or Slurm ends this process."""

    def __init__(self, order: PilotOrder, guard: GuardOrder) -> None:
        self._order = order
        self._guard_order = guard
        self._is_told = False  # to end, or that the node leaves
        self._guard = subprocess.Popen(
            GUARD,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=agent_env(os.environ),
            start_new_session=True,
            text=True,
        )
        self._tell(json.dumps(asdict(guard)))
        words = {
            signal.SIGUSR2: f"{LEAVE_S}",
            signal.SIGUSR1: f"leave {order.notice_s}",
            signal.SIGTERM: f"leave {max(1.0, order.kill_wait_s - MARGIN_S)}",
        }
        for number in words:
            signal.signal(number, lambda each, _frame: self._on_signal(words[signal.Signals(each)]))

    def run(self) -> int:
        """Wait for the end of the agent, and of all that it has started."""
        assert self._guard.stdout is not None
        ended: AgentEnded | None = None
        agent: Process | None = None
        for line in self._guard.stdout:
            about: dict[str, Any] = json.loads(line)  # Any: JSON
            if "pid" in about:
                agent = process(about["pid"])
            else:
                ended = AgentEnded(**about)
        if ended is None:
            if agent is not None:
                end_unguarded(self._guard_order, agent)
            ended = AgentEnded(-1, "the process that guards it was killed")
        if ended.code and not self._is_told:
            _say(f"the agent ended with code {ended.code}: {ended.said}")
        # One that was told to end before it had started has no other way than to die of it.
        return 1 if ended.code and not self._is_told else 0

    def _on_signal(self, line: str) -> None:
        self._is_told = True
        self._tell(line)

    def _tell(self, line: str) -> None:
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and `run` knows
            os.write(self._guard.stdin.fileno(), f"{line}\n".encode())  # also amid another signal


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201  # Slurm's log of the job


def main(folder: Path) -> int:
    """Run the agent of this job's node."""
    env = os.environ
    if int(env.get("SLURM_RESTART_COUNT", "0")):
        _say("not started again: the pool has asked for another node in its place")
        return 0
    try:
        order = read_order(folder)
        ids = gpu_ids(env, order)
    except (OSError, ValueError) as error:
        _say(f"what to do can't be read: {error}")
        return 1
    except UserError as error:
        _say(f"{error.what}: {error.because}; try {error.try_}")
        return 1
    node = f"slurm-{env['SLURM_JOB_ID']}"
    _say(f"node {node} on {socket.gethostname()}, GPUs {','.join(ids)}")
    # When Slurm kills this process, it may give the GPUs to others at once.
    return Pilot(order, order_of(order.launch, node, ids, abandoned_s=0.0)).run()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
