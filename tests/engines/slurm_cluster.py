"""A real Slurm cluster on this machine: munged, slurmctld and several slurmd, with GPUs that only
Slurm believes in. Needs root, for the devices and so that jobs can be of several users.

    gpu      the default partition; urgent may preempt its jobs, which then have `KillWait`
    spot     the same nodes; a job that urgent preempts has a grace time first
    urgent   preempts the jobs of the other two
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Self

PROGRAMS: Final = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")
PATIENCE_S: Final = 120.0
DEVICE: Final = 195  # the major number of NVIDIA's
# What nobody needs to wait for: a node that is silent is down after 15 s instead of 5 minutes.
QUICK: Final = {"SlurmdTimeout": 15, "KillWait": 60, "MinJobAge": 300, "InactiveLimit": 0}
GRACE_S: Final = 40


def why_not() -> str:
    """Say why there can't be a cluster here; empty: there can."""
    if missing := [each for each in PROGRAMS if shutil.which(each) is None]:
        packages = "apt-get install slurmctld slurmd slurm-client munge"
        return f"needs Slurm: {', '.join(missing)} not found ({packages})"
    if os.getuid() != 0:
        return "needs root, for the devices of a Slurm cluster"
    return ""


class SlurmCluster:
    """Nodes n1, n2, … with some GPUs each. Use as a context."""

    def __init__(
        self, nodes: int = 4, gpus: int = 2, settings: Mapping[str, object] | None = None
    ) -> None:
        self.gpus = gpus
        self.names = [f"n{number + 1}" for number in range(nodes)]
        self._settings = {**QUICK, **(settings or {})}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        # Paths of sockets are short. Others than root have to read the configuration.
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.folder.chmod(0o755)
        self.conf = self.folder / "slurm.conf"
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            self._write()
            self._start_munge()
            self.start_controller()
            for name in self.names:
                self.start_node(name)
            self.wait("nodes to be idle", lambda: set(self.states().values()) == {"idle"})
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what there is, and end all daemons."""
        if "slurmctld" in self._processes:
            with contextlib.suppress(subprocess.SubprocessError, AssertionError):
                if ids := self.run("squeue", "-h", "-o", "%i").split():
                    self.run("scancel", *ids)
                self.wait("all jobs to end", lambda: not self.run("squeue", "-h"))
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    # Commands.

    @property
    def env(self) -> dict[str, str]:
        """What commands of Slurm need to find the cluster."""
        return {"SLURM_CONF": str(self.conf)}

    def run(self, *words: object, user: str | None = None) -> str:
        """Run a command of Slurm, as another user; give what it prints."""
        done = subprocess.run(
            [str(word) for word in words],
            env={**os.environ, **self.env},
            user=user,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, f"{words}: {done.stderr or done.stdout}"
        return done.stdout.strip()

    def submit(self, *options: object, script: str, user: str | None = None) -> str:
        """Hand in a job of anybody; give its number."""
        words = ["sbatch", "--parsable", "--output=/dev/null", *map(str, options)]
        done = subprocess.run(
            words,
            env={**os.environ, **self.env},
            user=user,
            cwd="/",
            input=f"#!/bin/sh\n{script}\n",
            stdout=subprocess.PIPE,
            check=True,
            text=True,
            timeout=PATIENCE_S,
        )
        return done.stdout.strip()

    def states(self) -> dict[str, str]:
        """Tell the state of each node."""
        lines = self.run("sinfo", "-h", "-N", "-o", "%N %T").splitlines()
        return dict(line.split() for line in lines)

    def jobs(self, fields: str = "%i %T") -> list[list[str]]:
        """List the jobs that have not ended."""
        return [line.split() for line in self.run("squeue", "-h", "-o", fields).splitlines()]

    def state_of(self, job: str) -> str:
        """Tell the state of a job."""
        return self.run("squeue", "-h", "--states=all", "-j", job, "-o", "%T")

    def wait(self, what: str, is_so: Callable[[], object]) -> None:
        """Wait for something."""
        until_s = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < until_s, f"no sign of: {what}"
            time.sleep(0.1)

    # Daemons.

    def start_controller(self) -> None:
        """Start slurmctld, and wait until it answers."""
        self._start("slurmctld", "slurmctld", "-D", "-f", self.conf)
        self.wait("slurmctld", self._answers)

    def stop_controller(self) -> None:
        """End slurmctld, which saves its state."""
        process = self._processes.pop("slurmctld")
        process.terminate()
        process.wait()

    def kill_controller(self) -> None:
        """Kill slurmctld when it has saved its state, which it finds again when it is started."""
        # It does not save at once that a job has started, and would take it for one that waits.
        # What is handed in makes it save all.
        begin_s = time.time()
        job = self.submit("--hold", script="true")
        self.run("scancel", job)
        saved = self.folder / "state" / "job_state"
        self.wait("it to save", lambda: saved.exists() and saved.stat().st_mtime > begin_s)
        self._kill("slurmctld")

    def start_node(self, name: str) -> None:
        """Start the slurmd of a node."""
        self._start(name, "slurmd", "-D", "-N", name, "-f", self.conf)

    def kill_node(self, name: str) -> None:
        """Kill the slurmd of a node; what it has started lives on."""
        self._kill(name)

    def _kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def _answers(self) -> bool:
        words = ("squeue", "-h")
        found = subprocess.run(words, env={**os.environ, **self.env}, capture_output=True)
        return found.returncode == 0

    def _start(self, name: str, *words: object) -> None:
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(word) for word in words],
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        words: list[object] = ["munged", "--foreground", "--force", f"--key-file={key}"]
        words += [f"--{kind}-file={self.folder}/munge.{kind}" for kind in ("pid", "log", "seed")]
        self._start("munged", *words, f"--socket={self.folder}/munge.sock")
        self.wait("munged", (self.folder / "munge.sock").exists)

    # Files.

    def _write(self) -> None:
        for name in ("log", "state", "run", "dev", *(f"spool/{node}" for node in self.names)):
            (self.folder / name).mkdir(parents=True)
        for number in range(self.gpus):
            path = self.folder / "dev" / f"gpu{number}"
            os.mknod(path, 0o20666, os.makedev(DEVICE, number))  # a character device
        nodes = f"n[1-{len(self.names)}]"
        files = f"{self.folder}/dev/gpu[0-{self.gpus - 1}]"
        (self.folder / "gres.conf").write_text(f"NodeName={nodes} Name=gpu File={files}\n")
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self.conf.write_text(self._configuration(nodes))

    def _configuration(self, nodes: str) -> str:
        folder, host = self.folder, socket.gethostname()
        first = _free_ports(len(self.names) + 1)
        parts = {
            "ClusterName": "test",
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={folder}/munge.sock,cred_expire=5",
            "SlurmctldPort": first,
            "SlurmctldPidFile": f"{folder}/run/slurmctld.pid",
            "StateSaveLocation": f"{folder}/state",
            "SlurmdSpoolDir": f"{folder}/spool/%n",
            "SlurmdPidFile": f"{folder}/run/%n.pid",
            "SlurmdLogFile": f"{folder}/log/%n.log",
            "SlurmctldLogFile": f"{folder}/log/slurmctld.log",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "JobAcctGatherType": "jobacct_gather/none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core_Memory",
            "DefMemPerCPU": 100,
            "GresTypes": "gpu",
            "SlurmdParameters": "config_overrides",
            "ReturnToService": 2,
            "PreemptType": "preempt/partition_prio",
            "PreemptMode": "REQUEUE",
            "SchedulerParameters": "bf_interval=2,sched_interval=2,sched_min_interval=100000",
            "MpiDefault": "none",
            "ReconfigFlags": "KeepPartInfo",
            **self._settings,
        }
        ports = f"[{first + 1}-{first + len(self.names)}]"
        node = f"NodeHostname={host} NodeAddr=127.0.0.1 Port={ports} CPUs=8 SocketsPerBoard=2"
        node += f" CoresPerSocket=4 ThreadsPerCore=1 RealMemory=4000 Gres=gpu:{self.gpus}"
        lines = [f"{name}={value}" for name, value in parts.items()]
        lines.append(f"NodeName={nodes} {node}")
        lines.append(f"PartitionName=gpu Nodes={nodes} Default=YES PriorityTier=1")
        lines.append(f"PartitionName=spot Nodes={nodes} PriorityTier=1 GraceTime={GRACE_S}")
        lines.append(f"PartitionName=urgent Nodes={nodes} PriorityTier=10 PreemptMode=OFF")
        return "\n".join(lines) + "\n"


def _free_ports(count: int) -> int:
    """Give the first of several ports in a row that are free now, below those of clients."""
    for first in range(17000 + os.getpid() % 1000 * 10, 32000, 10):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                listener = stack.enter_context(socket.socket())
                listener.bind(("127.0.0.1", port))
            return first
    raise AssertionError("no ports are free")
