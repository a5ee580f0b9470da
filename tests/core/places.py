"""Tables of placements: what rows shall have, what they hold by node, and where they end up."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.cluster import Cluster, Node
from coddl.core.jobs import PREFERRED_NODE, JobTable
from coddl.core.snapshot import Snapshot
from coddl.core.speed.places import plain
from coddl.testing import job, snapshot_of


class Row(NamedTuple):
    """A job of a table."""

    gpus: int
    held: Mapping[int, int] = {}  # by node
    spans: bool = True
    preferred_node: int = -1
    skew: float = 0.0  # of its model


class Case(NamedTuple):
    """A line of a table."""

    nodes: tuple[int, ...]  # GPUs of each
    rows: list[Row]
    want: list[dict[int, int]]  # by node


def pictured(case: Case) -> tuple[Snapshot, Allocation]:
    """The picture of a line, and the shares that are to be placed."""
    cluster = Cluster(tuple(Node(f"n{i}", gpus) for i, gpus in enumerate(case.nodes)))
    rows = [
        job(str(at), 1, 16, sits=row.held, spans=row.spans, requested=row.gpus)
        for at, row in enumerate(case.rows)
    ]
    places = plain(len(rows))._replace(skew=np.array([row.skew for row in case.rows]))
    snapshot = snapshot_of(cluster, rows, places=places)
    whole = snapshot.jobs.ints.copy()
    whole[PREFERRED_NODE] = [row.preferred_node for row in case.rows]
    jobs = JobTable(snapshot.jobs.floats, whole).read_only()
    return replace(snapshot, jobs=jobs), Allocation(np.array([row.gpus for row in case.rows]))
