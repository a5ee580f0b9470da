"""What is said of nodes that differ."""

import pytest

from coddl.core.pool import records as r
from coddl.core.pool.node_problems import node_problems
from coddl.core.pool.node_versions import NodeVersions
from tests.core.pool.story import Story

SAME = NodeVersions("3.11.7", "2.13.0", "0.1.0")
DIFFERENT = {
    "a patch release of Python is no difference": (NodeVersions("3.11.9", "2.13.0", "0.1.0"), {}),
    "an older agent tells nothing": (NodeVersions(), {}),
    "another Python": (
        NodeVersions("3.12.1", "2.13.0", "0.1.0"),
        {"python": "nodes have different versions of Python (3.11 on a, b; 3.12 on c): jobs that "
                   "span or move between them may fail; install the same version on all of them"},
    ),
    "another torch": (
        NodeVersions("3.11.7", "2.11.0+cu128", "0.1.0"),
        {"torch": "nodes have different versions of torch (2.11.0+cu128 on c; 2.13.0 on a, b): "
                  "jobs that span or move between them may fail; install the same version on all "
                  "of them"},
    ),
    "no torch": (
        NodeVersions("3.11.7", "", "0.1.0"),
        {"torch": "nodes have different versions of torch (2.13.0 on a, b; none on c): jobs that "
                  "span or move between them may fail; install the same version on all of them"},
    ),
    "another CoDDL": (
        NodeVersions("3.11.7", "2.13.0", "0.2.0"),
        {"coddl": "nodes have different versions of CoDDL (0.1.0 on a, b; 0.2.0 on c): install "
                  "the same version on all of them"},
    ),
}  # fmt: skip


def joined(node: str, versions: NodeVersions = SAME, folder: str = "f") -> r.NodeJoined:
    devices = (r.Device(0, "cpu"),)
    return r.NodeJoined(node, "1", "host", devices, folder=folder, versions=versions)


@pytest.mark.parametrize(("versions", "want"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_versions_that_differ_are_told(versions: NodeVersions, want: dict[str, str]) -> None:
    story = Story()
    for event in (joined("a"), joined("b"), joined("c", versions)):
        story.happen(event)
    assert node_problems(story.pool) == want


def test_nodes_that_share_no_folder_are_told_until_they_are_gone() -> None:
    story = Story()
    for event in (joined("c", folder="g"), joined("b"), joined("a")):
        story.happen(event)
    assert node_problems(story.pool) == {
        "folder": "the nodes (a, b) and (c) do not share a jobs folder: no job spans or moves "
        "between them; start their agents with one --jobs-dir, on a file system that all of them "
        "see, or the server with --checkpoints URI"
    }
    story.happen(r.NodeLost("c", "1", "its lease expired"))
    assert node_problems(story.pool) == {}


def test_of_many_nodes_some_are_named() -> None:
    story = Story()
    for number in range(12):
        story.happen(joined(f"n{number:02}"))
    story.happen(joined("z", folder="g"))
    assert "n06, n07 and 4 more) and (z)" in node_problems(story.pool)["folder"]
