"""What `coddl doctor` makes of what was gathered."""

import base64
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coddl import __version__
from coddl.core.errors import UserError
from coddl.engines.doctor import ray_probe
from coddl.engines.doctor.machine import (
    FolderFacts,
    MachineFacts,
    look_at_folder,
    machine_results,
)
from coddl.engines.doctor.ray import HeadFacts, RayFacts, RayNodeFacts, ray_results
from coddl.engines.doctor.results import counts, has_failed
from coddl.engines.doctor.server import ServerFacts, server_results
from tests.engines.doctor_cases import Case, judged

GIB = 1 << 30
FOLDER = FolderFacts("/state", free_bytes=50 * GIB)
MACHINE = MachineFacts(
    system="Linux",
    python=(3, 11, 7),
    torch="2.13.0+cpu",
    torch_trouble="",
    gpus=("NVIDIA H200",) * 2,
    gpu_trouble=None,
    gpu_notes=(),
    cores=8,
    shm_bytes=64 * GIB,
    state_dir=FOLDER,
    jobs_dir=FOLDER,
)
SERVER = ServerFacts("http://head:7433", version=__version__, clock_ahead_s=1.0)
QUICK = HeadFacts(
    redis="10.0.0.5",
    settings={
        "health_check_period_ms": "1000",
        "health_check_timeout_ms": "2000",
        "health_check_failure_threshold": "3",
    },
)
NODE = RayNodeFacts(
    host="a/1234", gpus=4, gpus_free=4, python="3.11.7", coddl="0.1.0", torch="2.13.0"
)
RAY = RayFacts(
    ray="2.60.0",
    python="3.11.7",
    coddl="0.1.0",
    cluster_ray="2.60.0",
    cluster_python="3.11.7",
    address="10.0.0.5:6379",
    dashboard="10.0.0.5:8265",
    head=QUICK,
    nodes=(NODE, replace(NODE, host="b/5678")),
    gpus_per_node=4,
    server="http://head:7433",
)
ERROR = UserError("it can't be used", "it is broken", "mend it")

MACHINES = {
    "a good one": Case(MACHINE, words="2 x NVIDIA H200"),
    "one without GPUs": Case(replace(MACHINE, gpus=()), words="8 CPU cores can be slots"),
    "a Mac": Case(replace(MACHINE, system="Darwin"), "FAIL", "system", "need Linux"),
    "an old Python": Case(replace(MACHINE, python=(3, 10, 1)), "FAIL", "python", "3.11 or newer"),
    "no torch": Case(
        replace(MACHINE, torch="", torch_trouble="No module named 'torch'"),
        *("WARN", "torch", "No module named 'torch'"),
    ),
    "an old torch": Case(replace(MACHINE, torch="2.9.1"), "WARN", "torch", "2.11 or newer"),
    "a newer major torch": Case(replace(MACHINE, torch="3.0.0a0"), words="3.0.0a0"),
    "a driver that does not answer": Case(
        replace(MACHINE, gpu_trouble=ERROR), "FAIL", "GPUs", "it is broken"
    ),
    "a GPU in MIG mode": Case(
        replace(MACHINE, gpu_notes=("GPU 1 is not used: MIG",)), "WARN", "GPUs", "GPU 1 is not"
    ),
    "a container's shared memory": Case(
        replace(MACHINE, shm_bytes=64 << 20), "WARN", "shared memory", "0.1 GiB free in /dev/shm"
    ),
    "a folder without locks": Case(
        replace(MACHINE, jobs_dir=FolderFacts("/nfs", "/nfs: No locks available")),
        *("FAIL", "jobs folder", "No locks available; another --jobs-dir"),
    ),
    "a full disk": Case(
        replace(MACHINE, state_dir=FolderFacts("/state", free_bytes=1 << 20)),
        *("WARN", "state folder", "0.0 GiB free"),
    ),
}


@pytest.mark.parametrize("case", MACHINES.values(), ids=MACHINES.keys())
def test_a_machine_is_judged(case: Case) -> None:
    judged(machine_results(case.facts), case)


SERVERS = {
    "no pool": Case(None, words="no pool is running"),
    "a good one": Case(SERVER, words="here and on the server"),
    "one that refuses": Case(replace(SERVER, trouble=ERROR), "FAIL", "server", "it is broken"),
    "another version": Case(replace(SERVER, version="9.9"), "WARN", "version", "9.9 on the server"),
    "a slow clock": Case(replace(SERVER, clock_ahead_s=-90.0), "WARN", "clock", "90 s behind"),
    "no clock": Case(replace(SERVER, clock_ahead_s=None)),
    "a full disk": Case(replace(SERVER, problems=("disk full",)), "WARN", "server", "disk full"),
    "a lost node": Case(replace(SERVER, nodes_down=("n1",)), "WARN", "nodes", "n1"),
    "an engine that is away": Case(
        replace(SERVER, engine="ray", engine_trouble="no answer within 5 s"),
        *("WARN", "engine", "engine ray does not answer: no answer within 5 s"),
    ),
}


@pytest.mark.parametrize("case", SERVERS.values(), ids=SERVERS.keys())
def test_a_server_is_judged(case: Case) -> None:
    judged(server_results(case.facts), case)


