"""Machines of a cluster on one: network namespaces, each with an address of its own.

    hub      a bridge, and nothing else        10.77.<n>.0/24
    head     10.77.<n>.1      the server
    n1 …     10.77.<n>.11 …   an agent each

Nothing is put into the namespace that the tests run in, and nothing gets out of these.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")
NAMED: Final = Path("/run/netns")
PREFIX: Final = "coddl"
CLONE_NEWNET: Final = 0x40000000
HEAD: Final = "head"
HUB: Final = "hub"


def why_not() -> str:
    """Say what is missing to make namespaces; empty if nothing is."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need ip, of iproute2"
    made = subprocess.run(
        ["ip", "netns", "add", f"{PREFIX}-{os.getpid()}-try"], capture_output=True
    )
    if made.returncode:
        return f"no network namespaces here: {made.stderr.decode().strip()}"
    subprocess.run(["ip", "netns", "del", f"{PREFIX}-{os.getpid()}-try"], check=True)
    return ""


def ip(*words: str) -> None:
    """Have the network changed."""
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Machine:
    """A network namespace with one line to the hub."""

    def __init__(self, space: str, address: str) -> None:
        self.space = space
        self.address = address

    def command(self, *words: str) -> list[str]:
        """Give a command that is run there."""
        return ["ip", "netns", "exec", self.space, *words]

    def with_disk(self, disk: Path, at: Path) -> list[str]:
        """Give what is put before a command that is run there and finds a disk of its own."""
        script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'  # `ip` has made a space of mounts
        return self.command("sh", "-c", script, "sh", str(disk), str(at))

    def processes(self) -> list[int]:
        """Name the processes that live there; a zombie does not."""
        with contextlib.suppress(FileNotFoundError):
            inode = (NAMED / self.space).stat().st_ino
            return [pid for pid in _pids() if _network_of(pid) == inode]
        return []

    def enter(self) -> None:
        """Have the calling thread live there from now on."""
        with (NAMED / self.space).open() as space:
            if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"{self.space} can't be entered")


class Visit:
    """A thread that lives on a machine, and does there what it is asked to."""

    def __init__(self, machine: Machine) -> None:
        self._thread = ThreadPoolExecutor(1, initializer=machine.enter)

    def do(self, work: Callable[[], T]) -> T:
        """Have work done there; give what came of it."""
        return self._thread.submit(work).result()

    def close(self) -> None:
        self._thread.shutdown()


class Cluster:
    """The machines; gone at the end, with all that ran on them."""

    def __init__(self, nodes: Sequence[str]) -> None:
        _remove_stale()
        self._names = [HUB, HEAD, *nodes]
        # The numbers of subnets may repeat: no packet leaves its hub.
        subnet = f"10.77.{os.getpid() % 250}"
        self.head = Machine(self._space(HEAD), f"{subnet}.1")
        self.nodes = {
            name: Machine(self._space(name), f"{subnet}.{index}")
            for index, name in enumerate(nodes, start=11)
        }

    def open(self) -> None:
        """Lay the lines."""
        for name in self._names:
            ip("netns", "add", self._space(name))
            ip("-n", self._space(name), "link", "set", "lo", "up")
        hub = self._space(HUB)
        ip("-n", hub, "link", "add", "br0", "type", "bridge")
        ip("-n", hub, "link", "set", "br0", "up")
        for name, machine in {HEAD: self.head, **self.nodes}.items():
            port = f"to-{name}"
            ends = ["link", "add", port, "type", "veth", "peer", "name", "eth0"]
            ip("-n", hub, *ends, "netns", machine.space)
            ip("-n", hub, "link", "set", port, "master", "br0", "up")
            ip("-n", machine.space, "address", "add", f"{machine.address}/24", "dev", "eth0")
            ip("-n", machine.space, "link", "set", "eth0", "up")
        self._isolate(HEAD, is_on=True)

    def cut(self, node: str) -> None:
        """Let no packet pass between the head and a node; nodes still reach each other."""
        self._isolate(node, is_on=True)

    def mend(self, node: str) -> None:
        """Undo that."""
        self._isolate(node, is_on=False)

    def processes(self) -> list[int]:
        """Name all that live on the machines."""
        return [pid for machine in (self.head, *self.nodes.values()) for pid in machine.processes()]

    def close(self) -> None:
        """End what is left and take the machines away."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for name in self._names:
            subprocess.run(["ip", "netns", "del", self._space(name)], capture_output=True)

    def _isolate(self, name: str, *, is_on: bool) -> None:
        """Ports that are isolated don't reach one another: the head's always is."""
        words = ["isolated", "on" if is_on else "off"]
        ip("-n", self._space(HUB), "link", "set", f"to-{name}", "type", "bridge_slave", *words)

    def _space(self, name: str) -> str:
        return f"{PREFIX}-{os.getpid()}-{name}"


def _remove_stale() -> None:
    """Take away what a test run that was killed has left."""
    for path in NAMED.glob(f"{PREFIX}-*-*") if NAMED.exists() else ():
        owner = path.name.split("-")[1]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            for pid in Machine(path.name, "").processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", path.name], capture_output=True)


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _network_of(pid: int) -> int | None:
    """Tell in which network a process lives; None if it has ended."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return None
