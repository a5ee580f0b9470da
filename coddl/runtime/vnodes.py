"""Virtual nodes: which samples, which seed, whose. Pure, and the same on every worker.

The global batch is V micro-batches, the virtual nodes. V never changes; workers own virtual nodes
and a resize moves ownership only. (D5)
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from coddl.runtime.errors import TrainingError

VIRTUAL_NODES_DEFAULT_MAX = 16


@dataclass(frozen=True, slots=True)
class Batch:
    """How a job's global batch is cut. Depends on the script alone."""

    global_batch: int
    micro_batch: int

    @property
    def virtual_nodes(self) -> int:
        return self.global_batch // self.micro_batch


def batch_of(global_batch: int, micro_batch: int | None) -> Batch:
    """Cut the global batch; by default into the largest power of two of parts up to 16."""
    if global_batch % 1 or global_batch < 1:
        raise TrainingError(
            f"global_batch={global_batch} is no batch",
            "it must be a whole number of samples, at least 1",
            "global_batch=256",
        )
    global_batch = int(global_batch)  # 32.0 is meant well
    if micro_batch is None:
        parts = VIRTUAL_NODES_DEFAULT_MAX
        while global_batch % parts:
            parts //= 2
        return Batch(global_batch, global_batch // parts)
    if micro_batch < 1 or global_batch % micro_batch:
        fits = [size for size in range(1, global_batch + 1) if global_batch % size == 0]
        nearest = min(fits, key=lambda size: (abs(size - micro_batch), size))
        raise TrainingError(
            f"global_batch={global_batch} can't be cut into micro-batches of {micro_batch}",
            "every virtual node must hold the same number of samples",
            f"micro_batch={nearest}, or leave it out",
        )
    return Batch(global_batch, micro_batch)


def shares(virtual_nodes: int, pass_s: Sequence[float]) -> tuple[int, ...]:
    """Deal virtual nodes to workers so that the slowest finishes soonest; at least one to each.

    `pass_s` is each worker's time for one virtual node. Minimises max(n_i * t_i) greedily, which is
    exact here: the next virtual node always goes where it would end first.
    """
    assert 0 < len(pass_s) <= virtual_nodes, (virtual_nodes, pass_s)
    owned = [1] * len(pass_s)
    for _ in range(virtual_nodes - len(pass_s)):
        soonest = min(range(len(owned)), key=lambda i: ((owned[i] + 1) * pass_s[i], i))
        owned[soonest] += 1
    return tuple(owned)


def owned_by(rank: int, counts: Sequence[int]) -> range:
    """Give the virtual nodes of one rank: contiguous, in order of rank."""
    first = sum(counts[:rank])
    return range(first, first + counts[rank])


def seed_of(*parts: int) -> int:
    """Mix numbers into a seed; neighbours give unrelated streams."""
    text = ",".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
