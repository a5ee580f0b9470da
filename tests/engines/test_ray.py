"""Nodes of a real Ray cluster on this machine, with agents of a real pool."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

pytest.importorskip("ray", reason="needs Ray: pip install 'coddl[ray]'")

import ray

from coddl import __version__
from coddl.agent.orphans import process, processes
from coddl.api.client import Client, find
from coddl.core.errors import UserError
from coddl.engines.agent_order import order_of
from coddl.engines.doctor.ray_gather import RayQuestion, gather_ray
from coddl.engines.engine import AgentLaunch, EngineNode, EngineUnavailable
from coddl.engines.ray import DRAIN_S, RayEngine
from coddl.engines.ray_actor import agent_env
from tests.engines.ray_cluster import RayCluster

T = TypeVar("T")
GPUS: Final = 4  # of each of two machines
PATIENCE_S: Final = 120.0
RELEASE_S: Final = 30.0

pytestmark = pytest.mark.slow


def awaited(what: str, look: Callable[[], T]) -> T:
    """Give what `look` gives, once that is something."""
    until_s = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < until_s, f"{what}: not within {PATIENCE_S:.0f} s"
        time.sleep(0.05)
    return found


class RayPool:
    """A pool's server, and what its engine needs to know."""

    def __init__(self, folder: Path, cluster: RayCluster, client: Client, url: str) -> None:
        self.cluster = cluster
        self._client = client
        token = (folder / "token").read_text().strip()
        self.launch = AgentLaunch(
            pool="0000",
            server=url,
            token=token,
            slots=2,
            jobs_dir=str(folder / "shared"),
        )

    @contextlib.contextmanager
    def engine(self, gpus: int = 2) -> Iterator[RayEngine]:
        """Connect to the cluster; nothing is left there at the end."""
        launch = replace(self.launch, slots=gpus)
        engine = RayEngine(launch, gpus_per_node=gpus, address=self.cluster.address)
        try:
            yield engine
            for node in engine.look().nodes:
                engine.release(node.name, 0.0)
            awaited("an empty cluster", lambda: not engine.look().nodes)
        finally:
            engine.close()

    def slots(self, node: str) -> list[int]:
        """Give the numbers of a node's slots, once it has joined."""

        def look() -> list[int]:
            nodes = self._client.get("/nodes")["items"]
            return [
                slot["index"]
                for each in nodes
                if each["name"] == node and each["is_up"] and not each["is_silent"]
                for slot in each["slots"]
            ]

        return awaited(f"{node} in the pool", look)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayPool]:
    """Run a server and a cluster of two machines."""
    folder = tmp_path_factory.mktemp("pool")
    words = ["server", "--port", "0", "--state-dir", str(folder)]
    server = subprocess.Popen([sys.executable, "-P", "-m", "coddl", *words])
    cluster = RayCluster([GPUS, GPUS])
    try:
        announced = folder / "server.json"
        awaited("a server", announced.exists)
        with Client(find("", str(folder), env={}), within_s=10) as client:
            awaited("a server that decides", client.is_ready)
            url = json.loads(announced.read_text())["url"]
            yield RayPool(folder, cluster, client, url)
    finally:
        cluster.close()
        server.terminate()
        server.wait(PATIENCE_S)


def state_of(engine: RayEngine, name: str) -> EngineNode | None:
    return next((node for node in engine.look().nodes if node.name == name), None)


def is_up(engine: RayEngine, name: str) -> bool:
    node = state_of(engine, name)
    return node is not None and node.state == "up"


def processes_of(node: str) -> list[int]:
    """Find what runs of a node's agent, by its command lines."""
    found = []
    for each in processes():
        with contextlib.suppress(OSError):
            if node.encode() in Path(f"/proc/{each.pid}/cmdline").read_bytes():
                found.append(each.pid)
    return found


def gpu_task(gpus: int) -> Any:  # Any: a reference of Ray's
    """Use GPUs as another user of the cluster does; gives their ids and the machine's."""
    task = ray.remote(lambda: (ray.get_gpu_ids(), ray.get_runtime_context().get_node_id()))
    return task.options(num_gpus=gpus, num_cpus=0).remote()