def with_node(**changes: Any) -> RayFacts:  # Any: fields of a node
    return replace(RAY, nodes=(NODE, replace(NODE, host="b/5678", **changes)))


CLUSTERS = {
    "a good one": Case(RAY, words="2 of 2 nodes with 4 GPUs are free"),
    "one that can't be reached": Case(
        RayFacts(ray="2.60.0", trouble=ERROR), "FAIL", "ray", "it is broken"
    ),
    "another Ray": Case(
        replace(RAY, cluster_ray="2.61.0"), "FAIL", "ray version", "pip install ray==2.61.0"
    ),
    "another Python": Case(
        replace(RAY, cluster_python="3.12.1"), "FAIL", "ray python", "Python 3.12.1"
    ),
    "Ray's own health check": Case(
        replace(RAY, head=HeadFacts("10.0.0.5")),
        *("WARN", "ray health check", "dead raylet is noticed after 15 s"),
    ),
    "no Redis": Case(replace(RAY, head=replace(QUICK, redis="")), "WARN", "ray head", "REDIS"),
    "RocksDB": Case(
        replace(RAY, head=HeadFacts("", {**QUICK.settings, "gcs_storage": "rocksdb"})),
        words="rocksdb keeps its state",
    ),
    "a GCS port that workers may take": Case(
        replace(with_node(worker_ports=(10002, 19999)), address="10.0.0.5:12345"),
        *("WARN", "ray ports", "GCS port 12345 is among the workers' ports 10002..19999"),
    ),
    "workers that take any port": Case(with_node(worker_ports=(0, 0))),
    "GPUs that others hold": Case(
        replace(RAY, nodes=(replace(NODE, gpus_free=3),)), "WARN", "ray GPUs", "0 of 1"
    ),
    "nodes that are too small": Case(
        replace(RAY, gpus_per_node=8), "FAIL", "ray GPUs", "--gpus-per-node 4"
    ),
    "a GPU's size": Case(
        with_node(gpu_sizes=(("NVIDIA H200", 140 * GIB),) * 4), words="NVIDIA H200 140.0 GiB"
    ),
    "a node that does not answer": Case(
        with_node(trouble="no answer"), "FAIL", "ray node b/5678", "no answer"
    ),
    "a node without coddl": Case(
        with_node(coddl=""), "FAIL", "ray node b/5678", "pip install 'coddl[ray]==0.1.0'"
    ),
    "a node with another coddl": Case(
        with_node(coddl="0.2.0"), "FAIL", "ray node b/5678", "coddl 0.2.0 there, 0.1.0 here"
    ),
    "a node without torch": Case(with_node(torch=""), "WARN", "ray node b/5678", "torch"),
    "a nice node": Case(with_node(niceness=15), "WARN", "ray node b/5678", "RAY_worker_niceness=0"),
    "a node that can't reach the server": Case(
        with_node(server_trouble="Connection refused"),
        *("FAIL", "ray node b/5678", "http://head:7433 can't be reached from there"),
    ),
    "a node without the jobs folder": Case(
        with_node(jobs_dir_trouble="/nfs can't be written to"),
        *("FAIL", "ray node b/5678", "/nfs can't be written to"),
    ),
    "a head, on which no agent will be": Case(with_node(gpus=0, gpus_free=0, coddl="")),
}


@pytest.mark.parametrize("case", CLUSTERS.values(), ids=CLUSTERS.keys())
def test_a_ray_cluster_is_judged(case: Case) -> None:
    judged(ray_results(case.facts), case)


def test_a_head_that_can_not_be_read_is_said_so() -> None:
    found = [each.check for each in ray_results(replace(RAY, head=None)) if each.state == "WARN"]
    assert found == ["ray health check", "ray head"]


def test_results_are_counted() -> None:
    results = [*server_results(replace(SERVER, problems=("a", "b"))), *server_results(None)]
    assert counts(results) == "6 checks: 4 OK, 2 WARN, 0 FAIL"
    assert not has_failed(results)
    assert has_failed(server_results(replace(SERVER, trouble=ERROR)))


def test_folders_are_tried_and_left_as_they_were(tmp_path: Path) -> None:
    found = look_at_folder(tmp_path / "not" / "yet")
    assert (found.trouble, found.free_bytes > 0) == ("", True)
    assert list(tmp_path.iterdir()) == []
    assert look_at_folder(Path("/proc/coddl")).trouble.startswith("/proc: ")


def test_a_probe_tells_what_can_be_sent_as_json(tmp_path: Path) -> None:
    told = json.loads(json.dumps(ray_probe.probe("http://127.0.0.1:1", str(tmp_path / "jobs"))))
    assert told["coddl"] == __version__
    assert told["niceness"] == os.getpriority(os.PRIO_PROCESS, 0)
    assert told["server_trouble"] == "Connection refused"
    assert told["jobs_dir_trouble"] == ""
    assert told["head"] == {}, "there is none beside a process that is no worker of Ray"


def test_a_probe_reads_options_of_processes() -> None:
    config = base64.b64encode(b'{"a": 1}').decode()
    words = ["/x/gcs_server", f"--config_list={config}", "--session-name=s"]
    assert ray_probe._option(words, "config_list") == config
    assert ray_probe._option(words, "redis_address") == ""
