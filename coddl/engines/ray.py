"""Nodes of a Ray cluster for a pool. Needs `coddl[ray]`; runs in a process of its own.

A node is a detached placement group with one bundle, and in it a detached actor that runs the
agent (`ray_actor`); both are called `coddl-<pool>-<node>`, in the namespace `coddl-<pool>`. So Ray
knows that the GPUs are in use, a group that waits asks Ray's autoscaler for more machines, and
a later connection finds the nodes again. Neither is ever restarted or moved by Ray: a node
whose machine died is gone, and the pool asks for another.

The process must be on a machine of the cluster (Ray Client, ray://, shows too little). Ray ends
it 60 s after the head of the cluster was lost, whatever it does: it must be started anew then.
Agents and jobs go on meanwhile.

All calls of Ray are made by one thread, because a call without an answer can't be ended.
"""

import contextlib
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from coddl.core.errors import UserError
from coddl.engines.engine import AgentLaunch, EngineNode, EngineStatus, EngineUnavailable
from coddl.engines.ray_actor import RayNodeActor, RayNodeReport, await_end

T = TypeVar("T")
CONNECT_S: Final = 30.0
CALL_S: Final = 5.0  # all calls of one `look` together
ANSWER_S: Final = 0.05  # that `look` waits for actors; the next one gets the rest
LATE_S: Final = 30.0  # after which an actor that should have left is killed
CAUSE_CHARS: Final = 200
DRAIN_S: Final = 600.0  # for jobs to leave a machine that Ray drains without a deadline


