"""Nodes of a cluster on one machine: network namespaces, joined by links of a given speed.

    n1 …     10.78.<n>.1 …     a node each, with a device `net0` that leads to the others

What leaves a node is held to a bandwidth by `tc tbf`; what is under way is held back for the
latency by a relay in user space (`relay`), as the kernel here can't. Nothing is put into the
namespace that the benchmark runs in, and nothing gets out of these.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from coddl.core.errors import UserError

NAMED: Final = Path("/run/netns")
PREFIX: Final = "coddlbench"
ROOT: Final = Path(__file__).parents[2]
DEVICE: Final = "net0"
LARGEST_BYTES: Final = 64 << 10  # of a packet before segmentation: the fewer, the less CPU
BURST_BYTES: Final = 72 << 10  # that pass at once, above that
QUEUE_MS: Final = 200  # of what may wait for the link
NICE: Final = -15
LOOK_S: Final = 0.25
WAIT_S: Final = 30.0


class Link(NamedTuple):
    """What joins two nodes."""

    mbit_s: float
    latency_ms: float  # one way

    @property
    def name(self) -> str:
        return f"{self.mbit_s:g} Mbit/s, {self.latency_ms:g} ms"


def check() -> None:
    """Raise UserError if this machine does not let us make such nodes."""
    if os.geteuid() != 0:
        raise _refusal("network namespaces need root", "sudo, or a container with --privileged")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise _refusal(f"{tool} is not installed", "apt install iproute2")
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as error:
        because = f"/dev/net/tun can't be opened: {error.strerror}"
        raise _refusal(because, "a machine with the kernel module tun") from None
    trial = f"{PREFIX}-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", trial], capture_output=True, text=True)
    if made.returncode:
        because = f"no network namespace can be made: {made.stderr.strip()}"
        raise _refusal(because, "a container with --privileged")
    subprocess.run(["ip", "netns", "del", trial], check=True)


def _refusal(because: str, try_: str) -> UserError:
    return UserError("trainings can't be run on several nodes here", because, try_)


class Node(NamedTuple):
    """A network namespace."""

    name: str
    space: str
    address: str

    def command(self, *words: str) -> list[str]:
        """Give a command that is run there."""
        return ["ip", "netns", "exec", self.space, *words]


class Precedence:
    """Gives what runs on nodes precedence over other load of this machine, as far as we may.

    Nodes would have cores of their own. Where the kernel groups processes by session, the niceness
    of a process counts within its session alone, and that of the session is set.
    """

    def __init__(self, spaces: Sequence[str]) -> None:
        self._inodes = {(NAMED / space).stat().st_ino for space in spaces}
        self._known: set[int] = set()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="precedence", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leave things as they are."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(LOOK_S):
            for pid in set(_pids()) - self._known:
                if _network_of(pid) in self._inodes:
                    self._known.add(pid)
                    _prefer(pid)


def _prefer(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, NICE)
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(f"{NICE}")


class Network:
    """Nodes and what joins them; all is gone at the end, with whatever runs there."""

    def __init__(self, nodes: int) -> None:
        _remove_stale()
        # The numbers of subnets may repeat: no packet leaves these namespaces.
        subnet = f"10.78.{os.getpid() % 250}"
        self.nodes = [
            Node(f"n{i}", f"{PREFIX}-{os.getpid()}-n{i}", f"{subnet}.{i}")
            for i in range(1, nodes + 1)
        ]
        self._stack = contextlib.ExitStack()
        self._relay: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            for node in self.nodes:
                stack.callback(_remove, node.space)
                _run("ip", "netns", "add", node.space)
            self._relay = self._started(stack)
            for node in self.nodes:
                self._set_up(node)
            stack.callback(Precedence([node.space for node in self.nodes]).close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def shape(self, link: Link) -> None:
        """Have all links be like this from now on."""
        for node in self.nodes:
            rate = ["rate", f"{link.mbit_s}mbit", "burst", f"{BURST_BYTES}b"]
            words = ["dev", DEVICE, "root", "tbf", *rate, "latency", f"{QUEUE_MS}ms"]
            _run("tc", "-n", node.space, "qdisc", "replace", *words)
        self._ask({"latency_s": link.latency_ms * 1e-3})

    def relayed(self) -> dict[str, float]:
        """Tell what the relay has done up to now: `cpu_s`, `packets`, `bytes`."""
        return self._ask({})

    def _started(self, stack: contextlib.ExitStack) -> "subprocess.Popen[str]":
        words = ["-m", "benchmarks.estimates.relay", *(node.space for node in self.nodes)]
        relay = subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C goes to all processes of a terminal: it must not end what others still need.
            start_new_session=True,
        )
        stack.callback(_ended, relay)
        if not relay.stdout or not relay.stdout.readline():
            raise _refusal("the relay between nodes has ended", "what it has printed above")
        return relay

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        relay = self._relay
        assert relay is not None
        assert relay.stdin is not None
        assert relay.stdout is not None
        relay.stdin.write(json.dumps(request) + "\n")
        relay.stdin.flush()
        answer: dict[str, Any] = json.loads(relay.stdout.readline())
        return answer

    def _set_up(self, node: Node) -> None:
        space = ["-n", node.space]
        _run("ip", *space, "link", "set", "lo", "up")
        _run("ip", *space, "address", "add", f"{node.address}/24", "dev", DEVICE)
        _run("ip", *space, "link", "set", DEVICE, "gso_max_size", f"{LARGEST_BYTES}", "up")
        # Linux' default is cubic; a machine may have another one, and not let a namespace change
        # it to any but reno. Where nothing is lost, as here, the two are alike.
        reno = "echo reno > /proc/sys/net/ipv4/tcp_congestion_control"
        _run(*node.command("sh", "-c", reno))


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise _refusal(f"{' '.join(words)}: {done.stderr.strip()}", "a container with --privileged")


def _ended(process: "subprocess.Popen[str]") -> None:
    """End a process of ours by the end of its input; by force, if that does not help."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _remove(space: str) -> None:
    """Take a namespace away, with all that lives there."""
    for pid in _living_in(space):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    subprocess.run(["ip", "netns", "del", space], capture_output=True)


def _remove_stale() -> None:
    """Take away what a run that was killed has left."""
    for path in NAMED.glob(f"{PREFIX}-*-*") if NAMED.exists() else ():
        owner = path.name.split("-")[1]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            _remove(path.name)


def left_behind() -> Iterator[str]:
    """Name the namespaces that this process has made and not taken away."""
    own = f"{PREFIX}-{os.getpid()}-"
    return (path.name for path in (NAMED.glob(f"{own}*") if NAMED.exists() else ()))


def _living_in(space: str) -> Iterator[int]:
    with contextlib.suppress(FileNotFoundError):
        inode = (NAMED / space).stat().st_ino
        yield from (pid for pid in _pids() if _network_of(pid) == inode)


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _network_of(pid: int) -> int | None:
    """Tell in which network a process lives; None if it has ended."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return None


def only(names: Sequence[str], wanted: Sequence[str], what: str) -> list[str]:
    """Give those of the names that are wanted, all if none is; raises UserError for others."""
    for each in wanted:
        if each not in names:
            raise UserError(f"{each!r} is no {what}", f"there are {', '.join(names)}", names[0])
    return [each for each in names if not wanted or each in wanted]