def is_done(task: Any) -> bool:  # Any: a reference of Ray's
    return bool(ray.wait([task], timeout=0)[0])


def test_a_node_joins_the_pool_and_its_gpus_are_not_for_others_until_it_is_released(
    pool: RayPool,
) -> None:
    with pool.engine() as engine:
        assert engine.look().more == 4, "2 nodes with 2 GPUs on each of 2 machines"
        names = [engine.acquire() for _ in range(3)]
        assert {node.name for node in engine.look().nodes} == set(names)
        assert all(len(pool.slots(name)) == 2 for name in names)
        awaited("nodes that are up", lambda: all(is_up(engine, name) for name in names))
        awaited("the count of what is free", lambda: engine.look().more == 1)

        whole_machine = gpu_task(GPUS)
        ids, machine = ray.get(gpu_task(2), timeout=PATIENCE_S)
        agents = {name: engine.report(name) for name in names}
        beside = [name for name, report in agents.items() if report.ray_node == machine]
        assert len(beside) == 1, "three nodes leave half a machine free"
        assert sorted([*ids, *pool.slots(beside[0])]) == [0, 1, 2, 3]
        assert not is_done(whole_machine)

        for name in beside:
            engine.release(name, RELEASE_S)
        awaited("its end", lambda: state_of(engine, beside[0]) is None)
        assert ray.get(whole_machine, timeout=PATIENCE_S)[1] == machine
        assert not processes_of(beside[0])


def test_gpus_are_free_only_after_the_agent_has_ended(pool: RayPool) -> None:
    with pool.engine(GPUS) as engine:
        names = [engine.acquire(), engine.acquire()]
        awaited("nodes that are up", lambda: all(is_up(engine, name) for name in names))
        agent = engine.report(names[0]).pid
        os.kill(agent, signal.SIGSTOP)  # it can't end
        task = gpu_task(1)
        engine.release(names[0], PATIENCE_S)
        node = state_of(engine, names[0])
        assert node == EngineNode(names[0], "releasing", because="it was released")
        assert not is_done(task)
        os.kill(agent, signal.SIGCONT)
        ray.get(task, timeout=PATIENCE_S)
        assert not processes_of(names[0])


def test_an_agent_that_does_not_end_in_time_is_killed(pool: RayPool) -> None:
    with pool.engine() as engine:
        name = engine.acquire()
        awaited("a node that is up", lambda: is_up(engine, name))
        os.kill(engine.report(name).pid, signal.SIGSTOP)
        engine.release(name, 0.5)
        awaited("its end", lambda: state_of(engine, name) is None)
        assert not processes_of(name)


def test_an_engine_finds_the_nodes_of_an_earlier_one(pool: RayPool) -> None:
    with contextlib.ExitStack() as stack:
        address = pool.cluster.address
        before = RayEngine(pool.launch, gpus_per_node=2, address=address, autoscales=True)
        name = before.acquire()
        assert before.look().more is None, "Ray may bring machines"
        awaited("a node that is up", lambda: is_up(before, name))
        agent = before.report(name).pid
        before.close()
        engine = stack.enter_context(pool.engine())
        awaited("the node", lambda: is_up(engine, name))
        assert engine.report(name).pid == agent
        engine.release(name, RELEASE_S)
        engine.release(name, RELEASE_S)  # a repeat
        awaited("its end", lambda: state_of(engine, name) is None)
        engine.release(name, RELEASE_S)  # a ghost


def test_a_node_that_can_not_be_had_yet_says_why_and_can_be_released(pool: RayPool) -> None:
    with pool.engine(GPUS) as engine:
        for _ in range(2):
            engine.acquire()
        late = engine.acquire()
        node = state_of(engine, late)
        assert node == EngineNode(
            late, "starting", because="no machine of the Ray cluster has 4 GPUs free"
        )
        assert engine.look().more == 0
        engine.release(late, RELEASE_S)
        assert state_of(engine, late) is None
    with pool.engine(2 * GPUS) as engine:
        node = state_of(engine, engine.acquire())
        assert node is not None
        assert node.because == "no machine of the Ray cluster has 8 GPUs"


