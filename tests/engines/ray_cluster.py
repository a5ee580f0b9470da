"""A Ray cluster on this machine, in a process of its own, with GPUs that only Ray believes in.

The process that runs this module as a script holds the cluster. Each line on its input is a command
for it, answered by a line of JSON. The cluster ends with its input.

    add GPUS        adds a machine; answers with the process of its raylet and Ray's id of it
    kill RAYLET     kills a machine by its raylet
    kill-head       kills the process that answers for the cluster (GCS)
    start-head      starts it again, at its port; it knows the cluster only if it has Redis
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

# So a machine is known to be dead after 3 seconds instead of 13.
QUICK_HEALTH_CHECK: Final = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}
CLI_S: Final = 120.0
REAP_EVERY_S: Final = 0.2


class RayMachine(NamedTuple):
    """A machine of a cluster."""

    raylet: int  # its process
    id: str  # as Ray names it


class RayCluster:
    """A head without GPUs, and machines with some."""

    def __init__(
        self,
        gpus: Sequence[int],
        *,
        config: Mapping[str, int] = QUICK_HEALTH_CHECK,
        env: Mapping[str, str] | None = None,
        has_dashboard: bool = False,
    ) -> None:
        """`config` is Ray's; `env` is for all its processes, such as RAY_REDIS_ADDRESS."""
        ours = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, json.dumps(dict(config)), str(int(has_dashboard))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **ours, **(env or {})},
            text=True,
            start_new_session=True,
        )
        about = self._answer()
        self.address: str = about["address"]
        self.head: int = about["head"]  # the process that answers for the cluster
        self.dashboard: str = about["dashboard"]
        self.machines = [self.add(count) for count in gpus]

    def add(self, gpus: int) -> RayMachine:
        """Add a machine."""
        return RayMachine(**self._asked(f"add {gpus}"))

    def kill(self, machine: RayMachine) -> None:
        """Kill a machine: its raylet, which its workers notice."""
        self._asked(f"kill {machine.raylet}")

    def kill_head(self) -> None:
        """Kill the process that answers for the cluster."""
        self._asked("kill-head")

    def start_head(self) -> None:
        """Start it again."""
        self.head = self._asked("start-head")["head"]

    def drain(self, machine: str, within_s: int | None) -> None:
        """Have Ray drain a machine, as an autoscaler does on notice of a preemption."""
        words = ["drain-node", "--address", self.address, "--node-id", machine]
        words += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot"]
        words += ["--deadline-remaining-seconds", str(within_s)] if within_s else []
        subprocess.run(
            [sys.executable, "-m", "ray.scripts.scripts", *words],
            check=True,
            capture_output=True,
            timeout=CLI_S,
        )

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


def free_port() -> int:
    """Give a port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class ClusterHolder:
    """What the process of the cluster does."""

    def __init__(self, config: Mapping[str, int], has_dashboard: bool) -> None:
        from ray.cluster_utils import Cluster

        head: dict[str, object] = {
            "num_cpus": 1,
            "include_dashboard": has_dashboard,
            "dashboard_port": free_port(),
            "_system_config": dict(config),
        }
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self._raylets: dict[int, subprocess.Popen[bytes]] = {}
        threading.Thread(target=self._reap, daemon=True).start()

    def _reap(self) -> None:
        """Have raylets that end by themselves be gone: workers do not end while it is a zombie."""
        while True:
            time.sleep(REAP_EVERY_S)
            for raylet in list(self._raylets.values()):
                raylet.poll()

    @property
    def _head(self) -> Any:  # Any: Ray has no types here
        return self.cluster.head_node

    def about(self) -> dict[str, object]:
        gcs = self._head.all_processes["gcs_server"][0].process
        url = self._head.address_info.get("webui_url") or ""
        return {"address": self.cluster.address, "head": gcs.pid, "dashboard": url}

    def obey(self, what: str, number: int) -> dict[str, object]:
        if what == "add":
            node = self.cluster.add_node(num_cpus=2, num_gpus=number)
            raylet = node.all_processes["raylet"][0].process
            self._raylets[raylet.pid] = raylet
            return {"raylet": raylet.pid, "id": node.node_id}
        if what == "kill":
            self._raylets[number].kill()
            return {"code": self._raylets[number].wait()}
        if what == "kill-head":
            self._head.kill_gcs_server()
            return {}
        self._head.start_gcs_server()
        return self.about()


def main() -> None:
    told = os.fdopen(os.dup(1), "w")  # Ray prints, too
    os.dup2(2, 1)

    def tell(about: dict[str, object]) -> None:
        told.write(json.dumps(about) + "\n")
        told.flush()

    holder = ClusterHolder(json.loads(sys.argv[1]), sys.argv[2] == "1")
    try:
        tell(holder.about())
        for line in sys.stdin:
            what, _, number = line.strip().partition(" ")
            tell(holder.obey(what, int(number or 0)))
    finally:
        holder.cluster.shutdown()


if __name__ == "__main__":
    main()
