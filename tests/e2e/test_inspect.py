"""`coddl inspect` on two machines: one listens, the other joins it, both learn of the link."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.netns import Cluster, Machine
from tests.e2e.pool import PATIENCE_S, environment

PORT = 7434
LIMIT_MBIT = 200


@pytest.fixture
def machines() -> Iterator[list[Machine]]:
    """Two machines that reach each other, over lines of a limited speed."""
    cluster = Cluster(["n1", "n2"])
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.close)
        cluster.open()
        yield list(cluster.nodes.values())


def limit(machine: Machine) -> bool:
    """Make what leaves a machine slower; False where the kernel can't."""
    rate = ["rate", f"{LIMIT_MBIT}mbit", "burst", "64kb", "latency", "50ms"]
    words = machine.command("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *rate)
    with contextlib.suppress(FileNotFoundError):
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    return False


def start(machine: Machine, state: Path, *words: str) -> subprocess.Popen[str]:
    """Start an inspection, small and for a program."""
    command = [
        sys.executable,
        "-m",
        "coddl",
        "inspect",
        *words,
        "--quick",
        "--slots",
        "1",
        "--json",
    ]
    return subprocess.Popen(
        machine.command(*command),
        env=environment(CODDL_STATE_DIR=str(state), CODDL_INSPECT_CODE="of the test"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.slow
def test_two_machines_measure_the_line_between_them(
    machines: list[Machine], tmp_path: Path
) -> None:
    is_limited = all([limit(each) for each in machines])
    at = f"{machines[0].address}:{PORT}"
    listening = start(machines[0], tmp_path / "1", "--listen", at, "--nodes", "2")
    joining = start(machines[1], tmp_path / "2", "--join", at)
    first, second = finished(listening), finished(joining)
    link = first["links"]["cluster"]
    assert second["links"]["cluster"] == link
    assert link["backend"] == "gloo"
    assert {workers for workers, _, _ in link["measured"]} == {2}
    if is_limited:
        # It is the line that was measured: the way through memory is tens of times as fast. Other
        # processes on the machine move the result by some 25 % at times.
        assert link["gb_s"] == pytest.approx(LIMIT_MBIT / 8e3, rel=0.5)
    assert not [pid for each in machines for pid in each.processes()], "nothing is left behind"


@pytest.mark.slow
def test_an_inspection_that_is_interrupted_leaves_nothing_behind(
    machines: list[Machine], tmp_path: Path
) -> None:
    at = f"{machines[0].address}:{PORT}"
    listening = start(machines[0], tmp_path / "1", "--listen", at, "--nodes", "2")
    assert listening.stderr is not None
    said = ""
    while "update on cpu" not in said:  # from here on it waits for the other
        said = listening.stderr.readline()
        assert said, "it has ended"
    listening.send_signal(signal.SIGINT)
    assert listening.wait(PATIENCE_S) == 130
    listening.communicate()
    assert not machines[0].processes()
