"""Whether a Slurm cluster is fit for a pool: what was gathered, and what follows from it."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from coddl.core.errors import UserError
from coddl.engines.doctor.reach import PoolReach, reach_results
from coddl.engines.doctor.results import CheckResult, failure_of, fine
from coddl.engines.slurm.commands import (
    KILL_WAIT_S,
    SlurmNode,
    SlurmVerdict,
    duration,
    seconds_of,
)
from coddl.engines.slurm.options import SlurmOptions
from coddl.engines.slurm.pilot_words import would_wait

ANSWER_WITHIN_S: Final = 2.0
LIMIT_LEAST_S: Final = 600.0  # nodes that last shorter are mostly started and left
SAVE_LEAST_S: Final = 20.0
NOW_S: Final = 90.0  # Slurm starts a job that it expects within this at once
GPU_MEMORY: Final = re.compile(r"DefMemPerGPU=(\d+)")  # among the defaults of jobs
UNSET: Final = ("", "0", "UNLIMITED", "(null)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNodeFacts:
    """What came of a command that was run on a machine."""

    outcome: Literal["answered", "busy", "refused", "silent", "failed"]
    said: str = ""  # why it has not answered
    host: str = ""
    python: str = ""
    coddl: str = ""
    gpu_ids: str = ""  # as one GPU that was asked for is called there
    server_trouble: str = ""
    jobs_dir_trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmFacts:
    """What was found of a Slurm cluster."""

    options: SlurmOptions = field(default_factory=SlurmOptions)
    gpus_per_node: int = 1  # that the pool wants
    missing: tuple[str, ...] = ()  # commands that are not here
    trouble: UserError | None = None  # it does not answer
    coddl: str = ""  # version here
    executable: str = ""  # the Python here
    version: str = ""  # of Slurm
    answer_s: float = 0.0
    settings: dict[str, str] = field(default_factory=dict)
    partitions: tuple[dict[str, str], ...] = ()
    nodes: tuple[SlurmNode, ...] = ()  # of the partition
    verdict: SlurmVerdict | None = None  # on a pilot job; None: it was not asked for
    asked_at_s: float = 0.0
    node: SlurmNodeFacts | None = None  # None: nothing was tried on a machine
    server: str = ""  # that was tried from there
    jobs_dir: str = ""

    @property
    def partition(self) -> dict[str, str] | None:
        """Return the settings of the pool's partition; None: there is none."""
        wanted = self.options.partition
        for each in self.partitions:
            if each["PartitionName"] == wanted or (not wanted and each.get("Default") == "YES"):
                return each
        return None

    @property
    def fitting(self) -> list[SlurmNode]:
        """List the machines that have as many GPUs as a node of the pool."""
        return [node for node in self.nodes if node.gpus >= self.gpus_per_node]

    @property
    def takes_jobs(self) -> bool:
        """Return whether some of them are in use, or could be."""
        return any(node.takes_jobs for node in self.fitting)

    @property
    def preempts(self) -> list[str]:
        """List the partitions whose jobs those of the pool's may preempt; `?`: it depends."""
        kind, own = _preempt_type(self.settings), self.partition
        if kind == "partition_prio" and own is not None:
            return [
                each["PartitionName"]
                for each in self.partitions
                if _tier(each) < _tier(own) and each.get("PreemptMode") != "OFF"
            ]
        return ["?"] if kind else []  # by QOS

    @property
    def may_be_tried(self) -> list[SlurmNode]:
        """List machines that are powered up and where a short job preempts no other."""
        states = ("idle",) if self.preempts else ("idle", "mixed")
        return [node for node in self.nodes if node.gpus and node.state in states]


