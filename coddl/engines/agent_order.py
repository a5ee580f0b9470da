"""How the agent of a node that an engine brings is started, and where its files are."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from coddl.agent.devices import gpus_here
from coddl.agent.options import AgentOptions
from coddl.core.errors import UserError
from coddl.engines.agent_guard import ABANDONED_S, GuardOrder
from coddl.engines.engine import CA_FILE, AgentLaunch

PROGRAM: Final = (sys.executable, "-P", "-m", "coddl")


def state_dir_of(pool: str, node: str) -> Path:
    """Return where the files of a node's agent are, while it runs."""
    return Path(tempfile.gettempdir()) / f"coddl-{pool}-{node}"


def check_gpus(launch: AgentLaunch) -> None:
    """Raise UserError if the agent of a node would offer CPU slots where GPUs were granted."""
    if launch.slots is None and gpus_here() is None:
        raise UserError(
            "the GPUs of this machine can't be used",
            "it has no NVIDIA driver",
            "--slots with the number of --gpus-per-node, to offer CPU slots for a trial",
        )


def order_of(
    launch: AgentLaunch,
    node: str,
    gpu_ids: tuple[str, ...],
    *,
    abandoned_s: float = ABANDONED_S,
) -> GuardOrder:
    """Return how the agent of a node is started.

    It ends with its lease, so that the engine gets its GPUs back if the server is lost.
    """
    state_dir = state_dir_of(launch.pool, node)
    # Nodes without a common directory have one per machine, which outlives them.
    jobs_dir = launch.jobs_dir or f"{state_dir_of(launch.pool, 'jobs')}-{os.getuid()}"
    options = AgentOptions(server=launch.server, token=launch.token, state_dir=state_dir, name=node)
    words = [*PROGRAM, "agent", "--name", node, "--server", launch.server, "--ends-with-lease"]
    words += ["--state-dir", str(state_dir), "--token-file", str(state_dir / "token")]
    words += ["--jobs-dir", jobs_dir]
    words += ["--tls-ca", str(state_dir / CA_FILE)] if launch.ca else []
    if launch.slots is not None:
        words += ["--slots", str(launch.slots)]
        if len(gpu_ids) == launch.slots:
            words += ["--slot-ids", ",".join(gpu_ids)]
    return GuardOrder(
        tuple(words),
        launch.token,
        str(state_dir),
        str(options.folder),
        launch.ca,
        abandoned_s=abandoned_s,
    )
