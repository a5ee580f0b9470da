"""Slices: which samples of a batch each worker gets. Pure, and the same on every worker."""

from collections.abc import Sequence
from functools import lru_cache
from math import ceil


def slices(samples: int, counts: Sequence[int]) -> list[range]:
    """Cut a batch into contiguous slices in proportion to `counts`, in order of rank.

    A full batch, of sum(counts) samples, is cut exactly so. In a shorter one some may get none.
    """
    return list(_slices(samples, tuple(counts)))


@lru_cache(maxsize=64)
def _slices(samples: int, counts: tuple[int, ...]) -> tuple[range, ...]:
    total = sum(counts)
    sizes = [samples * count // total for count in counts]
    # What is left over goes where most was cut off; among equals to the lower rank.
    by_rest = sorted(range(len(counts)), key=lambda rank: (-(samples * counts[rank] % total), rank))
    for rank in by_rest[: samples - sum(sizes)]:
        sizes[rank] += 1
    cut: list[range] = []
    start = 0
    for size in sizes:
        cut.append(range(start, start + size))
        start += size
    return tuple(cut)


def largest_pass(samples: int, micro_batch: int | None) -> int:
    """Give the samples of the largest pass of a slice; `micro_batch` cuts it into even ones."""
    return samples if micro_batch is None else ceil(samples / ceil(samples / micro_batch))