def slurm_results(facts: SlurmFacts) -> Iterator[CheckResult]:
    """Judge a Slurm cluster."""
    if facts.missing:
        because = f"not found: {', '.join(facts.missing)}"
        try_ = "a machine with Slurm's commands, such as a login node"
        yield CheckResult("slurm", "FAIL", "Slurm's commands can't be run here", because, try_)
        return
    if facts.trouble is not None:
        yield failure_of("slurm", facts.trouble)
        return
    yield _controller(facts)
    partition = facts.partition
    if partition is None:
        yield _no_partition(facts)
    else:
        yield _partition(facts, partition)
        limit = _limit(facts, partition)
        yield limit
        yield _gpus(facts, partition)
        # What is submitted with a limit that is too long may be taken, and wait for ever.
        if facts.verdict is not None and limit.state != "FAIL":
            yield _pilot_job(facts, facts.verdict)
        yield _memory(facts, partition)
        yield _preemption(facts, partition)
    yield _processes(facts)
    if facts.node is not None:
        yield from _node(facts, facts.node)


def _controller(facts: SlurmFacts) -> CheckResult:
    name = facts.settings.get("ClusterName", "?")
    what = f"{facts.version}, cluster {name}, answers in {facts.answer_s:.2f} s"
    if facts.answer_s <= ANSWER_WITHIN_S:
        return fine("slurm", what)
    because = "a pool asks it every 5 s; an overloaded controller slows down all users"
    return CheckResult("slurm", "WARN", what, because, "sdiag, which shows what it is busy with")


def _no_partition(facts: SlurmFacts) -> CheckResult:
    names = [each["PartitionName"] for each in facts.partitions]
    if wanted := facts.options.partition:
        what = f"partition {wanted} does not exist"
    else:
        what = "no partition is given, and the cluster has no default"
    because = f"the partitions are: {', '.join(names)}" if names else "no partition can be seen"
    try_ = f"--partition {names[0]}" if names else "sinfo"
    return CheckResult("slurm partition", "FAIL", what, because, try_)


def _partition(facts: SlurmFacts, partition: dict[str, str]) -> CheckResult:
    name, state = partition["PartitionName"], partition.get("State", "?")
    what = f"{name} is {state}, {_count(len(facts.nodes), 'machine')}"
    if state == "UP":
        return fine("slurm partition", what)
    up = [each["PartitionName"] for each in facts.partitions if each.get("State") == "UP"]
    try_ = f"--partition {up[0]}" if up else "sinfo; the administrator sets State=UP"
    return CheckResult("slurm partition", "FAIL", what, "it starts no jobs", try_)


def _limit(facts: SlurmFacts, partition: dict[str, str]) -> CheckResult:
    check, name = "slurm time limit", partition["PartitionName"]
    most, default = partition.get("MaxTime", ""), partition.get("DefaultTime", "")
    most_s = duration(most)
    if wanted := facts.options.time:
        wanted_s = duration(wanted) or None  # 0 is no limit, too
        what = f"{wanted} for each node"
        if most_s is not None and (wanted_s is None or wanted_s > most_s):
            because = f"partition {name} allows at most {most}"
            return CheckResult(check, "FAIL", what, because, f"--time {most}")
        return fine(check, what + (f", of at most {most}" if most_s is not None else ""))
    limit, limit_s = (default, duration(default)) if duration(default) else (most, most_s)
    if limit_s is None:
        return fine(check, f"none in partition {name}")
    what = f"{limit} for each node, the default of partition {name}"
    if limit_s >= LIMIT_LEAST_S:
        return fine(check, what)
    because = "nodes are replaced when their time is over, and each has to start first"
    try_ = "--time 8:00:00" if most_s is None else f"--time {most}"
    return CheckResult(check, "WARN", what, because, try_)


