"""A Ray cluster on this machine, in a process of its own, with GPUs that only Ray believes in.

The process that runs this module as a script holds the cluster. A line on its input with a number
of GPUs adds such a machine; it answers with the process of the machine's raylet, by which a later
line kills it. The cluster ends with its input.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

# So a machine is known to be dead after 3 seconds instead of 13.
QUICK_HEALTH_CHECK: Final = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}


class RayCluster:
    """A head without GPUs, and machines with some."""

    def __init__(self, gpus: Sequence[int]) -> None:
        env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            text=True,
            start_new_session=True,
        )
        about = self._answer()
        self.address: str = about["address"]
        self.head: int = about["head"]  # the process that answers for the cluster
        self.raylets = [self.add(count) for count in gpus]

    def add(self, gpus: int) -> int:
        """Add a machine; give the process of its raylet."""
        raylet: int = self._asked(f"add {gpus}")["raylet"]
        return raylet

    def kill(self, raylet: int) -> None:
        """Kill a machine: its raylet, which its workers notice."""
        self._asked(f"kill {raylet}")

    def close(self) -> None:
        """End it, and wait for that."""
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(120)

    def _asked(self, line: str) -> dict[str, Any]:  # Any: JSON
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:  # Any: JSON
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found


def main() -> None:
    from ray.cluster_utils import Cluster

    told = os.fdopen(os.dup(1), "w")  # Ray prints, too
    os.dup2(2, 1)

    def tell(**about: object) -> None:
        told.write(json.dumps(about) + "\n")
        told.flush()

    head: dict[str, object] = {
        "num_cpus": 1,
        "include_dashboard": False,
        "_system_config": QUICK_HEALTH_CHECK,
    }
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        head_node: Any = cluster.head_node  # Any: Ray has no types here
        gcs = head_node.all_processes["gcs_server"][0].process
        tell(address=cluster.address, head=gcs.pid)
        raylets: dict[int, subprocess.Popen[bytes]] = {}
        for line in sys.stdin:
            what, number = line.split()
            if what == "add":
                node = cluster.add_node(num_cpus=2, num_gpus=int(number))
                raylet = node.all_processes["raylet"][0].process
                raylets[raylet.pid] = raylet
                tell(raylet=raylet.pid)
            else:
                raylets[int(number)].kill()
                # Workers do not end while their raylet is a zombie.
                tell(code=raylets[int(number)].wait())
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
