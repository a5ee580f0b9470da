"""What this worker does together with the others, and does again when one of them dies.

Every collective begins with a row of each worker (`rows`), so all know what each is doing. Complete
collectives are counted: a survivor whose count is one behind has missed what a peer has seen, and
takes the state that the peer has when the pass has ended.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, TypeVar

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work

from coddl.runtime.errors import TrainingError
from coddl.runtime.worker import packing, rows
from coddl.runtime.worker.group import Group, GroupError
from coddl.runtime.worker.image import Tree
from coddl.runtime.worker.membership import Membership
from coddl.runtime.worker.rows import BROKE, STOP, VOTE, Kind, PeerRow
from coddl.runtime.worker.supervisor_link import Groups

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PendingRow:
    """A row on its way to the others."""

    row: PeerRow
    everybody: Tensor  # where theirs arrive
    work: Work


@dataclass(slots=True)
class TrainingProgress:
    """Where a worker is in the training."""

    step: int = 0  # passes that have ended
    epoch: int = 0
    collective: int = 0  # that are complete; survivors compare it
    norms: int = 0  # those of them that were a SyncBatchNorm's
    norm: Tensor | None = None  # what the last one of those added up to
    updates: int = 0  # that optimizers have made
    by_hand: bool = False  # the script updates its weights itself


class Peers:
    """The other workers of the group; alone, there are none and nothing is sent."""

    def __init__(
        self,
        membership: Membership,
        progress: TrainingProgress,
        reject: Callable[[TrainingError], NoReturn],
    ) -> None:
        self.agreed = False  # all are ready to change the group after this pass
        self.stopping = False  # the training ends, on all workers
        self.leaving = False  # a worker has left its loop early: so do all
        self.stop_asked = False  # by this worker
        self.is_over = False  # the loops have ended; workers may still compare results
        self.missed: Tree | None = None  # the state of a peer that was ahead
        self._is_behind = False
        self._membership = membership
        self._progress = progress
        self._reject = reject

    @property
    def size(self) -> int:
        """How many workers there are, this one included."""
        return self._membership.size

    @property
    def updates(self) -> int:
        """How many updates the optimizers have made."""
        return self._progress.updates

    def miss(self, tree: Tree) -> None:
        """Be given the state of a peer that has completed what failed here."""
        self._is_behind, self.missed = True, tree

    def together(
        self,
        run: Callable[[Groups], T],
        *,
        alone: Callable[[], T],
        missed: Callable[[], T],
        is_norm: bool = False,
    ) -> T:
        """Run a collective; when a peer dies meanwhile, run it again with those that are left.

        `missed` gives the result where a peer has completed it and this worker has not.
        """
        while True:
            if not self.is_over:
                self._membership.attend()
            if self._is_behind:
                self._is_behind = False
                if not is_norm and self.has_missed_norm:
                    self._count(is_norm=True)  # not what this worker is here for
                    continue
                result = missed()
            elif (groups := self._membership.groups).talk is None:
                result = alone()
            else:
                try:
                    result = run(groups)
                except GroupError as failure:
                    if self.is_over:  # the others have ended: no group is built any more
                        return alone()
                    self._membership.broke(failure)
                    continue
            self._count(is_norm=is_norm)
            return result

    @property
    def has_missed_norm(self) -> bool:
        """Return whether what a peer was ahead by is a sum that it has handed over."""
        assert self.missed is not None
        return bool(self.missed["progress"]["norms"] > self._progress.norms)

    def _count(self, *, is_norm: bool) -> None:
        self._progress.collective += 1
        self._progress.norms += is_norm

    def row(self, kind: Kind, **fields: float) -> PeerRow:
        """Begin this worker's row."""
        at = self._progress
        return PeerRow(kind, at.collective, at.step, at.epoch, **fields)  # type: ignore[arg-type]

    def begin_compare(self, row: PeerRow) -> PendingRow | None:
        """Begin to send the others a row; None where the group does not permit it."""
        row = self.flagged(row)
        talk = self._membership.groups.talk
        if talk is None or self._membership.failed:
            return None
        try:
            return PendingRow(row, *rows.begin_gather(talk, row))
        except GroupError:
            return None  # found out where it is waited for

    def flagged(self, row: PeerRow) -> PeerRow:
        """Add to a row what this worker wants."""
        flags = row.flags | (STOP if self.stop_asked else 0)
        if row.kind == "gradients" and self._membership.is_due:
            flags |= VOTE
        return row if flags == row.flags else replace(row, flags=flags)

    def compare(self, groups: Groups, row: PeerRow, *, calls: bool = True) -> list[PeerRow]:
        """Gather a row of each worker, and learn from them; ends the job if they don't fit.

        `calls`: others may not be here yet because they have sent their row with gradients.
        Where they are in a SyncBatchNorm meanwhile, this worker adds nothing to its statistics.
        """
        while True:
            found = self.end_compare(groups, self.begin_compare(row), calls=calls)
            length = next((each.layout for each in found if each.kind == "norm"), None)
            if length is None or groups.talk is None:
                return found
            self._progress.norm = _added_up(groups.talk, torch.zeros(length, dtype=torch.float64))
            self._count(is_norm=True)
            row = replace(row, exchange=self._progress.collective)

    def is_called(self, groups: Groups) -> bool:
        """Return whether another worker does something else, and waits for the rows of all."""
        return groups.talk is not None and rows.is_called(groups.talk, self._progress.collective)

    def end_compare(
        self, groups: Groups, told: PendingRow | None, *, calls: bool = True
    ) -> list[PeerRow]:
        """Gather the rows of all after this worker's was sent."""
        if told is None or groups.talk is None:
            raise GroupError("the row could not be sent")
        found = rows.end_gather(groups.talk, told.row, told.everybody, told.work, calls=calls)
        return self.learn(told.row, found)

    def learn(self, row: PeerRow, found: list[PeerRow]) -> list[PeerRow]:
        """Learn from the rows what all will do; ends the job if they don't fit."""
        try:
            rows.check(found, self._membership.members)
        except TrainingError as error:
            self._reject(error)
        if row.kind in ("gradients", "skip", "end"):
            self.agreed = all(each.flags & VOTE for each in found)
        self.stopping |= any(each.flags & STOP for each in found)
        self.leaving |= any(each.kind == "end" and each.flags & BROKE for each in found)
        return found

    def mean(self, number: float, weight: float) -> float:
        """Average a number over the workers."""

        def reduce(groups: Groups) -> float:
            told = self.compare(groups, self.row("mean", value=number, weight=weight))
            found = [row for row in told if row.kind == "mean"]
            total = math.fsum(row.weight for row in found)
            if not total:
                return math.fsum(row.value for row in found) / len(found)
            return math.fsum(row.value * row.weight for row in found if row.weight) / total

        return self.together(reduce, alone=lambda: number, missed=lambda: number)

    def sum(self, number: float) -> float:
        """Add a number up over the workers."""

        def reduce(groups: Groups) -> float:
            found = self.compare(groups, self.row("sum", value=number))
            return math.fsum(row.value for row in found)

        return self.together(reduce, alone=lambda: number, missed=lambda: number)

    def gather(self, tensor: Tensor) -> Tensor:
        """Put the workers' tensors together along their first dimension, in order of rank."""

        def collect(groups: Groups) -> Tensor:
            found = self.compare(groups, self.row("gather"))
            parts = self.gathered(groups, found, tensor.detach())
            return torch.cat([part.to(tensor.device) for part in parts])

        return self.together(collect, alone=lambda: tensor, missed=lambda: tensor)

    def gathered(
        self, groups: Groups, found: Sequence[PeerRow], mine: Tensor | None
    ) -> list[Tensor]:
        """Return the tensors of those that gather; a worker that has left its loop has none."""
        talk = groups.talk
        assert talk is not None
        ranks = [rank for rank, row in enumerate(found) if row.kind == "gather"]
        return [packing.shared(talk, mine if rank == talk.rank else None, rank) for rank in ranks]

    def total(self, vector: Tensor) -> Tensor:
        """Add a vector up, for a SyncBatchNorm; a worker that skips its batch adds nothing."""

        def add(groups: Groups) -> Tensor:
            assert groups.talk is not None
            self.end_compare(groups, self.begin_compare(self.row("norm", layout=len(vector))))
            return _added_up(groups.talk, vector)

        def missed() -> Tensor:
            assert self.missed is not None
            total: Tensor = self.missed["progress"]["norm"]
            return total

        total = self.together(add, alone=lambda: vector, missed=missed, is_norm=True)
        self._progress.norm = total
        return total

    def from_main(self, groups: Groups, tree: Tree) -> Tree:
        """Give all workers the main worker's tree; part of a collective."""
        assert groups.talk is not None
        return packing.shared(groups.talk, tree if groups.talk.rank == 0 else None)


def _added_up(group: Group, vector: Tensor) -> Tensor:
    """Add a short vector up over the members: to gather it takes fewer messages than to reduce."""
    everybody = vector.new_empty(group.world * len(vector))
    group.finish(group.all_gather(everybody, vector))
    return everybody.view(group.world, len(vector)).sum(0)


@torch.no_grad()
def copy_into(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy values into tensors, one by one."""
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
