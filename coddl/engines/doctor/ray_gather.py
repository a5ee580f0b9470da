"""Asks a Ray cluster what `coddl doctor` judges. Connects for a moment; needs `coddl[ray]`."""

import contextlib
import json
import platform
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from coddl import __version__
from coddl.core.errors import UserError
from coddl.engines.doctor.ray import HeadFacts, RayFacts, RayNodeFacts

CONNECT_S: Final = 5.0
PROBE_S: Final = 60.0  # for all machines together; a worker of Ray starts in seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RayQuestion:
    """What a pool in a cluster would need."""

    address: str = "auto"
    gpus_per_node: int = 1
    server: str = ""  # to be reached from each machine; empty: there is none yet
    jobs_dir: str = ""


def gather_ray(asked: RayQuestion) -> RayFacts:
    """Look at a cluster."""
    facts = RayFacts(
        python=platform.python_version(),
        coddl=__version__,
        gpus_per_node=asked.gpus_per_node,
        server=asked.server,
        jobs_dir=asked.jobs_dir,
    )
    try:
        import ray
    except ModuleNotFoundError:
        error = UserError("Ray is not installed", "import ray fails", "pip install 'coddl[ray]'")
        return replace(facts, trouble=error)
    facts = replace(facts, ray=ray.__version__)
    try:
        facts = replace(facts, address=_address(asked.address))
        about = _metadata(facts.address)
        facts = replace(facts, cluster_ray=about["ray_version"])
        facts = replace(facts, cluster_python=about["python_version"])
        with _connected(facts.address) as dashboard:
            return _asked(replace(facts, dashboard=dashboard))
    except (ray.exceptions.RayError, ConnectionError, OSError, RuntimeError, ValueError) as error:
        because = str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
        what = f"the Ray cluster at {facts.address or asked.address} can't be used"
        try_ = "ray status, on a machine of the cluster; or --address HEAD:6379"
        return replace(facts, trouble=UserError(what, because, try_))


def _address(given: str) -> str:
    """Return the whole address of a cluster that answers."""
    from ray._private.services import canonicalize_bootstrap_address_or_die

    if given.startswith("ray://"):
        raise ValueError("addresses of Ray Client (ray://) can't be used")
    address = str(canonicalize_bootstrap_address_or_die(given))
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), CONNECT_S).close()  # Ray would try for minutes
    return address


def _metadata(address: str) -> dict[str, str]:
    """Return the versions that a cluster was started with; Ray compares them, too."""
    from ray import _raylet
    from ray._common.usage.usage_lib import get_cluster_metadata

    raylet: Any = _raylet  # Any: compiled, without types
    found: dict[str, str] = get_cluster_metadata(raylet.GcsClient(address=address))
    return found


@contextlib.contextmanager
def _connected(address: str) -> Iterator[str]:
    """Be a driver of a cluster; gives the address of its dashboard."""
    import ray

    context: Any = ray.init(
        address, log_to_driver=False, configure_logging=False
    )  # Any: its types lack this
    try:
        yield str(context.address_info.get("webui_url") or "")
    finally:
        ray.shutdown()


def _asked(facts: RayFacts) -> RayFacts:
    """Collect the facts of all machines in parallel."""
    import ray
    from ray import cloudpickle
    from ray._private.state import state
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from coddl.engines.doctor import ray_probe

    cloudpickle.register_pickle_by_value(ray_probe)
    machines = [machine for machine in ray.nodes() if machine["Alive"]]
    task = ray.remote(num_cpus=0, max_retries=0)(ray_probe.probe)
    asked = {}
    for machine in machines:
        where = NodeAffinitySchedulingStrategy(machine["NodeID"], soft=False)
        to_try = facts.jobs_dir if machine["Resources"].get("GPU") else ""
        asked[machine["NodeID"]] = task.options(scheduling_strategy=where).remote(
            facts.server, to_try
        )
    ray.wait(list(asked.values()), num_returns=len(asked), timeout=PROBE_S)
    free = state.available_resources_per_node()
    head: HeadFacts | None = None
    nodes = []
    for machine in sorted(machines, key=lambda each: (each["NodeManagerHostname"], each["NodeID"])):
        id_ = machine["NodeID"]
        told, trouble = _told(asked[id_])
        node = RayNodeFacts(
            host=f"{machine['NodeManagerHostname']}/{id_[:6]}",
            gpus=machine["Resources"].get("GPU", 0.0),
            gpus_free=free.get(id_, {}).get("GPU", 0.0),
            trouble=trouble,
        )
        nodes.append(described(node, told) if told else node)
        head = HeadFacts(**told["head"]) if told.get("head") else head
    return replace(facts, head=head, nodes=tuple(nodes))


def _told(question: Any) -> tuple[dict[str, Any], str]:  # Any: Ray's reference, and JSON
    """Return what a machine told, or why it did not."""
    import ray

    try:
        return json.loads(json.dumps(ray.get(question, timeout=0))), ""
    except ray.exceptions.GetTimeoutError:
        return {}, f"it did not answer within {PROBE_S:.0f} s"
    except ray.exceptions.RayError as error:
        return {}, str(error).strip().splitlines()[-1]


def described(node: RayNodeFacts, told: dict[str, Any]) -> RayNodeFacts:  # Any: JSON
    """Add a machine's reported facts."""
    return replace(
        node,
        python=told["python"],
        coddl=told["coddl"],
        torch=told["torch"],
        niceness=told["niceness"],
        gpu_sizes=tuple((gpu["kind"], gpu["bytes"]) for gpu in told["gpus"]),
        worker_ports=tuple(told["worker_ports"]),
        server_trouble=told["server_trouble"],
        jobs_dir_trouble=told["jobs_dir_trouble"],
    )
