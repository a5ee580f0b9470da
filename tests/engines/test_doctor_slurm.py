"""What `coddl doctor` makes of a Slurm cluster: of what was gathered, and of a real one."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coddl import __version__
from coddl.core.errors import UserError
from coddl.engines.doctor import slurm_probe
from coddl.engines.doctor.slurm import SlurmFacts, SlurmNodeFacts, slurm_results
from coddl.engines.doctor.slurm_gather import node_facts
from coddl.engines.slurm.commands import SlurmCommands, SlurmNode, SlurmVerdict
from coddl.engines.slurm.options import SlurmOptions
from tests.engines.doctor_cases import Case, judged
from tests.engines.slurm_cluster import SlurmCluster, why_not

SETTINGS = {
    "ClusterName": "hpc",
    "KillWait": "30 sec",
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "REQUEUE",
    "ProctrackType": "proctrack/cgroup",
    "SelectTypeParameters": "CR_CORE_MEMORY",
    "DefMemPerNode": "UNLIMITED",
    "DefMemPerCPU": "4000",
}
GPU = {
    "PartitionName": "gpu",
    "Default": "YES",
    "State": "UP",
    "MaxTime": "1-00:00:00",
    "DefaultTime": "01:00:00",
    "GraceTime": "0",
    "PreemptMode": "REQUEUE",
    "PriorityTier": "1",
}
URGENT = {**GPU, "PartitionName": "urgent", "Default": "NO", "PreemptMode": "OFF"}
URGENT["PriorityTier"] = "10"
NODE = SlurmNode("n1", "idle", 64, 4)
FACTS = SlurmFacts(
    options=SlurmOptions(time="8:00:00"),
    gpus_per_node=4,
    coddl="0.1.0",
    executable="/shared/venv/bin/python",
    version="23.11.4",
    answer_s=0.04,
    settings=SETTINGS,
    partitions=(GPU, URGENT),
    nodes=(NODE, SlurmNode("n2", "mixed", 64, 8)),
    verdict=SlurmVerdict(True, "", 1000.0),
    asked_at_s=1000.0,
    node=SlurmNodeFacts(outcome="answered", host="n1", python="3.11.7", coddl="0.1.0", gpu_ids="0"),
    server="http://head:7433",
    jobs_dir="/shared/jobs",
)
ERROR = UserError("Slurm does not answer", "no answer within 30 s", "scontrol ping")


def with_setting(**changes: str) -> SlurmFacts:
    return replace(FACTS, settings={**SETTINGS, **changes})


def with_partition(options: SlurmOptions | None = None, **changes: str) -> SlurmFacts:
    return replace(FACTS, options=options or FACTS.options, partitions=({**GPU, **changes}, URGENT))


def with_node(**changes: Any) -> SlurmFacts:  # Any: fields of a node
    assert FACTS.node is not None
    return replace(FACTS, node=replace(FACTS.node, **changes))


def with_states(*states: str) -> SlurmFacts:
    return replace(FACTS, nodes=tuple(NODE._replace(state=each, reason="fan") for each in states))


def refused(said: str) -> SlurmFacts:
    return replace(FACTS, verdict=SlurmVerdict(False, said), node=None)


CLUSTERS = {
    "a good one": Case(FACTS, words="23.11.4, cluster hpc, answers in 0.04 s"),
    "no commands": Case(
        replace(FACTS, missing=("sbatch", "squeue")), "FAIL", "slurm", "not found: sbatch, squeue"
    ),
    "one that does not answer": Case(
        replace(FACTS, trouble=ERROR), "FAIL", "slurm", "no answer within 30 s"
    ),
    "one that answers slowly": Case(
        replace(FACTS, answer_s=2.5), "WARN", "slurm", "answers in 2.50 s"
    ),
    "a partition that does not exist": Case(
        replace(FACTS, options=SlurmOptions(partition="big"), node=None),
        *("FAIL", "slurm partition", "the partitions are: gpu, urgent; --partition gpu"),
    ),
    "no default partition": Case(
        replace(with_partition(Default="NO"), node=None),
        *("FAIL", "slurm partition", "the cluster has no default"),
    ),
    "a partition that is down": Case(
        with_partition(State="DOWN"), "FAIL", "slurm partition", "--partition urgent"
    ),
    "a limit within the partition's": Case(FACTS, words="8:00:00 for each node, of at most 1-00"),
    "a limit above the partition's": Case(
        with_partition(SlurmOptions(time="2-0")),
        *("FAIL", "slurm time limit", "allows at most 1-00:00:00; --time 1-00:00:00"),
    ),
    "no limit, where there must be one": Case(
        with_partition(SlurmOptions(time="UNLIMITED")),
        *("FAIL", "slurm time limit", "allows at most 1-00:00:00"),
    ),
    "no limit, where none is needed": Case(
        with_partition(SlurmOptions(time="UNLIMITED"), MaxTime="UNLIMITED")
    ),
    "no limit at all": Case(
        with_partition(SlurmOptions(), MaxTime="UNLIMITED", DefaultTime="NONE"),
        words="none in partition gpu",
    ),
    "a default limit": Case(with_partition(SlurmOptions()), words="01:00:00 for each node, the"),
    "a short default limit": Case(
        with_partition(SlurmOptions(), DefaultTime="00:05:00"),
        *("WARN", "slurm time limit", "00:05:00 for each node"),
    ),
    "machines": Case(FACTS, words="2 machines have 4 GPUs or more: 1 idle, 1 mixed"),
    "one machine": Case(
        replace(FACTS, gpus_per_node=8), words="1 machine has 8 GPUs or more: 1 mixed"
    ),
    "machines that are too small": Case(
        replace(FACTS, gpus_per_node=16, verdict=None, node=None),
        *("FAIL", "slurm GPUs", "the largest has 8; --gpus-per-node 8"),
    ),
    "machines without GPUs": Case(
        replace(FACTS, nodes=(NODE._replace(gpus=0),), verdict=None, node=None),
        *("FAIL", "slurm GPUs", "Slurm knows of no GPUs there"),
    ),
    "machines that are drained": Case(
        with_states("drained", "down*"), "WARN", "slurm GPUs", "1 down, 1 drained: none takes jobs"
    ),
    "machines that are silent": Case(with_states("idle*"), "WARN", "slurm GPUs", "fan"),
    "machines of which one is drained": Case(with_states("drained", "allocated")),
    "machines that are asleep": Case(with_states("idle~"), words="1 idle"),
    "a pilot job that starts now": Case(FACTS, words="Slurm would start it now"),
    "a pilot job that starts later": Case(
        replace(FACTS, verdict=SlurmVerdict(True, "", 1000.0 + 3.2 * 3600)),
        words="Slurm would start it in 3 h",
    ),
    "a pilot job that is refused": Case(
        refused("allocation failure: Invalid account"),
        *("FAIL", "slurm pilot job", "Slurm would not take it: Invalid account; other"),
    ),
    "a pilot job that has to wait": Case(
        refused("allocation failure: Requested nodes are busy"),
        *("WARN", "slurm pilot job", "Requested nodes are busy"),
    ),
    "no default of memory": Case(
        with_setting(DefMemPerCPU=""), "WARN", "slurm memory", "takes all memory of its machine"
    ),
    "memory of the partition": Case(
        replace(with_setting(DefMemPerCPU=""), partitions=({**GPU, "DefMemPerNode": "800"},)),
        words="800 MB per node",
    ),
    "memory for each GPU": Case(
        with_setting(DefMemPerCPU="", JobDefaults="DefCpuPerGPU=8,DefMemPerGPU=9000"),
        words="9000 MB per GPU",
    ),
    "memory that is given": Case(
        replace(
            with_setting(DefMemPerCPU=""), options=SlurmOptions(sbatch_args=("--mem-per-gpu=9G",))
        ),
        words="--mem-per-gpu=9G",
    ),
    "memory that is not shared out": Case(
        with_setting(DefMemPerCPU="", SelectTypeParameters="CR_CORE"), words="does not share"
    ),
    "preemption": Case(FACTS, words="jobs can be preempted (REQUEUE), with 30 s of KillWait"),
    "preemption with a notice": Case(
        replace(with_setting(KillWait="10 sec"), partitions=({**GPU, "GraceTime": "40"}, URGENT)),
        words="jobs can be preempted (REQUEUE), with 40 s of grace and 10 s of KillWait",
    ),
    "preemption that is too sudden": Case(
        with_setting(KillWait="10 sec"),
        *("WARN", "slurm preemption", "with 10 s of KillWait: after that they are killed"),
    ),
    "preemption that stops jobs": Case(
        with_partition(PreemptMode="GANG,SUSPEND"), "WARN", "slurm preemption", "are suspended"
    ),
    "preemption by QOS": Case(
        replace(with_setting(PreemptType="preempt/qos", PreemptMode="CANCEL"), partitions=(GPU,)),
        words="jobs can be preempted (CANCEL)",
    ),
    "nothing that preempts": Case(
        with_setting(PreemptType="preempt/none"), words="jobs are not preempted; KillWait is 30 s"
    ),
    "the partition that preempts": Case(
        replace(FACTS, options=SlurmOptions(partition="urgent")),
        words="jobs are not preempted, but preempt those of gpu; KillWait",
    ),
    "processes that can escape": Case(
        with_setting(ProctrackType="proctrack/linuxproc"),
        *("WARN", "slurm processes", "ProctrackType=proctrack/cgroup"),
    ),
    "no machine that is free": Case(
        with_node(outcome="busy", said="none is idle", host=""),
        *("WARN", "slurm node", "no machine was free to try it from: none is idle"),
    ),
    "no right to run commands": Case(
        with_node(outcome="refused", said="Access denied", host=""),
        *("WARN", "slurm node", "Access denied; srun"),
    ),
    "a machine that is silent": Case(
        with_node(outcome="silent", said="75 s were over", host=""),
        *("WARN", "slurm node", "75 s were over"),
    ),
    "a machine without this Python": Case(
        with_node(outcome="failed", said="No such file or directory", host=""),
        *("FAIL", "slurm node", "here it is /shared/venv/bin/python"),
    ),
    "a machine with another coddl": Case(
        with_node(coddl="0.2.0"), "FAIL", "slurm node n1", "coddl 0.2.0 there, 0.1.0 here"
    ),
    "a machine without ids of GPUs": Case(
        with_node(gpu_ids=""), "FAIL", "slurm node n1", "File= for each GPU in gres.conf"
    ),
    "a machine that can't reach the server": Case(
        with_node(server_trouble="Connection refused"),
        *("FAIL", "slurm node n1", "http://head:7433 can't be reached from there"),
    ),
    "a machine with another jobs folder": Case(
        with_node(jobs_dir_trouble="it is not the directory"),
        *("FAIL", "slurm node n1", "/shared/jobs can't be used there"),
    ),
    "a machine that shares the jobs folder": Case(FACTS, words="shares /shared/jobs with this"),
}


@pytest.mark.parametrize("case", CLUSTERS.values(), ids=CLUSTERS.keys())
def test_a_slurm_cluster_is_judged(case: Case) -> None:
    judged(slurm_results(case.facts), case)


def test_nothing_is_tried_where_it_could_preempt_jobs_or_wake_machines() -> None:
    facts = with_states("idle", "mixed", "idle~", "allocated", "drained")
    in_urgent = replace(facts, options=SlurmOptions(partition="urgent"))
    by_qos = replace(facts, settings={**SETTINGS, "PreemptType": "preempt/qos"})
    assert [node.state for node in facts.may_be_tried] == ["idle", "mixed"]
    assert [node.state for node in in_urgent.may_be_tried] == ["idle"]
    assert [node.state for node in by_qos.may_be_tried] == ["idle"]


ENDS = {
    "busy": (1, "srun: error: Unable to allocate resources: Requested nodes are busy", "15 s"),
    "refused": (1, "srun: error: Unable to allocate resources: Access denied", "Access denied"),
    "silent": (-15, "srun: forcing job termination", "75 s were over"),
    "failed": (2, "step: execve(): no such file\nsrun: error: task 0: Exited", "execve(): no such"),
}


@pytest.mark.parametrize("outcome", ENDS)
def test_a_command_that_did_not_run_says_why(outcome: str) -> None:
    code, said, words = ENDS[outcome]
    found = node_facts(subprocess.CompletedProcess([], code, "", said), 75.0)
    assert found.outcome == outcome
    assert words in found.said


def test_what_a_machine_tells_is_found_among_other_lines() -> None:
    printed = '{welcome}\ncoddl-doctor {"host": "n1", "coddl": "0.9", "new": 1}\nbye\n'
    found = node_facts(subprocess.CompletedProcess([], 0, printed, ""), 75.0)
    assert found == SlurmNodeFacts(outcome="answered", host="n1", coddl="0.9")


def test_a_probe_looks_for_the_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "NoDevFiles")
    (tmp_path / "marker").touch()
    told = slurm_probe.probe("http://127.0.0.1:1", str(tmp_path), str(tmp_path / "marker"))
    assert tuple(told) == slurm_probe.NAMES
    assert (told["coddl"], told["gpu_ids"]) == (__version__, "")
    assert (told["server_trouble"], told["jobs_dir_trouble"]) == ("Connection refused", "")
    elsewhere = slurm_probe.probe("", str(tmp_path), str(tmp_path / "other"))
    assert elsewhere["jobs_dir_trouble"].startswith("it is not the directory")


# With a real cluster.


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    if why := why_not():
        pytest.skip(why)
    with SlurmCluster(nodes=2) as found:
        yield found


def doctor(cluster: SlurmCluster, folder: Path, *words: str) -> tuple[int, dict[str, list[Any]]]:
    """Run the command; give its exit code, and what each check of Slurm says."""
    command = [sys.executable, "-P", "-m", "coddl", "doctor", "--engine", "slurm", "-o", "json"]
    env = {**os.environ, **cluster.env, "CODDL_STATE_DIR": str(folder)}
    done = subprocess.run([*command, *words], env=env, capture_output=True, text=True)
    assert done.stdout, done.stderr
    checks: dict[str, list[Any]] = {}
    for each in json.loads(done.stdout)["checks"]:
        checks.setdefault(each["check"], []).append(each)
    return done.returncode, checks


def test_a_real_cluster_is_fit(cluster: SlurmCluster, tmp_path: Path) -> None:
    code, checks = doctor(cluster, tmp_path, "--gpus-per-node", "2", "--time", "8:00:00")
    bad = [
        e for each in checks.values() for e in each if "slurm" in e["check"] and e["state"] != "OK"
    ]
    assert [each["check"] for each in bad] == ["slurm processes"], "it is proctrack/linuxproc"
    assert code == 0
    assert checks["slurm pilot job"][0]["what"] == "Slurm would start it now"
    said = [each["what"] for each in checks["slurm node n1"]]
    assert said[0].startswith(f"coddl {__version__}, Python ")
    assert said[1].startswith("CUDA_VISIBLE_DEVICES=")
    assert said[2] == f"shares {tmp_path}/jobs with this machine"
    assert list(tmp_path.iterdir()) == [], "nothing is left in the folder"
    cluster.wait("the queue to be empty", lambda: not cluster.jobs())


def test_what_a_real_cluster_does_not_have_is_named(cluster: SlurmCluster, tmp_path: Path) -> None:
    code, checks = doctor(cluster, tmp_path, "--partition", "nope")
    assert (code, checks["slurm partition"][0]["state"]) == (1, "FAIL")
    assert checks["slurm partition"][0]["because"] == "the partitions are: gpu, spot, urgent"
    code, checks = doctor(cluster, tmp_path, "--gpus-per-node", "8")
    assert (code, checks["slurm GPUs"][0]["try"]) == (1, "--gpus-per-node 2")
    assert cluster.jobs() == [], "nothing was tried"


def test_drained_machines_are_no_refusal(cluster: SlurmCluster, tmp_path: Path) -> None:
    nodes = f"NodeName={','.join(cluster.names)}"
    cluster.run("scontrol", "update", nodes, "State=DRAIN", "Reason=maintenance")
    code, checks = doctor(cluster, tmp_path)
    cluster.run("scontrol", "update", nodes, "State=RESUME")
    assert (code, checks["slurm GPUs"][0]["state"]) == (0, "WARN")
    assert "maintenance" in checks["slurm GPUs"][0]["because"]
    cluster.wait("nodes to be idle", lambda: set(cluster.states().values()) == {"idle"})


def test_jobs_of_others_are_not_preempted(cluster: SlurmCluster, tmp_path: Path) -> None:
    jobs = [cluster.submit("--gres=gpu:2", script="sleep 600") for _ in cluster.names]
    cluster.wait("jobs", lambda: all(cluster.state_of(job) == "RUNNING" for job in jobs))
    _, checks = doctor(cluster, tmp_path, "--partition", "urgent")
    assert checks["slurm node"][0]["what"] == "no machine was free to try it from"
    assert sorted(cluster.jobs()) == sorted([job, "RUNNING"] for job in jobs)
    cluster.run("scancel", *jobs)
    cluster.wait("the queue to be empty", lambda: not cluster.jobs())


def test_a_command_that_takes_too_long_is_ended(cluster: SlurmCluster) -> None:
    commands = SlurmCommands({**os.environ, **cluster.env})
    assert commands.run_on_node(["sleep", "600"], 1.0).returncode < 0
    cluster.wait("the queue to be empty", lambda: not cluster.jobs())


def test_a_ctrl_c_leaves_no_job(cluster: SlurmCluster) -> None:
    commands = SlurmCommands({**os.environ, **cluster.env})

    def interrupt() -> None:
        cluster.wait("a job", lambda: any(state == "RUNNING" for _, state in cluster.jobs()))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        commands.run_on_node(["sleep", "600"], 300.0)
    thread.join()
    cluster.wait("the queue to be empty", lambda: not cluster.jobs())


def test_a_python_that_is_not_there_is_told_of(cluster: SlurmCluster) -> None:
    commands = SlurmCommands({**os.environ, **cluster.env})
    found = node_facts(commands.run_on_node(["/nowhere/python", "-c", "1"], 60.0), 60.0)
    assert found.outcome == "failed"
    assert "/nowhere/python" in found.said
