"""Facts that a machine of a Slurm cluster reports, by a command that `srun` runs there.

python -m coddl.engines.doctor.slurm_probe SERVER JOBS_DIR MARKER     empty: not to be tried
"""

import json
import os
import platform
import socket
import sys
from pathlib import Path
from typing import Final

from coddl import __version__
from coddl.agent.devices import NONE, VISIBLE
from coddl.engines.doctor.ray_probe import folder_trouble, server_trouble

TOLD: Final = "coddl-doctor "  # what it prints begins with this
NAMES: Final = ("host", "python", "coddl", "gpu_ids", "server_trouble", "jobs_dir_trouble")


def probe(server: str, jobs_dir: str, marker: str) -> dict[str, str]:
    """Look at the machine that this runs on; the marker is a file that the asker sees."""
    gpu_ids = os.environ.get(VISIBLE, "")
    trouble = folder_trouble(jobs_dir) if jobs_dir else ""
    if marker and not trouble and not Path(marker).exists():
        trouble = "it is not the directory that this machine has under that name"
    return {
        "host": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "python": platform.python_version(),
        "coddl": __version__,
        "gpu_ids": "" if gpu_ids in NONE else gpu_ids,
        "server_trouble": server_trouble(server) if server else "",
        "jobs_dir_trouble": trouble,
    }


if __name__ == "__main__":
    print(TOLD + json.dumps(probe(*sys.argv[1:])))  # noqa: T201  # read by the caller
