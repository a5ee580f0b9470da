"""Links as `coddl inspect` measures them, within a node and between nodes."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.estimates.cluster import SLOTS
from benchmarks.estimates.network import ROOT, Node
from coddl.core.speed.inspection import Inspection, LinkClass, LinkSpeed

PORT: Final = 7434
WAIT_S: Final = 600.0


class NodeInspections:
    """What the nodes of a network know of their links; each keeps it in a folder of its own."""

    def __init__(self, nodes: Sequence[Node], folder: Path) -> None:
        self._nodes = nodes
        self._folders = {node.name: folder / "inspections" / node.name for node in nodes}

    def inspect_node(self) -> LinkSpeed:
        """Measure the link within a node; the others, which are the same machine, are told."""
        first, *others = self._nodes
        found = _finished(self._started(first, SLOTS, "--again"))
        for node in others:
            shutil.copytree(self._folders[first.name], self._folders[node.name])
        return found["node"]

    def inspect_between(self) -> LinkSpeed:
        """Measure the link between all nodes, as it is now.

        Nodes of several slots would each put their worker on their first core, which is the same
        here: with one slot it may be on any.
        """
        at = f"{self._nodes[0].address}:{PORT}"
        words = ["--quick", "--listen", at, "--nodes", f"{len(self._nodes)}"]
        processes = [self._started(self._nodes[0], 1, *words)]
        processes += [self._started(node, 1, "--quick", "--join", at) for node in self._nodes[1:]]
        listening, *_ = [_finished(each) for each in processes]
        return listening["cluster"]

    def _started(self, node: Node, slots: int, *words: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "coddl", "inspect", *words, "--json"]
        kept = {k: v for k, v in os.environ.items() if not k.startswith("CODDL_")}
        own = {"CODDL_STATE_DIR": f"{self._folders[node.name]}", "CODDL_INSPECT_CODE": "bench"}
        return subprocess.Popen(
            node.command(*command, "--slots", f"{slots}"),
            cwd=ROOT,
            env={**kept, **own, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def _finished(process: "subprocess.Popen[str]") -> dict[LinkClass, LinkSpeed]:
    out, err = process.communicate(timeout=WAIT_S)
    if process.returncode:
        raise SystemExit(f"{err}\ncoddl inspect ended with {process.returncode}")
    data: dict[str, Any] = json.loads(out)
    return dict(Inspection.from_data(data).links)