def _gpus(facts: SlurmFacts, partition: dict[str, str]) -> CheckResult:
    check, wanted, fitting = "slurm GPUs", facts.gpus_per_node, facts.fitting
    if not fitting:
        what = f"no machine of {partition['PartitionName']} has {_count(wanted, 'GPU')}"
        largest = max((node.gpus for node in facts.nodes), default=0)
        if largest:
            because, try_ = f"the largest has {largest}", f"--gpus-per-node {largest}"
        else:
            because = "Slurm knows of no GPUs there"
            try_ = "another --partition: sinfo -o '%P %N %G' shows where GPUs are"
        return CheckResult(check, "FAIL", what, because, try_)
    states = Counter(node.state.rstrip("*~#!%$@^-+") for node in fitting)
    has = "has" if len(fitting) == 1 else "have"
    what = f"{_count(len(fitting), 'machine')} {has} {_count(wanted, 'GPU')} or more: "
    what += ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    if facts.takes_jobs:
        return fine(check, what)
    reasons = sorted({node.reason for node in fitting if node.reason})
    because = f"none takes jobs: {'; '.join(reasons) or 'Slurm gives no reason'}"
    return CheckResult(check, "WARN", what, because, "sinfo --list-reasons; another --partition")


def _pilot_job(facts: SlurmFacts, verdict: SlurmVerdict) -> CheckResult:
    check = "slurm pilot job"
    if verdict.is_taken:
        if verdict.starts_at_s is None:
            return fine(check, "Slurm takes it")
        return fine(check, f"Slurm would start it {_when(verdict.starts_at_s - facts.asked_at_s)}")
    said = verdict.said.removeprefix("allocation failure: ")
    if would_wait(said):
        try_ = "squeue --start; the pool waits for its nodes, too"
        return CheckResult(check, "WARN", "Slurm would not start it now", said, try_)
    try_ = "other --partition, --gpus-per-node, --time, --account or --sbatch-arg"
    return CheckResult(check, "FAIL", "Slurm would not take it", said, try_)


def _memory(facts: SlurmFacts, partition: dict[str, str]) -> CheckResult:
    check, given = "slurm memory", facts.options.sbatch_args
    if own := [each for each in given if each.startswith(("--mem", "--exclusive"))]:
        return fine(check, " ".join(own))
    used = (partition.get("SelectTypeParameters", ""), facts.settings.get("SelectTypeParameters"))
    if not any("MEMORY" in (each or "").upper() for each in used):
        return fine(check, "Slurm does not share it out")
    for source in (partition, facts.settings):  # the first holds
        per = {f"per {each}": source.get(f"DefMemPer{each}", "") for each in ("CPU", "Node")}
        found = GPU_MEMORY.search(source.get("JobDefaults", ""))
        per["per GPU"] = found[1] if found else ""
        for each, value in per.items():
            if value not in UNSET:
                what = f"{value} MB {each.replace('Node', 'node')}, Slurm's default"
                return fine(check, f"{what}; --sbatch-arg=--mem=... changes it")
    what = "each pilot job takes all memory of its machine"
    because = "the cluster has no default, and no other jobs fit on that machine"
    return CheckResult(check, "WARN", what, because, "--sbatch-arg=--mem=64G, or what jobs need")


def _preemption(facts: SlurmFacts, partition: dict[str, str]) -> CheckResult:
    check = "slurm preemption"
    mode = _preempted_by(facts, partition)
    grace_s = seconds_of(partition.get("GraceTime", ""), 0.0) if mode else 0.0
    kill_wait_s = seconds_of(facts.settings.get("KillWait", ""), KILL_WAIT_S)
    if mode:
        grace = f"{grace_s:g} s of grace and " if grace_s else ""
        what = f"jobs can be preempted ({mode}), with {grace}{kill_wait_s:g} s of KillWait"
    else:
        others = [name for name in facts.preempts if name != "?"]
        preempts = f", but preempt those of {', '.join(others)}" if others else ""
        what = f"jobs are not preempted{preempts}; KillWait is {kill_wait_s:g} s"
    if "SUSPEND" in mode:
        because = "the pool loses nodes that are suspended, and their jobs start from a checkpoint"
        try_ = "a --partition whose PreemptMode is CANCEL, REQUEUE or OFF"
        return CheckResult(check, "WARN", what, because, try_)
    if grace_s + kill_wait_s >= SAVE_LEAST_S:
        return fine(check, what)
    because = "after that they are killed, whether what they train is saved or not"
    try_ = "the administrator raises KillWait, or sets GraceTime for the partition"
    return CheckResult(check, "WARN", what, because, try_)


