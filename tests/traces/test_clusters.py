"""Clusters as users write them."""

from pathlib import Path

import pytest

from coddl.core.cluster import Cluster, Link, Links, Node
from coddl.core.errors import UserError
from coddl.traces.clusters import cluster_from, with_whole_path

SHORT = {
    "nodes of one kind": ("2x4", Cluster((Node("node-0", 4), Node("node-1", 4)))),
    "nodes of two kinds": (
        "1x4:v100+2x8:k80",
        Cluster(
            (Node("node-0", 4, 0), Node("node-1", 8, 1), Node("node-2", 8, 1)), ("v100", "k80")
        ),
    ),
    "one kind in two sizes": (
        "1x4:t4+1x8:t4",
        Cluster((Node("node-0", 4), Node("node-1", 8)), ("t4",)),
    ),
}


@pytest.mark.parametrize(("spec", "want"), SHORT.values(), ids=SHORT.keys())
def test_a_short_form_is_read(spec: str, want: Cluster) -> None:
    assert cluster_from(spec) == want


FILES = {
    "a group is one node unless it says more": ("nodes: [{gpus: 4}]", (Node("node-0", 4),)),
    "nodes are numbered through": (
        "nodes: [{count: 1, gpus: 4}, {count: 1, gpus: 2}]",
        (Node("node-0", 4), Node("node-1", 2)),
    ),
    "or named": ("nodes: [{names: [a, 7], gpus: 4}]", (Node("a", 4), Node("7", 4))),
    "islands and processor cores": (
        "nodes: [{gpus: 8, island: 4, cpus: 96}]",
        (Node("node-0", 8, island_gpus=4, cpus=96),),
    ),
    "an island of the whole node is none": (
        "nodes: [{gpus: 8, island: 8}]",
        (Node("node-0", 8),),
    ),
    "racks are filled one after the other": (
        "nodes: [{count: 3, gpus: 4, nodes_per_rack: 2}]",
        (Node("node-0", 4, rack=0), Node("node-1", 4, rack=0), Node("node-2", 4, rack=1)),
    ),
    "another group has racks of its own": (
        "nodes: [{gpus: 4, nodes_per_rack: 2}, {gpus: 4, nodes_per_rack: 2}]",
        (Node("node-0", 4, rack=0), Node("node-1", 4, rack=1)),
    ),
    "unless both name the same one": (
        "nodes: [{gpus: 4, rack: 7}, {gpus: 2, rack: cellar}, {gpus: 8, rack: 7}]",
        (Node("node-0", 4, rack=0), Node("node-1", 2, rack=1), Node("node-2", 8, rack=0)),
    ),
}


@pytest.mark.parametrize(("text", "want"), FILES.values(), ids=FILES.keys())
def test_a_file_is_read(text: str, want: tuple[Node, ...], tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    assert cluster_from(str(path)) == Cluster(want)


def test_links_that_are_not_given_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("nodes: [{gpus: 4}]\nlinks: {rack: {gb_s: 25, latency_us: 0}}")
    assert cluster_from(str(path)).links == Links(rack=Link(25.0, 0.0))


BAD = {
    "cores of some nodes": ("nodes: [{gpus: 4}, {gpus: 4, cpus: 16}]", "and node-0 does not"),
    "a list instead of a mapping": ("[1]", "the file is"),
    "no nodes": ("links: {}", "nodes is missing"),
    "an empty list of nodes": ("nodes: []", "be a list of groups"),
    "a node without GPUs": ("nodes: [{count: 2}]", "nodes[0].gpus is missing"),
    "a share of a GPU": ("nodes: [{gpus: 1.5}]", 'nodes[0].gpus is "1.5"'),
    "true for a number": ("nodes: [{gpus: true}]", 'nodes[0].gpus is "True"'),
    "no nodes of a group": ("nodes: [{gpus: 4}, {count: 0, gpus: 4}]", 'nodes[1].count is "0"'),
    "an island wider than its node": ("nodes: [{gpus: 4, island: 8}]", "within 1..4"),
    "a key nobody knows": ("nodes: [{gpu: 4}]", 'nodes[0] has the unknown key "gpu"'),
    "two ways to say the rack": (
        "nodes: [{gpus: 4, rack: a, nodes_per_rack: 2}]",
        "both rack and nodes_per_rack",
    ),
    "names and another count": ("nodes: [{gpus: 4, names: [a], count: 2}]", "be 1"),
    "a name twice": ("nodes: [{gpus: 4, names: [a, a]}]", 'names is "a"'),
    "a name that is a list": ("nodes: [{gpus: 4, kind: [a]}]", "nodes[0].kind"),
    "a link without bandwidth": (
        "nodes: [{gpus: 4}]\nlinks: {rack: {latency_us: 1}}",
        "links.rack.gb_s is missing",
    ),
    "a bandwidth of nothing": (
        "nodes: [{gpus: 4}]\nlinks: {rack: {gb_s: 0, latency_us: 1}}",
        'links.rack.gb_s is "0"',
    ),
    "no YAML": ("nodes: [\n{gpus: 4", "line 2: it is not YAML"),
}


@pytest.mark.parametrize(("text", "because"), BAD.values(), ids=BAD.keys())
def test_a_bad_file_is_told_by_key_or_line(text: str, because: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        cluster_from(str(path))
    assert because in str(caught.value)


@pytest.mark.parametrize("spec", ["", "4", "x4", "16x", "0x4", "4x0", "4x4+", "nowhere.yaml"])
def test_what_is_neither_form_nor_file_is_told_how_forms_look(spec: str) -> None:
    with pytest.raises(UserError, match="16x4"):
        cluster_from(spec)


def test_only_a_file_is_looked_for_in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert with_whole_path("8x4:v100+8x8") == "8x4:v100+8x8"
    assert with_whole_path("site.yaml") == str(tmp_path / "site.yaml")