class _RayThread:
    """Makes calls of Ray one after the other, and does not wait longer than told."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._run, name="ray-calls", daemon=True).start()

    def do(self, call: Callable[[], T], within_s: float = CALL_S) -> T:
        """Return what a call gives; raises EngineUnavailable if it does not come in time."""
        import ray

        future: Future[T] = Future()
        self._calls.put((call, future))
        try:
            return future.result(within_s)
        except TimeoutError:
            future.cancel()  # if it has not begun
            raise self._unavailable(f"no answer within {within_s:g} s") from None
        except (ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
            raise self._unavailable(_cause(error)) from error

    def probe(self) -> None:
        """Raise EngineUnavailable if nothing listens there: Ray itself would try for minutes."""
        host, _, port = self._address.rpartition(":")
        if not port.isdecimal():
            return  # Ray finds the address itself
        try:
            socket.create_connection((host, int(port)), CALL_S).close()
        except OSError as error:
            raise self._unavailable(error.strerror or str(error)) from None

    def close(self) -> None:
        """End the thread, after the call that it makes."""
        self._calls.put(None)

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            call, future = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

    def _unavailable(self, because: str) -> EngineUnavailable:
        return EngineUnavailable(
            f"the Ray cluster at {self._address} does not answer", because, "ray status"
        )


@dataclass(slots=True)
class _RayNode:
    """What is known of a node; all but the time of its release can be found out anew."""

    actor: Any  # Any: an actor's methods have no types
    question: Any = None  # Any: Ray's reference to a report that was asked for
    report: RayNodeReport | None = None
    trouble: str = ""  # why it does not answer
    kill_at_s: float | None = None  # it was released


@dataclass(slots=True)
class _AbandonedGroup:
    """The placement group of a node whose actor is gone."""

    because: str
    end: Any = None  # Any: Ray's reference to a task there that waits for the agent's end


class RayEngine:
    """The nodes that a pool has in a Ray cluster."""

    def __init__(
        self,
        launch: AgentLaunch,
        *,
        gpus_per_node: int,
        cpus_per_node: float = 0.0,
        address: str = "auto",
        autoscales: bool = False,
    ) -> None:
        """Connect to the cluster.

        With `launch.slots`, agents offer CPU slots; as many as GPUs, and they have Ray's GPU ids.
        `autoscales` says that Ray brings further machines when some are asked for.
        """
        _check(launch, gpus_per_node, address)
        self._launch = launch
        self._gpus = gpus_per_node
        self._bundle = {"GPU": float(gpus_per_node)}
        if cpus_per_node:
            self._bundle["CPU"] = cpus_per_node
        self._autoscales = autoscales
        self._prefix = f"coddl-{launch.pool}-"
        self._nodes: dict[str, _RayNode] = {}
        self._abandoned: dict[str, _AbandonedGroup] = {}
        self._draining_since_s: dict[str, float] = {}
        self._thread = _RayThread(address)
        try:
            self._thread.probe()
            self._thread.do(lambda: self._connect(address), CONNECT_S)
        except BaseException:
            self._thread.close()
            raise

    def look(self) -> EngineStatus:
        """Return what Ray has for this pool."""
        return self._thread.do(self._look)

    def acquire(self) -> str:
        """Reserve GPUs on one more machine, now or when some are free."""
        return self._thread.do(self._acquire)

    def release(self, node: str, within_s: float) -> None:
        """End a node's agent, and then give its GPUs back."""
        self._thread.do(lambda: self._release(node, within_s))

    def close(self) -> None:
        """Disconnect; the nodes stay."""
        import ray

        with contextlib.suppress(EngineUnavailable):
            self._thread.do(ray.shutdown)
        self._thread.close()

    def report(self, node: str) -> RayNodeReport:
        """Return the last report of a node that is up."""
        report = self._nodes[node].report
        assert report is not None
        return report

    # All below is done by the thread.

    def _connect(self, address: str) -> None:
        import ray

        ray.init(
            address,
            namespace=f"coddl-{self._launch.pool}",
            log_to_driver=False,
            configure_logging=False,
        )
        self._find_abandoned()

    def _find_abandoned(self) -> None:
        """Find groups without an actor: of an `acquire` that was cut short, or an actor's death."""
        from ray.util import placement_group_table

        names = self._named()
        for group in placement_group_table().values():
            name = str(group["name"])
            node = name.removeprefix(self._prefix)
            if node != name and node not in names and group["state"] != "REMOVED":
                self._abandoned[node] = _AbandonedGroup("its actor has died")

    def _named(self) -> set[str]:
        """Name the nodes whose actors live, or will."""
        from ray.util import list_named_actors

        names = [str(name) for name in list_named_actors()]
        return {n.removeprefix(self._prefix) for n in names if n.startswith(self._prefix)}

    def _look(self) -> EngineStatus:
        import ray
        from ray._private.state import state

        names = self._named()
        for name in set(self._nodes) - names:
            self._abandon(name)
        self._remove_abandoned()
        for name in sorted(names - set(self._nodes)):
            try:
                self._nodes[name] = _RayNode(ray.get_actor(self._prefix + name))
            except ValueError:
                continue  # it has just ended
        self._ask()
        draining = self._leave_times(state.get_draining_nodes())
        nodes = [self._described(name, draining) for name in sorted(self._nodes)]
        more = None
        if not self._autoscales:
            free = state.available_resources_per_node()
            more = self._more({name: r for name, r in free.items() if name not in draining})
        nodes += [
            EngineNode(name, "releasing", because=abandoned.because)
            for name, abandoned in sorted(self._abandoned.items())
        ]
        return EngineStatus(tuple(nodes), more)

    def _ask(self) -> None:
        """Poll all actors for their state, and take in the answers that have come."""
        import ray

        for node in self._nodes.values():
            if node.question is None:
                node.question = node.actor.report.remote()
        questions = [node.question for node in self._nodes.values()]
        if questions:
            ray.wait(questions, num_returns=len(questions), timeout=ANSWER_S)
        for node in self._nodes.values():
            self._hear(node)

    def _hear(self, node: _RayNode) -> None:
        import ray

        if node.question is not None and ray.wait([node.question], timeout=0)[0]:
            try:
                node.report, node.trouble = ray.get(node.question, timeout=1), ""
            except ray.exceptions.RayTaskError as error:  # as without this package there
                node.trouble = _cause(error)
                ray.kill(node.actor)
            except ray.exceptions.RayError as error:
                node.trouble = _cause(error)
            node.question = None
        if node.report is not None and node.report.state == "ended":
            node.actor.release.remote(0.0)  # its output has been read
        if node.kill_at_s is not None and time.monotonic() >= node.kill_at_s:
            ray.kill(node.actor)

    def _abandon(self, name: str) -> None:
        """Note that a node's actor is gone."""
        node = self._nodes[name]
        self._hear(node)  # its last words
        del self._nodes[name]
        self._abandoned[name] = _AbandonedGroup(node.trouble or "its actor has ended")

    def _remove_abandoned(self) -> None:
        """Remove groups whose actor is gone, but not before the agent has ended there."""
        import ray

        for name, abandoned in list(self._abandoned.items()):
            group = self._group_table(name)
            if group is None or group["state"] == "REMOVED":  # by the actor itself
                del self._abandoned[name]
            elif group["state"] != "CREATED":  # its machine died, or there never was one
                self._remove_group(name)
                del self._abandoned[name]
            elif abandoned.end is None:
                abandoned.end = self._await_end(name)
            elif ray.wait([abandoned.end], timeout=0)[0]:
                self._remove_group(name)

    def _await_end(self, name: str) -> Any:  # Any: Ray's reference
        """Start a task that waits for the end of an agent, on the agent's machine."""
        import ray
        from ray.util import get_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = get_placement_group(self._prefix + name)
        options = ray.remote(await_end).options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0),
        )
        return options.remote(self._launch.pool, name)

    def _described(self, name: str, draining: dict[str, float]) -> EngineNode:
        node = self._nodes[name]
        report = node.report
        if report is not None and report.state == "ended":
            return EngineNode(name, "releasing", because=f"its agent ended: {report.said}")
        if node.kill_at_s is not None or (report and report.state == "ending"):
            return EngineNode(name, "releasing", because=node.trouble or "it was released")
        if report is None or report.state == "starting":
            return EngineNode(name, "starting", because=node.trouble or self._awaited(name))
        if (leaves_at_s := draining.get(report.ray_node)) is not None:
            return EngineNode(name, "up", leaves_at_s, "Ray drains its machine")
        because = node.trouble
        if report.niceness > 0:
            because = because or (
                f"its jobs run at niceness {report.niceness}: "
                "start Ray there with RAY_worker_niceness=0"
            )
        return EngineNode(name, "up", because=because)

    def _awaited(self, name: str) -> str:
        """Say what a node waits for that has not started."""
        group = self._group_table(name)
        if group is None or group["state"] == "CREATED":
            return "its agent is starting"
        if group["stats"]["scheduling_state"] == "INFEASIBLE":
            return f"no machine of the Ray cluster has {self._wanted}"
        return f"no machine of the Ray cluster has {self._wanted} free"

    @property
    def _wanted(self) -> str:
        gpus = f"{self._gpus} GPU{'s' if self._gpus > 1 else ''}"
        return f"{gpus} and {self._bundle['CPU']:g} CPUs" if "CPU" in self._bundle else gpus

    def _leave_times(self, deadlines_ms: dict[str, int]) -> dict[str, float]:
        """Return when each machine that Ray drains will be taken away, in wall-clock time."""
        first_s, now_s = self._draining_since_s, time.time()
        self._draining_since_s = {each: first_s.get(each, now_s) for each in deadlines_ms}
        return {
            each: at_ms / 1000 if at_ms else self._draining_since_s[each] + DRAIN_S
            for each, at_ms in deadlines_ms.items()
        }

    def _more(self, free: dict[str, dict[str, float]]) -> int:
        """Count the nodes that are available at once, in addition to those that are awaited."""
        fit = [
            min(int(resources.get(kind, 0.0) // amount) for kind, amount in self._bundle.items())
            for resources in free.values()
        ]
        groups = [self._group_table(n) for n, node in self._nodes.items() if node.report is None]
        waiting = sum(bool(group and group["state"] != "CREATED") for group in groups)
        return max(0, sum(fit) - waiting)

    def _acquire(self) -> str:
        import ray
        from ray.util import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        node = f"ray-{secrets.token_hex(4)}"
        name = self._prefix + node
        group = placement_group([self._bundle], "STRICT_PACK", name, lifetime="detached")
        options = ray.remote(RayNodeActor).options(
            name=name,
            lifetime="detached",
            num_gpus=self._gpus,
            num_cpus=0,
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0),
        )
        self._nodes[node] = _RayNode(options.remote(self._launch, node))
        return node

    def _release(self, name: str, within_s: float) -> None:
        import ray

        if name not in self._nodes:
            try:
                self._nodes[name] = _RayNode(ray.get_actor(self._prefix + name))
            except ValueError:
                return
        node = self._nodes[name]
        group = self._group_table(name)
        if group is not None and group["state"] == "CREATED":
            node.actor.release.remote(within_s)
            node.kill_at_s = time.monotonic() + within_s + LATE_S
            return
        ray.kill(node.actor)  # it has not started
        self._remove_group(name)
        del self._nodes[name]

    def _group_table(self, node: str) -> dict[str, Any] | None:  # Any: as Ray gives it
        from ray._private.state import state

        namespace = f"coddl-{self._launch.pool}"
        found: dict[str, Any] | None = state.get_placement_group_by_name(
            self._prefix + node, namespace
        )
        return found

    def _remove_group(self, node: str) -> None:
        from ray.util import get_placement_group, remove_placement_group

        with contextlib.suppress(ValueError):  # it is gone
            remove_placement_group(get_placement_group(self._prefix + node))


def _check(launch: AgentLaunch, gpus_per_node: int, address: str) -> None:
    try:
        import ray  # noqa: F401
    except ModuleNotFoundError:
        raise UserError(
            "Ray can't be used", "it is not installed", "pip install 'coddl[ray]'"
        ) from None
    if gpus_per_node < 1:
        because = "a node has at least 1 GPU"
        raise UserError(f"{gpus_per_node} GPUs per node can't be had", because, "1")
    if address.startswith("ray://"):
        because = "Ray Client does not report placement groups and machines"
        try_ = "the address of the cluster's head, as HEAD:6379, on a machine of the cluster"
        raise UserError(f"{address} can't be used", because, try_)
    if launch.slots not in (None, gpus_per_node):
        because = f"{launch.slots} CPU slots can't have the ids of {gpus_per_node} GPUs"
        raise UserError("the slots of a node can't be granted by Ray", because, "equal numbers")


def _cause(error: Exception) -> str:
    """Return the line of an error of Ray that says why: below tracebacks and lists of fields."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line[0].isspace()]
    return lines[-1][:CAUSE_CHARS] if lines else type(error).__name__
