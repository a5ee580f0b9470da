"""Gradients of the global batch: summed over the workers while backward still runs.

Parameters are laid out in buckets, in the same order on every worker. Those that the same backward
of an earlier pass used are *planned*: each is sent as soon as backward has produced its gradients,
the last one when backward has ended. It carries the workers' rows: each has a place of its own in
it, so that their sum is all of them. If a row says that its worker deviates from the plan, the
workers exchange which buckets they need, and the rest is sent.
The worker's own gradients stay in `.grad` until the sum is complete, so that it can be sent again
when a peer dies. Then `.grad` is a view of the bucket.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work
from torch.utils.hooks import RemovableHandle

from coddl.runtime.errors import TrainingError
from coddl.runtime.worker.group import Group, GroupError
from coddl.runtime.worker.rows import PACKED_BYTES, PeerRow

BUCKET_BYTES: Final = 25 << 20
FIRST_BUCKET_BYTES: Final = 1 << 20  # small, so that sending starts early
BUCKETS_MAX: Final = 16 * 62  # as many as a row has bits for


@dataclass(slots=True)
class Bucket:
    """Neighbouring parameters' gradients in one flat vector; behind them, which exist, and rows."""

    parameters: list[Tensor]
    flat: Tensor
    views: list[Tensor]
    present: Tensor  # flags
    rows: Tensor  # a number for each byte, which every type of number can hold
    missing: int = 0  # gradients that this backward has not produced yet
    work: Work | None = None
    versions: list[int] = field(default_factory=list)  # of the gradients that were sent

    def fill(self, scale: float, got: set[int]) -> None:
        """Write the worker's own gradients, scaled, into the flat vector."""
        there = [(v, p.grad) for v, p in zip(self.views, self.parameters, strict=True)]
        sources = [(view, grad) for view, grad in there if grad is not None]
        if len(sources) < len(there):
            self.flat.zero_()
        if sources:
            torch._foreach_copy_([view for view, _ in sources], [grad for _, grad in sources])
        flags = [float(id(p) in got) for p in self.parameters]
        if all(flags):
            self.present.fill_(1.0)
        else:
            self.present.copy_(torch.tensor(flags))
        if scale != 1.0:
            self.flat[: self.flat.numel() - len(self.present) - len(self.rows)].mul_(scale)
        self.versions = [-1 if p.grad is None else p.grad._version for p in self.parameters]

    def carry(self, row: PeerRow, rank: int) -> None:
        """Take a worker's row along, in its place among the others'."""
        packed = torch.frombuffer(row.packed(), dtype=torch.uint8)
        self.rows.zero_()
        self.rows[rank * PACKED_BYTES : (rank + 1) * PACKED_BYTES].copy_(packed)

    def carried(self) -> bytes:
        """Return the rows of all, by rank, when the sum is complete."""
        return self.rows.to("cpu", torch.float32).numpy().astype("u1").tobytes()

    def has_changed(self) -> bool:
        """Return whether a gradient was changed after it was sent."""
        return any(
            version != (-1 if p.grad is None else p.grad._version)
            for version, p in zip(self.versions, self.parameters, strict=True)
        )

    def put_back(self, factor: float, got: set[int]) -> None:
        """Set `.grad` to the sum times the factor, where any worker has a gradient."""
        if factor != 1.0:
            self.flat.mul_(factor)
        mine = [id(p) in got for p in self.parameters]
        anyone = mine if all(mine) else [flag > 0 for flag in self.present.tolist()]
        for parameter, view, there in zip(self.parameters, self.views, anyone, strict=True):
            if there or parameter.grad is not None:
                parameter.grad = view


