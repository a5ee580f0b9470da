"""A node of a pool without its agent: runs workers of the job that it is told of.

    python -m benchmarks.estimates.host NODE ADDRESS FOLDER

Says its port and token, then reads the name of a job from each line of its input: all slots are
that job's from then on. It ends, and all workers with it, when its input ends.
"""

import json
import os
import secrets
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from coddl.runtime.supervisor.job_host_server import JobHostServer
from coddl.runtime.supervisor.slots import JobEnvironment, Parked, SlotProcess
from coddl.runtime.wire import Message

ATTEMPT: Final = 1
KEPT: Final = ("PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH")


class OneJobAgent:
    """Gives all slots of a node to one job."""

    def __init__(self, folder: Path) -> None:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        self.job = ""
        self._environment = JobEnvironment(
            python=sys.executable,
            cwd=folder,
            env={**kept, "OMP_NUM_THREADS": "1"},
            folder=folder / "checkpoints",
        )

    def environment_of(self, job: str) -> JobEnvironment | None:
        return self._environment if job == self.job else None

    def owner_of(self, slot: int) -> tuple[str, int] | None:  # noqa: ARG002 - all
        return (self.job, ATTEMPT)

    def expects(self, job: str) -> bool:
        return job == self.job

    def keeps_parked(self, job: str) -> bool:  # noqa: ARG002 - none
        return False

    def takes_turns(self, job: str, slot: int) -> bool:  # noqa: ARG002 - none
        return False

    def on_holding(self, held: Mapping[int, SlotProcess], parked: Parked) -> None:
        """Nothing depends on it."""

    def on_log(self, job: str, worker: int, rank: int | None, stream: str, text: str) -> None:  # noqa: ARG002
        print(f"{job}, worker {worker}: {text}", file=sys.stderr, flush=True)

    def on_warm(self, python: str, about: Message) -> None:
        """Nothing waits for it."""


def main() -> None:
    """Serve until the input ends."""
    name, address, folder = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who started this ends it
    agent = OneJobAgent(Path(folder))
    token = secrets.token_hex()
    server = JobHostServer(f"bench-{os.getpid()}-{name}", token, agent, host=address)
    server.start()
    print(json.dumps({"port": server.address[1], "token": token}), flush=True)
    for line in sys.stdin:
        agent.job = line.strip()
        server.look_again()
        print(json.dumps({"job": agent.job}), flush=True)
    server.close()


if __name__ == "__main__":
    main()
