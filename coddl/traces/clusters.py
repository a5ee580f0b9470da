"""Clusters as users write them: `16x4`, `8x4:v100+8x8:k80`, or a YAML file.

The file says what there is, group by group; docs/clusters.md has all its keys.

    nodes:
      - {count: 8, gpus: 8, kind: v100, island: 4, nodes_per_rack: 4}
      - {names: [old-1, old-2], gpus: 4, kind: k80, rack: cellar}
    links:
      rack: {gb_s: 12.5, latency_us: 5}
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import yaml

from coddl.core.cluster import Cluster, Link, Links, Node
from coddl.core.errors import UserError
from coddl.traces.cells import listed, shown
from coddl.traces.text_file import read_text

SHORT: Final = re.compile(r"([1-9]\d*)x([1-9]\d*)(?::([\w.-]+))?")
SHORT_TRY: Final = "16x4 (16 nodes of 4 GPUs), 8x4:v100+8x8:k80, or the path of a YAML file"
GROUP_KEYS: Final = (
    "count",
    "names",
    "gpus",
    "kind",
    "island",
    "rack",
    "nodes_per_rack",
    "cpus",
)
LINK_KEYS: Final = ("gb_s", "latency_us")
NODES_MOST, GPUS_MOST = 1_000_000, 65_536
KIND: Final = "gpu"  # of nodes that don't say


def with_whole_path(spec: str) -> str:
    """Make the path of a file absolute; a short form stays as it is."""
    return spec if all(map(SHORT.fullmatch, spec.split("+"))) else str(Path(spec).absolute())


def cluster_from(spec: str) -> Cluster:
    """Build the cluster that a short form or a YAML file describes."""
    parts = [SHORT.fullmatch(part) for part in spec.split("+")]
    if not all(parts):
        return _from_file(spec)
    groups: list[Mapping[str, object]] = []
    for part in parts:
        assert part is not None
        count, gpus, kind = part.groups()
        groups.append({"count": int(count), "gpus": int(gpus), "kind": kind or KIND})
    return _Reader(f'cluster "{spec}" cannot be used', SHORT_TRY).cluster(groups, {})


def _from_file(spec: str) -> Cluster:
    what = f'cluster "{spec}" cannot be used'
    path = Path(spec)
    if not path.is_file():
        because = "it is neither a short form nor an existing file"
        raise UserError(what, because, SHORT_TRY)
    try:
        content: object = yaml.safe_load(read_text(path, what))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark is not None else ""
        raise UserError(
            what, f"{line}it is not YAML: {error.problem}", "docs/clusters.md"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(what, f"it is not YAML: {error}", "docs/clusters.md") from None
    reader = _Reader(what, "docs/clusters.md has every key")
    top = reader.keys(content, "the file", ("nodes", "links"))
    groups = top.get("nodes")
    if not isinstance(groups, list) or not groups:
        raise reader.bad("nodes", groups, "be a list of groups of nodes", "- {count: 16, gpus: 4}")
    return reader.cluster(groups, top.get("links", {}))


class _Reader:
    """Checks a description value by value; an error names the key."""

    def __init__(self, what: str, try_: str) -> None:
        self._what = what
        self._try = try_

    def cluster(self, groups: Sequence[object], links: object) -> Cluster:
        """Build a cluster from the groups of its nodes and from its links."""
        kinds: dict[str, int] = {}
        racks: dict[str, int] = {}
        nodes: list[Node] = []
        for at, group in enumerate(groups):
            nodes += self._group(f"nodes[{at}]", group, kinds, racks, first=len(nodes))
        names = [node.name for node in nodes]
        if len(set(names)) < len(names):
            twice = Counter(names).most_common(1)[0][0]
            raise self.bad("names", twice, "be unique", "another name")
        without = [node.name for node in nodes if not node.cpus]
        if 0 < len(without) < len(nodes):
            # It would be unknown whether a task fits there.
            because = f"some nodes state cpus, and {without[0]} does not"
            raise UserError(self._what, because, "cpus for every group of nodes, or for none")
        return Cluster(tuple(nodes), tuple(kinds), self._links(links))

    def _group(
        self, at: str, given: object, kinds: dict[str, int], racks: dict[str, int], *, first: int
    ) -> Iterator[Node]:
        group = self.keys(given, at, GROUP_KEYS)
        gpus = self._whole(at, group, "gpus", 1, GPUS_MOST)
        island = self._whole(at, group, "island", 1, gpus, default=gpus)
        cpus = self._whole(at, group, "cpus", 0, GPUS_MOST, default=0)
        if "rack" in group and "nodes_per_rack" in group:
            raise UserError(self._what, f"{at} has both rack and nodes_per_rack", "one of the two")
        per_rack = self._whole(at, group, "nodes_per_rack", 1, NODES_MOST, default=NODES_MOST)
        kind = kinds.setdefault(self._text(at, group, "kind", KIND), len(kinds))
        for number, name in enumerate(self._names(at, group, first)):
            # Groups that name a rack share it. A group with nodes_per_rack has its own racks; all
            # other nodes are in one rack.
            rack = self._text(at, group, "rack", "")
            if "nodes_per_rack" in group:
                rack = f"{at}/{number // per_rack}"
            where = racks.setdefault(rack, len(racks))
            yield Node(name, gpus, kind, where, 0 if island == gpus else island, cpus)

    def _names(self, at: str, group: Mapping[str, object], first: int) -> Sequence[str]:
        """The names of a group's nodes: those given, or node-N."""
        names = group.get("names")
        if names is None:
            count = self._whole(at, group, "count", 1, NODES_MOST, default=1)
            return [f"node-{first + number}" for number in range(count)]
        if not isinstance(names, list) or not names or not all(map(_is_name, names)):
            raise self.bad(f"{at}.names", names, "be a list of names", "[gpu-a, gpu-b]")
        if group.get("count", len(names)) != len(names):
            must = f"be {len(names)}, the number of names, or be left out"
            raise self.bad(f"{at}.count", group["count"], must, f"count: {len(names)}")
        return list(map(str, names))

    def _links(self, given: object) -> Links:
        default = Links()
        links = self.keys(given, "links", tuple(default.__dataclass_fields__))
        return Links(**{name: self._link(f"links.{name}", value) for name, value in links.items()})

    def _link(self, at: str, given: object) -> Link:
        link = self.keys(given, at, LINK_KEYS)
        numbers = []
        for key, example in zip(LINK_KEYS, ("12.5", "5"), strict=True):
            value, least = link.get(key), 0.0 if key == "latency_us" else 1e-6
            number = float(value) if isinstance(value, int | float) else -1.0
            if isinstance(value, bool) or not least <= number <= 1e9:
                must = "be a number, at least 0" if least == 0 else "be a number above 0"
                raise self.bad(f"{at}.{key}", value, must, f"{key}: {example}")
            numbers.append(number)
        return Link(*numbers)

    def keys(self, given: object, at: str, known: Sequence[str]) -> Mapping[str, object]:
        """Take a mapping that has only these keys."""
        if not isinstance(given, dict):
            raise self.bad(at, given, f"be a mapping with {listed(known)}", self._try)
        unknown = [str(key) for key in given if key not in known]
        if unknown:
            because = f"{at} has the unknown key {shown(unknown[0])}"
            raise UserError(self._what, because, f"one of {listed(known)}")
        return given

    def _whole(
        self,
        at: str,
        group: Mapping[str, object],
        key: str,
        least: int,
        most: int,
        *,
        default: int | None = None,
    ) -> int:
        value = group.get(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        must = f"be a whole number within {least}..{most}"
        raise self.bad(f"{at}.{key}", value, must, f"{key}: {max(least, min(4, most))}")

    def _text(self, at: str, group: Mapping[str, object], key: str, default: str) -> str:
        value = group.get(key, default)
        if value == default or _is_name(value):
            return str(value)
        raise self.bad(f"{at}.{key}", value, "be a name", f"{key}: a100")

    def bad(self, at: str, value: object, must: str, try_: str) -> UserError:
        """The error for one value."""
        is_ = "missing" if value is None else shown(str(value))
        return UserError(self._what, f"{at} is {is_} and must {must}", try_)


def _is_name(value: object) -> bool:
    """Return whether a value names something; YAML reads a rack called 7 as a number."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return False
    return str(value).isprintable() and str(value) != "" and len(str(value)) <= 100