def test_a_node_whose_agent_fails_is_given_back_with_its_reason(pool: RayPool) -> None:
    wrong = replace(pool.launch, token="wrong")
    engine = RayEngine(wrong, gpus_per_node=2, address=pool.cluster.address)
    try:
        name = engine.acquire()
        seen: list[EngineNode] = []

        def is_gone() -> bool:
            node = state_of(engine, name)
            seen.extend([node] if node else [])
            return node is None

        awaited("its end", is_gone)
        assert seen[-1].state == "releasing"
        assert "its agent ended: " in seen[-1].because
        assert "token" in seen[-1].because
        awaited("its GPUs", lambda: engine.look().more == 4)
    finally:
        engine.close()


def test_a_node_whose_agent_has_lost_its_guard_is_given_back(pool: RayPool) -> None:
    with pool.engine() as engine:
        name = engine.acquire()
        awaited("a node that is up", lambda: is_up(engine, name))
        agent = process(engine.report(name).pid)
        assert agent is not None
        os.kill(agent.parent, signal.SIGKILL)
        awaited("its end", lambda: state_of(engine, name) is None)
        assert not processes_of(name)


def test_a_node_whose_actor_is_killed_is_given_back_when_its_agent_has_ended(pool: RayPool) -> None:
    with pool.engine() as engine:
        name = engine.acquire()
        awaited("a node that is up", lambda: is_up(engine, name))
        agent = engine.report(name).pid
        os.kill(agent, signal.SIGSTOP)  # it can't end
        ray.kill(ray.get_actor(f"coddl-{pool.launch.pool}-{name}"))
        awaited("its end", lambda: not is_up(engine, name))
        looks = 0
        for _ in range(10):
            node = state_of(engine, name)
            if not Path(f"/proc/{agent}").exists():
                break  # its guard kills it after a minute, and so many looks may take that long
            assert node is not None
            assert node.state == "releasing", "its GPUs are kept from others while it lives"
            looks += 1
        assert looks
        with contextlib.suppress(ProcessLookupError):
            os.kill(agent, signal.SIGCONT)
        awaited("its end", lambda: state_of(engine, name) is None)
        assert not processes_of(name)
        awaited("its GPUs", lambda: engine.look().more == 4)


@pytest.mark.parametrize("within_s", [900, None])
def test_a_machine_that_ray_drains_leaves_at_its_deadline(
    pool: RayPool, within_s: int | None
) -> None:
    machine = pool.cluster.add(2 * GPUS)
    with pool.engine(2 * GPUS) as engine:
        name = engine.acquire()
        awaited("a node that is up", lambda: is_up(engine, name))
        earliest_s = time.time() + (within_s or DRAIN_S)
        assert engine.report(name).ray_node == machine.id
        pool.cluster.drain(machine.id, within_s)
        node = state_of(engine, name)
        assert node is not None
        assert node.state == "up"
        assert node.leaves_at_s is not None
        assert earliest_s - 1 <= node.leaves_at_s <= time.time() + (within_s or DRAIN_S)
        assert node.because == "Ray drains its machine"
        engine.release(name, RELEASE_S)
        awaited("its end", lambda: state_of(engine, name) is None)
    awaited("the end of the machine", lambda: not Path(f"/proc/{machine.raylet}/exe").exists())


def test_nothing_is_left_of_a_machine_that_died(pool: RayPool) -> None:
    machine = pool.cluster.add(2 * GPUS)
    with pool.engine(2 * GPUS) as engine:
        name = engine.acquire()
        awaited("a node that is up", lambda: is_up(engine, name))
        pool.cluster.kill(machine)
        awaited("its end", lambda: state_of(engine, name) is None)
        awaited("the end of its agent", lambda: not processes_of(name))
        groups = ray.util.placement_group_table().values()
        assert {each["state"] for each in groups if each["name"].endswith(name)} == {"REMOVED"}


