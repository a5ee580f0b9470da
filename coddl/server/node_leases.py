"""The leases of all nodes, as the server counts them; by a monotonic clock."""


class NodeLeases:
    """A lease for each node, counted from when its last beat came.

    The agent counts from when it sent that beat, which was earlier: when we take a node for lost,
    its agent has given up its devices before.
    """

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self._ends_s: dict[str, float] = {}  # by the steady clock

    def renew(self, node: str, steady_s: float) -> None:
        """Renew a node's lease."""
        self._ends_s[node] = steady_s + self.lease_s

    def renew_all(self, steady_s: float) -> None:
        """Renew all leases."""
        for node in self._ends_s:
            self.renew(node, steady_s)

    def end(self, node: str) -> None:
        """Forget a node."""
        self._ends_s.pop(node, None)

    def left_s(self, node: str, steady_s: float) -> float | None:
        """Return how long a node's lease runs; None if it has none."""
        end_s = self._ends_s.get(node)
        return None if end_s is None else max(0.0, end_s - steady_s)

    def run_out(self, steady_s: float) -> list[str]:
        """Name the nodes whose lease is over."""
        return [node for node, end_s in self._ends_s.items() if end_s <= steady_s]

    def next_end_s(self) -> float | None:
        """Return when the next lease runs out."""
        return min(self._ends_s.values(), default=None)
