"""Where the nodes of a pool differ in what jobs rely on: versions, and the jobs folder."""

from collections.abc import Iterable
from typing import Final

from coddl.core.pool.folder_groups import folders_of, stranded
from coddl.core.pool.nodes import NodeState
from coddl.core.pool.state import Pool

NAMES_SHOWN: Final = 8  # of the nodes that are alike
SAME: Final = "install the same version on all of them"
FOLDERS: Final = (
    "no job spans or moves between them; start their agents with one --jobs-dir, on a file system "
    "that all of them see, or the server with --checkpoints URI"
)


def node_problems(pool: Pool) -> dict[str, str]:
    """Return how nodes that are up differ, by kind of difference; and which jobs none can run."""
    up = [node for node in sorted(pool.nodes.values(), key=lambda n: n.name) if node.is_up]
    told = [node for node in up if node.versions.python]  # an older agent tells nothing
    ways = {
        "python": ("Python", [(_minor(node.versions.python), node) for node in told]),
        "torch": ("torch", [(node.versions.torch or "none", node) for node in told]),
        "coddl": ("CoDDL", [(node.versions.coddl, node) for node in told]),
    }
    found = {}
    for kind, (name, versions) in ways.items():
        groups = _grouped(versions)
        if len(groups) > 1:
            each = "; ".join(f"{version} on {_listed(nodes)}" for version, nodes in groups.items())
            effect = "" if kind == "coddl" else "jobs that span or move between them may fail; "
            found[kind] = f"nodes have different versions of {name} ({each}): {effect}{SAME}"
    if problem := _folder_problem(pool):
        found["folder"] = problem
    if problem := _stranded_problem(pool):
        found["stranded"] = problem
    return found


def _stranded_problem(pool: Pool) -> str:
    """Return which jobs can't run on any node that is up, because their files are elsewhere."""
    waiting = stranded(pool)
    numbers = ", ".join(str(job) for job in sorted(waiting)[:NAMES_SHOWN])
    return f"jobs wait ({numbers}): {next(iter(waiting.values())).sentence}" if waiting else ""


def _folder_problem(pool: Pool) -> str:
    """Return which nodes share no jobs folder with others, and what follows from it."""
    groups = folders_of(pool)
    if len(groups) <= 1:
        return ""
    listed = " and ".join(f"({_listed(nodes)})" for nodes in groups.values())
    return f"the nodes {listed} do not share a jobs folder: {FOLDERS}"


def _grouped(pairs: Iterable[tuple[str, NodeState]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for version, node in pairs:
        groups.setdefault(version, []).append(node.name)
    return dict(sorted(groups.items()))


def _minor(version: str) -> str:
    """Return 3.11 of 3.11.7: patch releases of Python can be mixed."""
    return ".".join(version.split(".")[:2])


def _listed(nodes: list[str]) -> str:
    more = f" and {len(nodes) - NAMES_SHOWN} more" if len(nodes) > NAMES_SHOWN else ""
    return ", ".join(nodes[:NAMES_SHOWN]) + more
