"""What a pilot job does: runs the agent of a node, and notifies it of what Slurm is about to do.

    python -m coddl.engines.slurm.pilot FOLDER      as a job of Slurm, in its first process

    SIGUSR2     the pool gives the node back: the agent saves its jobs and ends
    SIGUSR1     the time limit is near, as set by `sbatch --signal`
    SIGTERM     the limit, a preemption, `scancel`: SIGKILL follows after the cluster's `KillWait`

In the last two cases the agent reports by when it must be gone, and the pool has its jobs
move. Slurm may send a signal to all processes of a job, though only this one can do something with
it; the agent is not among them, because its guard has left this process's family. Processes that
Slurm tracks by control group stay in the group all the same. When Slurm kills this process, the
guard kills the agent.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from coddl.agent.devices import NONE, VISIBLE
from coddl.agent.options import SERVER_GONE
from coddl.core.errors import UserError
from coddl.engines.agent_guard import GuardOrder
from coddl.engines.agent_order import check_gpus, order_of
from coddl.engines.engine import AgentLaunch
from coddl.engines.guarded_agent import GuardedAgent
from coddl.engines.processes import LEAVE_S

SHELL: Final = Path(__file__).with_name("pilot.sh")
ORDER: Final = "pilot.json"
MARGIN_S: Final = 3.0  # before Slurm kills what is left
# What Slurm sets for jobs. Libraries that find it take a training for one of Slurm's own.
OF_SLURM: Final = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "PMI_", "PMIX_")
GRANTED: Final = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", VISIBLE)


@dataclass(frozen=True, slots=True)
class PilotOrder:
    """The parameters of a pool's pilot jobs."""

    launch: AgentLaunch
    gpus: int
    notice_s: float  # that remain after SIGUSR1
    kill_wait_s: float  # and after SIGTERM


def write_order(folder: Path, order: PilotOrder) -> None:
    """Write the parameters of pilot jobs, with the token, for their owner only. Raises OSError."""
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
    """Read what a pilot job is to do. Raises OSError, ValueError."""
    found = json.loads((folder / ORDER).read_text("utf-8"))
    return PilotOrder(**{**found, "launch": AgentLaunch(**found["launch"])})


def gpu_ids(env: Mapping[str, str], order: PilotOrder) -> tuple[str, ...]:
    """Return the ids of the GPUs that Slurm has granted; raises UserError if they are others."""
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
    """Return the environment for the agent and its jobs, without what Slurm and the owner set."""
    kept = {n: v for n, v in env.items() if not n.startswith((*OF_SLURM, "CODDL_"))}
    return kept | {name: env[name] for name in ("SLURM_CONF",) if name in env}


class Pilot:
    """Runs an agent until it ends, or Slurm ends this process."""

    def __init__(self, order: PilotOrder, guard: GuardOrder) -> None:
        self._order = order
        self._is_told = False  # to end, or that the node leaves
        self._agent = GuardedAgent(guard, agent_env(os.environ))
        for number in (signal.SIGUSR2, signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def run(self) -> int:
        """Wait for the end of the agent, and of all that it has started."""
        ended = self._agent.wait()
        if ended.code and ended.said:
            _say(ended.said)
        # An agent that is signalled before it has started dies of the signal. And a missing server
        # is not the node's fault: Slurm gets exit code 0.
        return 0 if self._is_told or ended.code in (0, SERVER_GONE) else 1

    def _on_signal(self, number: int, _frame: object) -> None:
        self._is_told = True
        if number == signal.SIGUSR2:
            self._agent.end(LEAVE_S)
        elif number == signal.SIGUSR1:
            self._agent.leave(self._order.notice_s)
        else:
            self._agent.leave(max(1.0, self._order.kill_wait_s - MARGIN_S))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201  # Slurm's log of the job


def main(folder: Path) -> int:
    """Run the agent of this job's node."""
    env = os.environ
    if int(env.get("SLURM_RESTART_COUNT", "0")):
        _say("not started again: the pool has asked for another node in its place")
        return 1  # a job that ends well vouches for all that ran under its number
    try:
        order = read_order(folder)
        check_gpus(order.launch)
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
