"""Heaps of rows, the last in order on top: parts of kernels."""

from typing import NamedTuple

from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.compiling import ZERO, part


@part
def comes_before(keys: FloatMatrix, a: int, b: int) -> bool:
    """Compare two rows by key 0, then key 1, …, then by position, so that the order is total."""
    for level in range(keys.shape[0]):
        if keys[level, a] != keys[level, b]:
            return bool(keys[level, a] < keys[level, b])
    return a < b


@part
def sink(heap: IntColumn, at: int, size: int, keys: FloatMatrix) -> None:
    """Restore a heap, the last in order on top, after entry `at` was replaced."""
    row = heap[at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and comes_before(keys, heap[child], heap[child + 1]):
            child += 1
        if not comes_before(keys, row, heap[child]):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = row


@part
def make_heap(heap: IntColumn, size: int, keys: FloatMatrix) -> None:
    """Order the first `size` entries as a heap, the last in order on top."""
    for at in range(size // 2 - 1, -1, -1):
        sink(heap, at, size, keys)


@part
def sort_heap(heap: IntColumn, size: int, keys: FloatMatrix) -> None:
    """Put a heap in order."""
    for last in range(size - 1, 0, -1):
        heap[0], heap[last] = heap[last], heap[0]
        sink(heap, ZERO, last, keys)


class ValuedRows(NamedTuple):
    """A heap of rows with an array of their values, the largest value on top, ties to the first
    row. A large one is faster than a heap that looks its keys up.
    """

    values: FloatColumn
    rows: IntColumn


@part
def sink_valued(heap: ValuedRows, at: int, size: int) -> None:
    """Restore the heap after entry `at` was replaced."""
    values, rows = heap.values, heap.rows
    value, row = values[at], rows[at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            values[other] > values[child]
            or (values[other] == values[child] and rows[other] < rows[child])
        ):
            child = other
        if values[child] < value or (values[child] == value and rows[child] > row):
            break
        values[at], rows[at] = values[child], rows[child]
        at = child
    values[at], rows[at] = value, row


@part
def make_valued_heap(heap: ValuedRows, size: int) -> None:
    """Order the first `size` entries as such a heap."""
    for at in range(size // 2 - 1, -1, -1):
        sink_valued(heap, at, size)
