"""Where jobs sit: how many GPUs of which islands each row of a table holds, as columns."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from coddl.core.cluster import ClusterColumns
from coddl.core.columns import IntColumn, IntMatrix
from coddl.core.compiling import kernel


class Slots(NamedTuple):
    """Row r holds `gpus[i]` GPUs of island `island[i]` for i in first[r] .. first[r+1]-1.

    Islands of a row are in rising order, each once, and every entry holds at least one GPU.
    """

    first: IntColumn
    island: IntColumn
    gpus: IntColumn

    @classmethod
    def of(cls, rows: Sequence[dict[int, int]]) -> Self:
        """Seats from {island: gpus} of each row."""
        first = np.cumsum([0, *map(len, rows)])
        pairs = [pair for row in rows for pair in sorted(row.items())]
        table = np.array(pairs, np.int64).reshape(-1, 2)
        return cls(first.astype(np.int64), table[:, 0].copy(), table[:, 1].copy())

    @classmethod
    def none(cls, rows: int) -> Self:
        """Seats of rows that hold nothing."""
        empty = np.zeros(0, np.int64)
        return cls(np.zeros(rows + 1, np.int64), empty, empty)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.first) - 1

    @property
    def totals(self) -> IntColumn:
        """GPUs of each row."""
        return row_sums(self.first, self.gpus)

    def row(self, row: int) -> dict[int, int]:
        """What one row holds, as {island: gpus}."""
        part = slice(self.first[row], self.first[row + 1])
        return dict(zip(self.island[part].tolist(), self.gpus[part].tolist(), strict=True))

    def nodes(self, row: int, columns: ClusterColumns) -> dict[int, int]:
        """What one row holds, as {node: gpus}."""
        held: dict[int, int] = {}
        for island, gpus in self.row(row).items():
            node = int(columns.island_node[island])
            held[node] = held.get(node, 0) + gpus
        return held

    def by_kind(self, columns: ClusterColumns, kinds: int) -> IntMatrix:
        """GPUs of each row, by kind."""
        if kinds == 1:
            return self.totals.reshape(-1, 1)
        held = np.zeros((self.rows, kinds), np.int64)
        row = np.repeat(np.arange(self.rows), np.diff(self.first))
        np.add.at(held, (row, columns.node_kind[columns.island_node[self.island]]), self.gpus)
        return held

    def take(self, rows: IntColumn) -> Self:
        """The same seats with only these rows, -1 standing for one that holds nothing."""
        return type(self)(*taken(self.first, self.island, self.gpus, rows))

    def renumbered(self, islands: IntColumn) -> Self:
        """The same seats by each island's new number, -1 for one that is gone."""
        island = islands[self.island]
        stays = island >= 0
        first = np.concatenate(([0], np.cumsum(stays)))[self.first]
        return type(self)(first.astype(np.int64), island[stays], self.gpus[stays])

    def in_use(self, columns: ClusterColumns) -> IntColumn:
        """GPUs of each island that are held."""
        return summed(self.island, self.gpus, len(columns.island_gpus))


@kernel
def summed(at: IntColumn, values: IntColumn, size: int) -> IntColumn:
    """Sum values by where they belong."""
    out = np.zeros(size, np.int64)
    for i in range(at.shape[0]):
        out[at[i]] += values[i]
    return out


@kernel
def row_sums(first: IntColumn, values: IntColumn) -> IntColumn:
    """Sum the values of each row."""
    out = np.zeros(first.shape[0] - 1, np.int64)
    for row in range(out.shape[0]):
        for i in range(first[row], first[row + 1]):
            out[row] += values[i]
    return out


@kernel
def taken(
    first: IntColumn, island: IntColumn, gpus: IntColumn, rows: IntColumn
) -> tuple[IntColumn, IntColumn, IntColumn]:
    """Pick the entries of some rows."""
    out_first = np.zeros(rows.shape[0] + 1, np.int64)
    for k in range(rows.shape[0]):
        row = rows[k]
        size = first[row + 1] - first[row] if row >= 0 else 0
        out_first[k + 1] = out_first[k] + size
    out_island = np.empty(out_first[-1], np.int64)
    out_gpus = np.empty(out_first[-1], np.int64)
    for k in range(rows.shape[0]):
        for i in range(out_first[k + 1] - out_first[k]):
            out_island[out_first[k] + i] = island[first[rows[k]] + i]
            out_gpus[out_first[k] + i] = gpus[first[rows[k]] + i]
    return out_first, out_island, out_gpus
