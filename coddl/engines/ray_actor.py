"""The actor that holds a node of a Ray cluster for a pool: it runs the agent there.

It sits in the node's placement group, with all GPUs of it: Ray accounts for them and sets
CUDA_VISIBLE_DEVICES. After the agent's end it removes the group, and is killed by that: the GPUs
are free for other users of Ray when, and only when, nothing uses them any more, even if the
requester is gone by then.
"""

import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from coddl.agent.devices import VISIBLE
from coddl.engines.agent_guard import ABANDONED_S, TICK_S, AgentEnded, AgentStarted
from coddl.engines.agent_order import check_gpus, order_of, state_dir_of
from coddl.engines.engine import AgentLaunch
from coddl.engines.guarded_agent import GuardedAgent

KILL_S: Final = 10.0  # that the kernel may take to end what was killed
KEPT_S: Final = 30.0  # that the words of an agent that failed can be asked for
# What Ray adds to the environment of its workers, and training scripts must not find.
OF_RAY: Final = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_LD_PRELOAD_ON_WORKERS", "SPT_NOENV")
SET_BY_WORKER: Final = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT")


@dataclass(frozen=True, slots=True)
class RayNodeReport:
    """How a node is, as its actor tells."""

    ray_node: str  # Ray's id of the machine
    state: Literal["starting", "running", "ending", "ended"]
    gpu_ids: tuple[str, ...]  # as Ray granted them
    pid: int = 0  # of the agent
    niceness: int = 0
    said: str = ""  # by an agent that has ended


class RayNodeActor:
    """Runs the agent of a node until it is released, or the agent ends."""

    def __init__(self, launch: AgentLaunch, node: str) -> None:
        import ray
        from ray.util import get_current_placement_group

        self._group = get_current_placement_group()
        self._gpu_ids = tuple(str(each) for each in ray.get_gpu_ids())
        self._ray_node = str(ray.get_runtime_context().get_node_id())
        self._started: AgentStarted | None = None
        self._ended: AgentEnded | None = None
        self._released = threading.Event()
        check_gpus(launch)
        env = agent_env(os.environ, initial_env(), self._gpu_ids)
        self._agent = GuardedAgent(order_of(launch, node, self._gpu_ids), env)
        threading.Thread(target=self._hear, name="agent-guard", daemon=True).start()

    def report(self) -> RayNodeReport:
        """Return how the node is."""
        state: Literal["starting", "running", "ending", "ended"] = "starting"
        if self._ended is not None:
            state = "ended"
        elif self._released.is_set():
            state = "ending"
        elif self._started is not None:
            state = "running"
        return RayNodeReport(
            self._ray_node,
            state,
            self._gpu_ids,
            self._started.pid if self._started else 0,
            self._started.niceness if self._started else 0,
            self._ended.said if self._ended else "",
        )

    def release(self, within_s: float) -> None:
        """End the agent within that time, then give the GPUs back."""
        self._released.set()
        self._agent.end(within_s)

    def _on_start(self, started: AgentStarted) -> None:
        self._started = started

    def _hear(self) -> None:
        """Follow the guard until nothing is left of the agent; then leave Ray."""
        from ray.util import remove_placement_group

        ended = self._agent.wait(self._on_start)
        self._ended = ended
        if not self._released.is_set():
            print(f"agent_ended code={ended.code} said={ended.said!r}", file=sys.stderr, flush=True)  # noqa: T201  # Ray's log of this actor
            self._released.wait(KEPT_S)
        remove_placement_group(self._group)


def await_end(pool: str, node: str) -> None:
    """Return when nothing is left of an agent on this machine whose actor has died."""
    folder = state_dir_of(pool, node)  # which its guard removes last
    until_s = time.monotonic() + ABANDONED_S + KILL_S
    while folder.exists() and time.monotonic() < until_s:
        time.sleep(TICK_S)


def initial_env() -> dict[str, str]:
    """Return the environment that this process was started with."""
    pairs = Path("/proc/self/environ").read_bytes().split(b"\0")
    return dict(os.fsdecode(pair).split("=", 1) for pair in pairs if b"=" in pair)


def agent_env(
    now: Mapping[str, str], initial: Mapping[str, str], gpu_ids: tuple[str, ...]
) -> dict[str, str]:
    """Return what the agent may find: what the worker has, less what Ray put there for itself."""
    of_ray = {*OF_RAY, *(name for name in SET_BY_WORKER if name not in initial)}
    kept = {name: value for name, value in now.items() if name not in of_ray}
    # Ray can be configured not to set it; an agent would take all GPUs of the machine then.
    return {**kept, VISIBLE: ",".join(gpu_ids)}
