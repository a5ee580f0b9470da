"""What the log says of nodes that may be set up by mistake."""

from typing import Final

import structlog

from coddl.core.cluster import Cluster
from coddl.core.pool.node_problems import node_problems
from coddl.core.pool.state import Pool

NAMES_SHOWN: Final = 8  # of a cluster's nodes

log = structlog.get_logger(__name__)


class NodeWarnings:
    """Logs each problem once, as long as it lasts."""

    def __init__(self, site: Cluster | None) -> None:
        self._site = site  # what the operator says of the nodes
        self._told: frozenset[str] = frozenset()

    def look_up(self, pool: Pool, node: str) -> None:
        """Log what may be a mistake: a node is not described, or differs from others."""
        if self._site is not None and node not in {each.name for each in self._site.nodes}:
            names = ", ".join(each.name for each in self._site.nodes[:NAMES_SHOWN])
            log.warning("node_not_in_cluster_file", node=node, named=names)
        found = node_problems(pool)
        for kind in found.keys() - self._told:
            log.warning("nodes_differ", node=node, problem=found[kind])
        self._told = frozenset(found)