class Gradients:
    """The exchange of one generation: parameters as they are now, among the members of a group."""

    def __init__(self, group: Group, parameters: Sequence[Tensor]) -> None:
        self.signature = signature_of(parameters)
        self.ids = [id(p) for p in parameters]
        self.got: set[int] = set()  # parameters that this backward has given a gradient
        self._group = group
        self._plans: dict[int, frozenset[int]] = {}  # by the number of the backward in its pass
        self._buckets = [_bucket(each, group.world) for each in grouped(parameters)]
        self._bucket_of = {id(p): b for b in self._buckets for p in b.parameters}
        self._planned: list[Bucket] = []  # in the order in which they are sent
        self._next = 0  # of them
        self._rows: list[PeerRow] | None = None  # that came with them
        self._number = 0
        self._scale = 1.0
        self.is_stray = False  # gradients came without an exchange around them
        self._is_expecting = False
        self._armed = False
        self._overlaps = True
        self._problem: Exception | None = None
        self._hooks: list[RemovableHandle] = [
            p.register_post_accumulate_grad_hook(self._on_gradient) for p in parameters
        ]

    def close(self) -> None:
        """Remove the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()

    def begin(self, number: int, scale: float, *, overlap: bool = True) -> None:
        """Expect a backward: its number in the pass, and this worker's part of the sum."""
        self._number = number
        self._planned = [self._buckets[i] for i in sorted(self.plan)]
        self._next, self._scale, self._problem = 0, scale, None
        self._rows = None
        self.got = set()
        self._is_expecting, self.is_stray = True, False
        self._armed = self._overlaps and overlap
        for bucket in self._buckets:
            bucket.missing, bucket.work = len(bucket.parameters), None
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                if parameter.grad is not None and parameter.grad.data_ptr() == view.data_ptr():
                    parameter.grad = view.clone()  # backward adds to it, and the bucket is reused

    @property
    def plan(self) -> frozenset[int]:
        """Number the buckets that this backward used last time; the same on every worker."""
        return self._plans.get(self._number, frozenset())

    def _on_gradient(self, parameter: Tensor) -> None:
        """Take note of a gradient that is complete; send the buckets that are full now."""
        bucket = self._bucket_of[id(parameter)]
        self.is_stray |= not self._is_expecting
        if id(parameter) in self.got or not self._armed:
            self.got.add(id(parameter))
            return
        self.got.add(id(parameter))
        bucket.missing -= 1
        while self._next < len(self._planned) - 1 and not self._planned[self._next].missing:
            self._send(self._planned[self._next])
            self._next += 1

    def _send(self, bucket: Bucket, row: PeerRow | None = None) -> None:
        if self._problem is not None:
            return
        try:
            bucket.fill(self._scale, self.got)
            if row is not None:
                bucket.carry(row, self._group.rank)
            bucket.work = self._group.all_reduce(bucket.flat)
        except (GroupError, RuntimeError) as problem:  # for the end: backward is the user's code
            self._problem = problem

    def end(self) -> None:
        """Stop sending early; raises what is wrong with the gradients themselves."""
        self._armed = self._is_expecting = False
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    raise TrainingError(
                        "a gradient is sparse",
                        f"a parameter of shape {tuple(parameter.shape)} has a sparse gradient",
                        "nn.Embedding(..., sparse=False)",
                    )

    @property
    def used(self) -> set[int]:
        """Number the buckets that got a gradient in this backward."""
        return {
            number
            for number, bucket in enumerate(self._buckets)
            if any(id(p) in self.got for p in bucket.parameters)
        }

    @property
    def is_stale(self) -> bool:
        """Return whether something that was sent has changed since: backward came by again."""
        return any(b.work is not None and b.has_changed() for b in self._planned[: self._next])

    @property
    def deviates(self) -> bool:
        """Return whether the plan does not suffice for this backward."""
        return self.is_stale or not self.used <= self.plan

    def send_planned(self, row: PeerRow) -> None:
        """Send what was planned and is still here; a row goes with the last bucket."""
        for bucket in self._planned[self._next :]:
            self._send(bucket, row if bucket is self._planned[-1] else None)
        self._next = len(self._planned)

    def sum_planned(self, unless: Callable[[], bool] = lambda: False) -> list[PeerRow] | None:
        """Complete the sums that were planned, and give the rows of all; raises GroupError.

        Gives None when `unless` was true first, and no rows where nothing was planned.
        """
        if self._rows is None and self._wait(self._planned, unless):
            last = self._planned[-1:]
            self._rows = PeerRow.unpacked(last[0].carried(), self.plan) if last else []
        return self._rows

    def sum_used(self, used: frozenset[int], *, again: bool) -> None:
        """Complete the sums of what any worker used; `again`: of what was planned, too."""
        if again:
            self._overlaps = False
        wanted = used if again else used - self.plan
        rest = [self._buckets[i] for i in sorted(wanted | (self.plan if again else frozenset()))]
        for bucket in rest:
            self._send(bucket)
        self._wait(rest)
        self._plans[self._number] = self.plan | used if self._overlaps else frozenset()
        self._planned = [self._buckets[i] for i in sorted(used | self.plan)]

    def put_back(self, factor: float) -> None:
        """Make the sums, times a factor, the gradients."""
        for bucket in self._planned:
            bucket.put_back(factor, self.got)

    def _raise_problem(self) -> None:
        if isinstance(self._problem, GroupError):
            raise self._problem
        if self._problem is not None:
            raise GroupError(str(self._problem).splitlines()[0]) from self._problem

    def _wait(self, buckets: Sequence[Bucket], unless: Callable[[], bool] = lambda: False) -> bool:
        self._raise_problem()
        for bucket in buckets:
            assert bucket.work is not None
            if not self._group.finish(bucket.work, unless):
                return False
        return True


def signature_of(parameters: Sequence[Tensor]) -> int:
    """Return the layout's signature: workers whose signatures differ can't exchange."""
    shapes = [(tuple(p.shape), str(p.dtype)) for p in parameters]
    return zlib.crc32(repr(shapes).encode())


def grouped(parameters: Sequence[Tensor]) -> list[list[Tensor]]:
    """Cut the parameters into buckets, last ones first: backward makes them in that order."""
    total_bytes = sum(p.nbytes for p in parameters)
    limit_bytes = max(BUCKET_BYTES, 2 * total_bytes // BUCKETS_MAX)
    groups: list[list[Tensor]] = []
    size = 0
    for parameter in reversed(parameters):
        limit = FIRST_BUCKET_BYTES if len(groups) == 1 else limit_bytes
        if not groups or size >= limit or parameter.dtype != groups[-1][-1].dtype:
            groups.append([])
            size = 0
        groups[-1].append(parameter)
        size += parameter.nbytes
    return groups


def _bucket(parameters: list[Tensor], world: int) -> Bucket:
    flags_at = sum(p.numel() for p in parameters)
    rows_at = flags_at + len(parameters)
    like = parameters[0]
    flat = torch.zeros(rows_at + world * PACKED_BYTES, dtype=like.dtype, device=like.device)
    views = []
    offset = 0
    for parameter in parameters:
        piece = flat[offset : offset + parameter.numel()]
        # Gradients have their parameter's memory layout; their place here has it too, for speed.
        strides = torch.empty_like(parameter, device="meta").stride()
        views.append(piece.as_strided(parameter.size(), strides, piece.storage_offset()))
        offset += parameter.numel()
    return Bucket(parameters, flat, views, flat[flags_at:rows_at], flat[rows_at:])