def _preempted_by(facts: SlurmFacts, partition: dict[str, str]) -> str:
    """Say what Slurm does with jobs of a partition for the sake of others; empty: nothing."""
    kind, mode = _preempt_type(facts.settings), partition.get("PreemptMode", "OFF")
    if kind == "partition_prio":
        is_lower = any(_tier(each) > _tier(partition) for each in facts.partitions)
        return mode if is_lower and mode != "OFF" else ""
    return facts.settings.get("PreemptMode", "") if kind else ""  # a QOS may have its own


def _preempt_type(settings: dict[str, str]) -> str:
    kind = settings.get("PreemptType", "").rpartition("/")[2]
    return "" if kind in ("none", "(null)") else kind


def _tier(partition: dict[str, str]) -> int:
    tier = partition.get("PriorityTier", "")
    return int(tier) if tier.isdecimal() else 0


def _processes(facts: SlurmFacts) -> CheckResult:
    check, kind = "slurm processes", facts.settings.get("ProctrackType", "?")
    if kind == "proctrack/cgroup":
        return fine(check, f"tracked by {kind}")
    because = "processes that leave a job's process tree are not tracked, and outlive the job"
    try_ = "the administrator sets ProctrackType=proctrack/cgroup"
    return CheckResult(check, "WARN", f"tracked by {kind}", because, try_)


def _node(facts: SlurmFacts, node: SlurmNodeFacts) -> Iterator[CheckResult]:
    check = f"slurm node {node.host}".rstrip()
    if node.outcome == "failed":
        what = "Python of this environment can't be run there"
        try_ = f"an environment on a disk that the nodes share; here it is {facts.executable}"
        yield CheckResult(check, "FAIL", what, node.said, try_)
        return
    if node.outcome != "answered":
        nothing = {
            "busy": "no machine was free to try it from",
            "refused": "Slurm lets no command be tried on a machine",
            "silent": "a command that was tried on a machine gave no answer",
        }
        try_ = "once more, later" if node.outcome == "busy" else "srun --gres=gpu:1 hostname"
        yield CheckResult(check, "WARN", nothing[node.outcome], node.said, try_)
        return
    if node.coddl == facts.coddl:
        yield fine(check, f"coddl {node.coddl}, Python {node.python}")
    else:
        what = f"coddl {node.coddl} there, {facts.coddl} here"
        because = f"all must have one version, and {facts.executable} is another one there"
        yield CheckResult(check, "FAIL", what, because, "an environment that the nodes share")
    if node.gpu_ids:
        yield fine(check, f"CUDA_VISIBLE_DEVICES={node.gpu_ids}, for one GPU")
    else:
        what = "CUDA_VISIBLE_DEVICES is empty in a job with one GPU"
        because = "without it, a node can't find out which GPUs Slurm has given it"
        try_ = "the administrator sets File= for each GPU in gres.conf"
        yield CheckResult(check, "FAIL", what, because, try_)
    reach = PoolReach(facts.server, node.server_trouble, facts.jobs_dir, node.jobs_dir_trouble)
    yield from reach_results(check, reach)
    if facts.jobs_dir and not node.jobs_dir_trouble:
        yield fine(check, f"shares {facts.jobs_dir} with this machine")


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _when(in_s: float) -> str:
    if in_s < NOW_S:
        return "now"
    for unit, unit_s in (("days", 86400.0), ("h", 3600.0)):
        if in_s >= 2 * unit_s:
            return f"in {in_s / unit_s:.0f} {unit}"
    return f"in {in_s / 60:.0f} min"
