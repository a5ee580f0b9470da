"""What can befall nodes in a Slurm cluster of four machines, one row each: a strict training goes
through it and ends with a lone run's bits. `make test-engines` runs it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from coddl.agent.orphans import Process, below
from coddl.api.client import Client, find
from coddl.api.code import pack
from tests.e2e.pool import OVER, SCRIPTS
from tests.e2e.scaled_pool import GPUS, check_end, lone, submit, wait_empty
from tests.e2e.slurm_pool import MACHINES, Gpu, SlurmPool, is_there, processes_in, slurm_pool
from tests.engines.slurm_cluster import why_not

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "Slurm is here"),
]

ALL: Final = GPUS * MACHINES
JOBS: Final = 50
JOBS_S: Final = 1200.0  # in which they all end, on a slow machine


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SlurmPool]:
    with slurm_pool(tmp_path) as pool:
        yield pool


def sleep(pool: SlurmPool, *options: str, user: str | None = None) -> str:
    """Hand in a job that holds the GPUs of a machine; give its number."""
    return pool.cluster.submit(f"--gres=gpu:{GPUS}", *options, script="sleep 3600", user=user)


def wait_running(pool: SlurmPool, *jobs: str) -> None:
    def are_running() -> bool:
        return all(pool.cluster.state_of(job) == "RUNNING" for job in jobs)

    pool.wait(f"jobs {jobs} of Slurm", are_running)


def test_nodes_are_renewed_before_their_time_limit(pool: SlurmPool) -> None:
    pool.up("--time", 2)
    result = submit(pool, pace_s=0.4)
    first = set(pool.pilots())
    had: list[int] = []  # GPUs at each look
    overlaps: list[set[str]] = []

    def is_renewed() -> bool:
        had.append(pool.job("bert")["gpus"])
        running = {node for node, state in pool.states().items() if state == "RUNNING"}
        overlaps.append(running if running & first and running - first else set())
        return not first & set(pool.pilots())

    pool.wait("the first nodes to be replaced", is_renewed, patience_s=240.0)
    assert any(overlaps), "others had come before they left"
    assert min(had) > 0, "the job was never without a node"
    pool.wait_size("bert", 2 * GPUS)
    pool.wait_steps("bert")
    check_end(pool, result, is_planned=True)
    assert "TIMEOUT" not in pool.states().values()


@pytest.mark.parametrize("partition", ["gpu", "spot"])
def test_nodes_are_preempted_without_and_with_a_grace_time(pool: SlurmPool, partition: str) -> None:
    pool.gpus, pool.batch = f"1..{ALL}", 2 * ALL  # so that it makes good use of all GPUs
    pool.up("--partition", partition, nodes=f"0..{MACHINES}")
    result = submit(pool, ALL, pace_s=0.4)
    urgent = [sleep(pool, "--partition=urgent") for _ in range(2)]
    wait_running(pool, *urgent)
    pool.wait_size("bert", ALL - 2 * GPUS)
    pool.wait_steps("bert")
    pool.cluster.run("scancel", *urgent)
    pool.wait_size("bert", ALL)
    pool.wait_steps("bert")
    check_end(pool, result, is_planned=True)


@pytest.mark.parametrize("which", ["lead", "other"])
def test_a_pilot_job_is_cancelled(pool: SlurmPool, which: str) -> None:
    pool.up()
    result = submit(pool)
    node = pool.node(which)
    pool.cluster.run("scancel", node.removeprefix("slurm-"))
    pool.wait_without(node)
    assert node not in pool.pilots()
    check_end(pool, result, is_planned=True)
    wait_empty(pool)


def test_a_machine_is_drained(pool: SlurmPool) -> None:
    pool.up()
    result = submit(pool)
    node, machine = next(iter(pool.pilots().items()))
    update = ("scontrol", "update", f"NodeName={machine}")
    pool.cluster.run(*update, "State=DRAIN", "Reason=fan")
    pool.wait("it to be empty", lambda: pool.cluster.states()[machine] == "drained")
    pool.wait_without(node)
    assert "Slurm drains its machine: fan" in pool.coddl("events", "--tail", 500).stdout
    pool.cluster.run(*update, "State=RESUME")
    pool.wait("it to be back", lambda: pool.cluster.states()[machine] == "idle")
    check_end(pool, result, is_planned=True)
    wait_empty(pool)


def family_of(pool: SlurmPool, node: str) -> list[Process]:
    """Give the processes of a node: its pilot job's, the agent's, and those of jobs."""
    found: dict[int, Process] = {}
    for each in processes_in(pool.cluster):
        path = Path(f"/proc/{each.pid}")
        words = path.joinpath("cmdline").read_bytes().split(b"\0")
        env = path.joinpath("environ").read_bytes().split(b"\0")
        if node.encode() in words or f"SLURM_JOB_ID={node.removeprefix('slurm-')}".encode() in env:
            found[each.pid] = each
            for children in below(each.pid).values():
                found |= {child.pid: child for child in children}
    return list(found.values())


def test_a_slurmd_is_killed(pool: SlurmPool) -> None:
    pool.up()
    result = submit(pool)
    node = pool.node("other")
    machine, family = pool.pilots()[node], family_of(pool, node)
    assert len(family) > GPUS + 2, "a pilot, an agent and workers"
    pool.cluster.kill_node(machine)
    pool.wait("Slurm to notice", lambda: pool.cluster.states()[machine].startswith("down"))
    pool.wait_without(node)
    assert machine not in pool.pilots().values()
    pool.cluster.start_node(machine)
    pool.wait("the machine to be back", lambda: pool.cluster.states()[machine] == "idle")
    pool.wait("its processes to end", lambda: not any(is_there(each) for each in family))
    check_end(pool, result)
    wait_empty(pool)


def test_slurmctld_is_killed_and_started_again(pool: SlurmPool) -> None:
    pool.up()
    result = submit(pool)
    before = pool.nodes()
    pool.cluster.kill_controller()
    pool.wait("the pool to notice", lambda: "Slurm does not answer" in pool.coddl("nodes").stdout)
    pool.wait_steps("bert")
    pool.cluster.start_controller()
    pool.wait("Slurm to be back", lambda: "does not answer" not in pool.coddl("nodes").stdout)
    pool.wait_steps("bert")
    assert pool.nodes() == before, "nothing was lost with it"
    pool.coddl("resize", "bert", f"1..{GPUS}")
    pool.wait("a node to be given back", lambda: len(pool.pilots()) == len(pool.nodes()) == 1)
    pool.coddl("resize", "bert", f"1..{2 * GPUS}")
    pool.wait_size("bert", 2 * GPUS)
    pool.wait_steps("bert")
    check_end(pool, result, is_planned=True)
    wait_empty(pool)


def test_a_pool_scales_to_zero_and_back(pool: SlurmPool) -> None:
    pool.up()
    result = submit(pool)
    pool.coddl("suspend", "bert")
    pool.wait("all nodes to be given back", lambda: not pool.cluster.jobs() and not pool.nodes())
    pool.coddl("resume", "bert")
    pool.wait_size("bert", 2 * GPUS)
    pool.wait_steps("bert")
    check_end(pool, result, is_planned=True)
    wait_empty(pool)
    assert not pool.cluster.jobs()


def test_many_jobs_come_at_once(pool: SlurmPool) -> None:
    pool.up(nodes=f"0..{MACHINES}")
    archive = pack(SCRIPTS, pool.folder / "scripts.tar.gz")
    words = {"script": "train.py", "code": archive.hash}
    results = [pool.folder / f"{number}.hash" for number in range(JOBS)]
    given = [["--strict", "--steps", "10", "--result", str(result)] for result in results]
    gpus, env = {"min": 1, "max": GPUS}, {"E2E_SPOTS": str(pool.spots)}
    pilots: list[int] = []
    with Client(find("", str(pool.state), env={})) as client:
        with archive.path.open("rb") as file:
            client.send_code(archive.hash, file)
        asked = [{**words, "args": each, "gpus": gpus, "env": env} for each in given]
        jobs = [client.submit(each)["id"] for each in asked]

        def states() -> set[str]:
            pilots.append(len(pool.pilots()))
            return {client.get(f"/jobs/{job}")["state"] for job in jobs}

        pool.wait("the end of all jobs", lambda: states() <= {*OVER}, JOBS_S)
        assert states() == {"SUCCEEDED"}
    assert {result.read_text() for result in results} == {lone(pool.folder, steps=10)}
    assert max(pilots) == MACHINES, "as many as there may be, and never more"
    wait_empty(pool)
    pool.wait("an empty queue", lambda: not pool.cluster.jobs())


def test_another_user_of_slurm_never_shares_a_gpu(pool: SlurmPool) -> None:
    pool.gpus = f"1..{ALL}"
    first = sleep(pool, user="nobody")
    wait_running(pool, first)
    pool.up(nodes=f"0..{MACHINES}")
    result = submit(pool, ALL - GPUS)

    def checked() -> dict[str, set[Gpu]]:
        """Check that no GPU has two jobs; give what each job holds."""
        held = pool.held()
        granted = [gpu for gpus in held.values() for gpu in gpus]
        assert len(granted) == len(set(granted))
        for job, gpus in held.items():
            assert pool.said_by(job) in (set(), {gpu.id for gpu in gpus})
        return held

    held = checked()
    assert sum(map(len, held.values())) == ALL
    assert all(pool.said_by(job) for job in held if job != first)
    second = sleep(pool, user="nobody")
    pool.wait_steps("bert")
    assert pool.cluster.state_of(second) == "PENDING", "there is no GPU for it"
    pool.coddl("resize", "bert", f"1..{GPUS}")
    pool.wait("the second job of the other user", lambda: second in checked())
    held = checked()
    assert len(held[first] | held[second]) == 2 * GPUS
    check_end(pool, result, is_planned=True)
    checked()


def test_an_operator_requeues_a_pilot_job(pool: SlurmPool) -> None:
    pool.up()
    result = submit(pool)
    before, node = set(pool.pilots()), pool.node("other")
    job = node.removeprefix("slurm-")
    pool.cluster.run("scontrol", "update", f"JobId={job}", "Requeue=1")
    pool.cluster.run("scontrol", "requeue", job)
    pool.wait("another node", lambda: set(pool.pilots()) - before)
    pool.wait_without(node)
    pool.wait("it to leave the queue", lambda: node not in pool.pilots())
    said = pool.coddl("events", "--tail", 500).stdout
    assert said.count(f"node {node} joined from") == 1
    check_end(pool, result)
    wait_empty(pool)
