"""The exchange of gradients: after `backward()`, `.grad` is that of the global batch.

It is a mean over samples, weighted by what each worker's part weighs: its samples, or what the
script says. When a worker dies, the others send again and the mean is over what is left.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Literal

from torch import Tensor
from torch.optim import Optimizer

from coddl.runtime.errors import TrainingError
from coddl.runtime.worker.buffer_sync import BufferSync
from coddl.runtime.worker.gradients import Gradients
from coddl.runtime.worker.group import Group
from coddl.runtime.worker.guard import rates_of
from coddl.runtime.worker.loader import Slice
from coddl.runtime.worker.micro_batches import MicroBatches
from coddl.runtime.worker.peers import Peers, PendingRow
from coddl.runtime.worker.rows import BROKE, DEVIATES, STALE, PeerRow
from coddl.runtime.worker.supervisor_link import Groups

Reduction = Literal["mean", "sum"]
IDLE = 1 << 30  # next to the flags of rows: this worker has nothing to give


class Exchange:
    """Exchanges what backward computes in one pass after the other."""

    def __init__(
        self,
        peers: Peers,
        optimizers: Sequence[Optimizer],
        parameters: Callable[[], list[Tensor]],
        *,
        reduction: Reduction,
        buffer_sync: BufferSync,
        waiting: Callable[[], AbstractContextManager[None]],
        lost: Callable[[int], None],
    ) -> None:
        self.slice = Slice(1, 1)  # of the pass under way
        self.weight: float | None = None  # of the next backward, if not its samples
        self.in_pass = False
        self.is_shared = False  # other workers were in the pass when it began
        self.has_norms = False  # workers also meet in the SyncBatchNorms of the model
        self.number = 0  # how many this pass has had
        self.synchronises = True
        self.is_idle = False  # this worker took part in an update that it does not make
        self.has_idle = False  # some worker did
        self._usual = 1  # how many a pass has
        self._peers = peers
        self._optimizers = optimizers
        self._parameters = parameters
        self._reduction = reduction
        self._buffer_sync = buffer_sync
        self._waiting = waiting  # around what is waiting for others
        self._lost = lost
        self._has_told_loss = False
        self.micro_batches: MicroBatches | None = None  # with micro_batch
        self._group: Group | None = None
        self._gradients: Gradients | None = None
        self._is_running = False  # between the beginning and the end of a backward
        self._told: PendingRow | None = None  # this worker's row, on its way to the others
        self._rides = False  # it goes with the gradients
        self._bases: list[tuple[Tensor, Tensor]] = []  # sums of earlier backwards, for "sum"
        self._kept = Slice(0, 0)  # samples whose gradients were not exchanged yet

    # -- the group

    def join(self, group: Group | None) -> None:
        """Exchange with these workers from now on."""
        self._group = group
        before, self._gradients = self._gradients, None
        if before is not None:
            before.close()
        if group is not None:
            self._lay_out()
            if before is not None and self._is_running:
                self._take_over(before)
        elif not self.number:
            self._alone()

    def _lay_out(self) -> None:
        assert self._group is not None
        if self._gradients is not None:
            self._gradients.close()
        self._gradients = Gradients(self._group, self._parameters())

    def _take_over(self, before: Gradients) -> Gradients:
        """Go on with a backward after the group that part of it was sent in is gone."""
        assert self._gradients is not None
        self._gradients.begin(self.number, self.scale)
        self._gradients.got = before.got
        self._begin_telling(self._gradients)
        return self._gradients

    # -- a pass

    def begin_pass(self, of: Slice, weight: float | None) -> None:
        """Begin with a slice of a batch."""
        self.slice, self.weight = of, weight
        self.in_pass, self.number = True, 0
        self.is_shared, self._is_running = self._group is not None, False
        self._has_told_loss = False

    def end_pass(self) -> None:
        """End a pass; one that had no backward takes part in the others' with weight zero."""
        while not self.number and self._gradients is not None:
            for _ in range(self._usual):
                self._skip()
        self._usual = max(1, self.number)
        self.in_pass = False

    @property
    def own_weight(self) -> float:
        """What this worker's part of the batch weighs."""
        if self.weight is None or not self.slice.own:  # the script weighs duplicates, too
            return float(self.slice.own)
        return self.weight

    # -- backward

    @property
    def is_due(self) -> bool:
        exchanges = self._gradients is not None and self.synchronises
        return self.in_pass and (exchanges or self.micro_batches is not None)

    def keep_back(self) -> None:
        """Take note of a backward whose gradients the next exchange takes along."""
        if self.in_pass and self._gradients is not None and not self.synchronises:
            of, kept = self.slice, self._kept
            self._kept = Slice(kept.samples + of.samples, kept.own + of.own)

    def begin_backward(self) -> None:
        if self.micro_batches is not None:
            self.micro_batches.begin_backward()
        if self._gradients is None or self._is_partial:
            return
        if [id(p) for p in self._parameters()] != self._gradients.ids:
            self._lay_out()
        if self._reduction == "sum":
            self._put_aside()
        self._gradients.begin(self.number, self.scale, overlap=self.micro_batches is None)
        self._begin_telling(self._gradients)
        self._is_running = True

    def _begin_telling(self, gradients: Gradients) -> None:
        """Have the row travel while backward runs, unless it goes with the gradients.

        It does in passes with a single backward. Where there are more, workers may be in different
        ones, whose buckets differ: that is found out first. A SyncBatchNorm has rows of its own in
        backward, which a worker that skips its batch must see first: then it follows at the end.
        """
        self._rides = bool(gradients.plan) and self._usual == 1 and not self.number
        if not self._rides and not self.has_norms:
            self._told = self._peers.begin_compare(self._row("gradients", gradients.plan))

    @property
    def _is_partial(self) -> bool:
        return self.micro_batches is not None and self.micro_batches.is_partial

    @property
    def scale(self) -> float:
        """What this worker's gradients count in the sum."""
        if self._reduction == "sum":
            return float(self.own_weight > 0)
        return self.own_weight / self.slice.samples

    def _put_aside(self) -> None:
        """Keep earlier sums out of this one; a mean of equal parts need not."""
        self._bases = [(p, p.grad) for p in self._parameters() if p.grad is not None]
        for parameter, _ in self._bases:
            parameter.grad = None

    def end_backward(self) -> None:
        if self.micro_batches is not None:
            self.micro_batches.end_backward()
        is_due, self._is_running = self._is_running and self.synchronises, False
        if not is_due:
            return
        mine = self._gradients
        if mine is not None:  # else the other workers have died meanwhile
            if self.micro_batches is not None:
                mine.got |= self.micro_batches.got
            mine.end()

        def exchange(groups: Groups) -> None:
            gradients = self._gradients
            assert gradients is not None
            if mine is not None and gradients is not mine:
                self._take_over(mine).end()
            flags = DEVIATES if gradients.deviates else 0
            row = self._peers.flagged(self._row("gradients", gradients.plan, flags))
            gradients.send_planned(row)
            self._finish(gradients, groups, self._gathered(gradients, groups, row))

        with self._waiting():
            self._peers.together(exchange, alone=self._alone, missed=lambda: None)
        for parameter, base in self._bases:
            parameter.grad = base if parameter.grad is None else parameter.grad.add_(base)
        self._bases = []
        self.number += 1
        self.weight, self._kept = None, Slice(0, 0)

    def _gathered(self, gradients: Gradients, groups: Groups, row: PeerRow) -> list[PeerRow]:
        """Return the rows of all: those that came with gradients, if all sent them."""
        if not self._rides:
            told = self._peers.begin_compare(row) if self.has_norms else self._told
            return self._peers.end_compare(groups, told)
        found = gradients.sum_planned(unless=lambda: self._peers.is_called(groups))
        if found is None:  # a worker does something else: it will take part when it knows
            return self._peers.compare(groups, row)
        return self._peers.learn(row, found)

    def check_update(self) -> None:
        """Raise if an optimizer is about to use gradients that were not exchanged."""
        if self.in_pass and self._gradients is not None and self._gradients.is_stray:
            raise TrainingError(
                "an update would be made with the gradients of one worker",
                "backward() ran without an exchange: inside coddl.no_sync(), or through a name "
                "for torch.autograd.backward that was imported before coddl.prepare",
                "loss.backward(), outside coddl.no_sync() the last time before optimizer.step()",
            )

    def _alone(self) -> None:
        """Complete an exchange as the only worker left: its own part is all there is."""
        self._tell_loss(self.slice.own + self._kept.own)
        self._kept = Slice(0, 0)  # a group that is formed later lacks nothing of it

    def _skip(self) -> None:
        def skip(groups: Groups) -> None:
            found = self._peers.compare(groups, self._row("skip", frozenset()))
            if any(row.kind == "gradients" for row in found):
                self.take_part(groups, found)
            elif any(row.flags & BROKE for row in found):
                self.is_idle = self.has_idle = True  # this pass does not count

        self._peers.together(skip, alone=lambda: None, missed=lambda: None)
        self.number += 1

    def take_part(self, groups: Groups, found: Sequence[PeerRow], flags: int = 0) -> None:
        """Take part in the others' exchange with nothing to give."""
        assert self._gradients is not None
        kept = [(p, p.grad) for p in self._parameters()]
        for parameter, _ in kept:
            parameter.grad = None
        self._gradients.begin(self.number if self.in_pass else 0, 0.0)
        self._gradients.end()
        self._gradients.send_planned(self._row("skip", frozenset()))
        self._finish(self._gradients, groups, found, idle=flags | IDLE)
        # The others undo an update that follows where this worker has left its loop.
        self.is_idle = self.has_idle = not flags & BROKE
        for parameter, grad in kept:
            parameter.grad = grad

    def _row(
        self, kind: Literal["gradients", "skip"], used: frozenset[int], flags: int = 0
    ) -> PeerRow:
        assert self._gradients is not None
        about = self._peers.row(kind)
        return PeerRow(
            kind,
            about.exchange,
            about.step,
            about.epoch,
            layout=self._gradients.signature,
            rates=rates_of(self._optimizers),
            order=self.slice.order,
            applied=self._peers.updates,
            weight=self.own_weight if kind == "gradients" else 0.0,
            value=float(self.slice.own + self._kept.own),
            flags=flags,
            buffers=self._buffer_sync.changed(),
            buckets=used,
        )

    def _finish(
        self, gradients: Gradients, groups: Groups, found: Sequence[PeerRow], idle: int = 0
    ) -> None:
        """Complete the exchange that `found` has begun."""
        trained = [row for row in found if row.kind == "gradients"]
        planned = gradients.sum_planned()
        if not planned or any(row.flags & DEVIATES for row in planned):
            stale = STALE if gradients.is_stale else 0
            kind: Literal["gradients", "skip"] = "skip" if idle else "gradients"
            row = self._row(kind, frozenset(gradients.used), (idle & ~IDLE) | stale)
            amended = self._peers.compare(groups, row, calls=False)
            used = frozenset[int]().union(*(row.buckets for row in amended))
            gradients.sum_used(used, again=any(row.flags & STALE for row in amended))
        total = sum(row.weight for row in trained)
        samples = self.slice.samples if self.in_pass else total
        factor = samples / total if self._reduction == "mean" and total else 1.0
        if found[0].buffers and groups.train is not None:
            self._buffer_sync.follow(groups.train, found[0].buffers)
        gradients.put_back(1.0 if abs(factor - 1.0) < 1e-9 else factor)
        self.has_idle |= bool(trained) and len(trained) < len(found)
        self.is_idle |= any(row.flags & BROKE for row in found)
        if self.in_pass and not any(row.flags & BROKE for row in found):
            self._tell_loss(sum(row.value for row in found))

    def _tell_loss(self, present: float) -> None:
        lost = self.slice.samples + self._kept.samples - round(present)
        if lost > 0 and self.in_pass and not self._has_told_loss:
            self._has_told_loss = True
            self._lost(lost)