def test_a_head_that_does_not_answer_is_waited_for(pool: RayPool) -> None:
    with pool.engine() as engine:
        name = engine.acquire()
        awaited("a node that is up", lambda: is_up(engine, name))
        os.kill(pool.cluster.head, signal.SIGSTOP)
        try:
            with pytest.raises(EngineUnavailable, match="no answer within"):
                engine.look()
        finally:
            os.kill(pool.cluster.head, signal.SIGCONT)

        def is_back() -> bool:
            with contextlib.suppress(EngineUnavailable):
                return is_up(engine, name)
            return False

        awaited("the head", is_back)


def test_doctor_sees_all_machines_of_a_cluster(pool: RayPool) -> None:
    launch = replace(pool.launch, slots=GPUS)
    before = RayEngine(launch, gpus_per_node=GPUS, address=pool.cluster.address)
    name = before.acquire()
    awaited("a node that is up", lambda: is_up(before, name))
    before.close()  # a process is connected to Ray once
    asked = RayQuestion(
        address=pool.cluster.address,
        gpus_per_node=GPUS,
        server=pool.launch.server,
        jobs_dir="/proc/x",
    )
    facts = gather_ray(asked)
    with pool.engine(GPUS) as engine:
        awaited("the node", lambda: is_up(engine, name))
    assert (facts.trouble, facts.cluster_ray, facts.python) == (
        None,
        facts.ray,
        facts.cluster_python,
    )
    assert facts.head is not None
    assert facts.head.number("health_check_period_ms") == 1000
    assert facts.head.store == ""
    machines = [node for node in facts.nodes if node.gpus]
    assert len(facts.nodes) > len(machines) >= 2
    assert sum(node.gpus - node.gpus_free for node in machines) == GPUS
    for node in machines:
        assert (node.trouble, node.coddl, node.server_trouble) == ("", __version__, "")
        assert node.jobs_dir_trouble.startswith("/proc/x does not exist")


def test_an_agent_finds_its_gpus_and_nothing_that_ray_has_set_for_itself() -> None:
    initial = {"HOME": "/root", "RAY_JOB_ID": "01", "OMP_NUM_THREADS": "4", "RAY_ADDRESS": "auto"}
    now = {**initial, "PYTHONBREAKPOINT": "ray.util.rpdb.set_trace", "CUDA_VISIBLE_DEVICES": "0"}
    assert agent_env(now, initial, ("1", "3")) == {
        "HOME": "/root",
        "OMP_NUM_THREADS": "4",
        "RAY_ADDRESS": "auto",
        "CUDA_VISIBLE_DEVICES": "1,3",
    }
    assert "OMP_NUM_THREADS" not in agent_env({"OMP_NUM_THREADS": "1"}, {}, ())


def test_agents_on_nodes_trust_the_server_by_the_pools_ca() -> None:
    launch = AgentLaunch(pool="p", server="https://head:1", token="t", ca="-----BEGIN")
    order = order_of(launch, "n1", ())
    assert order.ca == "-----BEGIN"
    assert f"--tls-ca {order.state_dir}/tls-ca.pem" in " ".join(order.words)
    assert "--tls-ca" not in order_of(replace(launch, ca=""), "n1", ()).words


def test_a_cluster_that_does_not_answer_is_said_so() -> None:
    launch = AgentLaunch(pool="0000", server="http://127.0.0.1:1", token="token")
    with pytest.raises(EngineUnavailable, match="does not answer"):
        RayEngine(launch, gpus_per_node=1, address="127.0.0.1:1")


@pytest.mark.parametrize(
    ("gpus", "address", "slots", "because"),
    [
        (0, "auto", None, "at least 1 GPU"),
        (1, "ray://head:10001", None, "Ray Client"),
        (2, "auto", 3, "3 CPU slots can't have the ids of 2 GPUs"),
    ],
)
def test_what_can_not_be_had_from_ray_is_refused(
    gpus: int, address: str, slots: int | None, because: str
) -> None:
    launch = AgentLaunch(pool="0000", server="http://127.0.0.1:1", token="token", slots=slots)
    with pytest.raises(UserError, match=because):
        RayEngine(launch, gpus_per_node=gpus, address=address)
