"""A pool inside a real Slurm cluster, as its operator and Slurm's see it."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from coddl.agent.orphans import PROC, Process, process, started_with
from tests.e2e.scaled_pool import GPUS, ScaledPool
from tests.engines.slurm_cluster import SlurmCluster

MACHINES: Final = 4
DAEMONS: Final = ("munged", "slurmctld", "slurmscriptd", "slurmd", "slurmstepd")
# As the pilot job writes it into its log, and as Slurm writes it.
GRANTED: Final = re.compile(r"node slurm-\d+ on \S+, GPUs ([0-9,]+)")
RUNNING: Final = re.compile(r"^JobId=(\d+) .*JobState=RUNNING ", re.DOTALL)
GRES: Final = re.compile(r"Nodes=(\S+) .*GRES=gpu:\d+\(IDX:([0-9,-]+)\)")


class Gpu(NamedTuple):
    """A GPU of the cluster."""

    machine: str
    id: int


class SlurmPool(ScaledPool):
    """A pool whose nodes are pilot jobs."""

    def __init__(self, folder: Path, cluster: SlurmCluster) -> None:
        super().__init__(folder, cluster.env)
        self.cluster = cluster

    def up(self, *words: object, nodes: str = "0..2") -> None:
        """Start it, with further words."""
        self.coddl(
            *("up", "--host", "127.0.0.1", "--port", 0, "--engine", "slurm", "--nodes", nodes),
            *("--gpus-per-node", GPUS, "--slots", GPUS, "--idle", "3s", "--cool-down", 1),
            *words,
        )

    def close(self) -> None:
        """End it. Nothing of it may be left, neither in Slurm's queue nor on this machine."""
        self.coddl("down", "--cancel-jobs")
        self.wait("Slurm's queue to be empty of it", lambda: not self.pilots())
        self.wait("its processes to end", lambda: not processes_in(self.cluster))

    def pilots(self) -> dict[str, str]:
        """Give the machines of the pilot jobs that have not ended, by node; empty: it waits."""
        fields = "%i|%N|%j"
        lines = self.cluster.run("squeue", "-h", "-o", fields).splitlines()
        jobs = [line.split("|") for line in lines]
        return {f"slurm-{id_}": machine for id_, machine, name in jobs if name.startswith("coddl")}

    def states(self) -> dict[str, str]:
        """Give the states of all pilot jobs, by node, also of those that have ended."""
        words = ("squeue", "-h", "--states=all", "-o", "%i|%T|%j")
        jobs = [line.split("|") for line in self.cluster.run(*words).splitlines()]
        return {f"slurm-{id_}": state for id_, state, name in jobs if name.startswith("coddl")}

    def node(self, which: str) -> str:
        """Name a node of the training: that of its `lead`, or an `other`."""
        job = self.job("bert")
        nodes: list[str] = job["nodes"]
        return next(each for each in nodes if (each == job["lead"]) == (which == "lead"))

    def wait_without(self, node: str, gpus: int = 2 * GPUS) -> None:
        """Wait until the training has all its GPUs and works on, without a node that has left."""
        self.wait(f"the training to leave {node}", lambda: node not in self.job("bert")["nodes"])
        self.wait_size("bert", gpus)
        self.wait_steps("bert")
        assert node not in self.job("bert")["nodes"]

    def held(self) -> dict[str, set[Gpu]]:
        """Have Slurm tell which GPUs each job holds, of all users, at one moment."""
        found = {}
        for about in self.cluster.run("scontrol", "show", "job", "-d").split("\n\n"):
            if job := RUNNING.search(about):
                pairs = GRES.findall(about)
                found[job[1]] = {Gpu(machine, id_) for machine, ids in pairs for id_ in _ids(ids)}
        return found

    def said_by(self, job: str) -> set[int]:
        """Give the ids of GPUs that a pilot job says it uses; none: it is no pilot, or new."""
        logs = [log.read_text() for log in self.state.glob(f"slurm-*/{job}.log")]
        return {id_ for log in logs for ids in GRANTED.findall(log) for id_ in _ids(ids)}

    def tell_story(self) -> None:
        """Print what a failing test needs to be understood."""
        logs = [*self.state.glob("output/*.log"), *self.state.glob("slurm-*/*.log")]
        logs += [self.cluster.folder / "log" / "slurmctld.log"]
        told = {log.name: log.read_text(errors="replace")[-4_000:] for log in sorted(logs)}
        with contextlib.suppress(AssertionError):  # there may be no server, or no Slurm
            told["squeue"] = self.cluster.run("squeue", "--states=all")
            told["nodes"] = self.coddl("nodes").stdout
            told["events"] = self.coddl("events", "--tail", 300).stdout
        for name, text in told.items():
            print(f"--- {name}\n{text}")  # noqa: T201 - pytest shows it


@contextlib.contextmanager
def slurm_pool(folder: Path) -> Iterator[SlurmPool]:
    """Start a cluster for a pool that is to come; end both."""
    with SlurmCluster(MACHINES, GPUS) as cluster:
        pool = SlurmPool(folder, cluster)
        try:
            yield pool
        finally:
            pool.tell_story()
            pool.close()


def processes_in(cluster: SlurmCluster) -> list[Process]:
    """Give all that runs in a cluster, but for its daemons."""
    found = []
    for each in started_with(cluster.env):
        with contextlib.suppress(OSError):
            if (PROC / str(each.pid) / "comm").read_text().strip() not in DAEMONS:
                found.append(each)
    return found


def is_there(one: Process) -> bool:
    """Tell whether a process has not ended."""
    now = process(one.pid)
    return now is not None and now.name == one.name and not now.is_zombie


def _ids(text: str) -> Iterator[int]:
    """Read 0,2-3 as 0 2 3."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
