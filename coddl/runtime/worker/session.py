"""One worker's training: passes of the user's loop, and what may happen between two of them.

    loader hands out a batch   a pass begins: this worker's slice of the global batch
    backward()                 gradients are exchanged: `.grad` is that of the global batch
    optimizer.step()           the user's own: every worker makes the same update
    next batch                 the pass ends; here the group may change, or an image is written

The user's loop drives it. With one worker there is nothing to exchange and nothing is touched.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from coddl.runtime.errors import TrainingError
from coddl.runtime.imagefile import Meta
from coddl.runtime.slices import largest_pass
from coddl.runtime.wire import Message
from coddl.runtime.worker import randomness
from coddl.runtime.worker.backward import Backward
from coddl.runtime.worker.buffer_sync import BufferSync
from coddl.runtime.worker.catchup import CatchUp
from coddl.runtime.worker.checks import NO_EPOCHS
from coddl.runtime.worker.exchange import Exchange
from coddl.runtime.worker.footprint import Footprint, memory_of
from coddl.runtime.worker.gradients import grouped, signature_of
from coddl.runtime.worker.guard import Guard
from coddl.runtime.worker.handover import Handover
from coddl.runtime.worker.image import Tree
from coddl.runtime.worker.inspection import PassClock, PassInspector
from coddl.runtime.worker.loader import Cut, ElasticLoader, Slice
from coddl.runtime.worker.loader_rounds import LoaderRounds
from coddl.runtime.worker.membership import Membership, share_cores
from coddl.runtime.worker.micro_batches import MicroBatches
from coddl.runtime.worker.numbers import number_of
from coddl.runtime.worker.pass_stats import GpuClock, PassStats
from coddl.runtime.worker.peers import Peers, TrainingProgress
from coddl.runtime.worker.rehearsal import Rehearsal
from coddl.runtime.worker.settings import Settings
from coddl.runtime.worker.state import DeviceOf, TrainingState, parameters_of
from coddl.runtime.worker.supervisor_link import Groups, SupervisorLink, reject
from coddl.runtime.worker.syncnorm import SyncNorm
from coddl.runtime.worker.training_info import about
from coddl.runtime.worker.values import Values

CHECK_EVERY: Final = 100  # passes
BY_HAND_EVERY: Final = 10  # passes, after which weights are looked at that no optimizer updates


class TrainingSession:
    """A worker. Without a supervisor it is alone and never changes."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        settings: Settings,
        link: SupervisorLink | None,
    ) -> None:
        self.settings = settings
        self.progress = TrainingProgress()
        self.steps: int | None = None  # of the whole training, if that is known
        self.until: int | None = None  # the number of the epoch or step that ends it
        self.loaders: list[ElasticLoader] = []
        self.values = Values()
        self.has_ended = False
        self.has_resumed = False  # another worker's progress, or that of a saved job, is ours
        self._has_started = False
        self._link = link
        self._models, self._optimizers = list(models), list(optimizers)
        self._device = next(iter(models[0].parameters()), torch.empty(0)).device
        self.state = TrainingState(models, optimizers, self)
        self.footprint = Footprint(memory_of(self._device), optimizers)
        traced = os.environ.get("CODDL_TRACE") == "1"
        self.pass_stats = PassStats(link, traced=traced, footprint=self.footprint)
        self.guard = Guard(self._optimizers, self.parameters)
        self._handover = handover = Handover(
            self.state,
            self._device,
            Path(os.environ.get("CODDL_STASH", "/dev/shm")),
            host=link.host if link is not None else "",
            describe=self._described,
        )
        self.rounds = LoaderRounds(self)
        self._membership = Membership(link, self, handover, self.pass_stats, self.rounds)
        self.peers = Peers(self._membership, self.progress, self.reject)
        self.exchange = Exchange(
            self.peers,
            optimizers,
            self.parameters,
            reduction=settings.reduction,
            buffer_sync=BufferSync(models),
            waiting=self._exchanging,
            lost=self._tell_lost,
        )
        self.catching_up = CatchUp(self.peers, self.exchange, self.state, handover, self.progress)
        self._backward = Backward(self.exchange)
        observe, tell = self._backward.observe, self._tell_profile if link is not None else None
        self.inspector = PassInspector(PassClock(self._device), self._buckets, observe, tell)
        self.rehearsal = Rehearsal(self.parameters, self.state.buffers)
        self._clock = GpuClock(self._device)
        self._cut = Cut(0, 0, (1,))
        self._updates: set[int] = set()  # optimizers that have made one in this pass
        self._optimized = 0  # parameters that the optimizers have
        self._all: list[Tensor] = []
        self._is_rigid = False  # no other worker could follow where this one is
        self._compute_since_ns = 0
        if link is not None:
            link.on_gpu = self._device.type == "cuda"
            self._watch_updates()
            handover.open_ahead()
            SyncNorm(self.peers, self.exchange, self._exchanging).install(models)

    def _watch_updates(self) -> None:
        for optimizer in self._optimizers:
            optimizer.register_step_pre_hook(self._before_update)
            optimizer.register_step_post_hook(self._after_update)

    # -- facts

    @property
    def is_main(self) -> bool:
        """Return whether this is the oldest worker; alone, always."""
        return self._membership.is_main

    @property
    def place(self) -> tuple[int, int]:
        """Return the rank and the number of workers."""
        return self._cut.rank, self._membership.size

    @property
    def step(self) -> int:
        """How many passes have ended."""
        return self.progress.step

    def parameters(self) -> list[Tensor]:
        """Return what is trained now: it may be frozen and unfrozen as the training goes."""
        count = sum(len(g["params"]) for o in self._optimizers for g in o.param_groups)
        if count != self._optimized:  # the script may have added some
            self._optimized, self._all = count, self.state.parameters()
        return [p for p in self._all if p.requires_grad]

    def _buckets(self) -> list[list[Tensor]]:
        return grouped(self.parameters())

    @property
    def is_untouched(self) -> bool:
        """Return whether nothing can ever happen to this training: it runs as the plain script."""
        return self._link is None and self.exchange.micro_batches is None

    @property
    def is_led(self) -> bool:
        """Return whether a supervisor may change the number of workers."""
        return self._link is not None

    @property
    def is_alone(self) -> bool:
        """Return whether there are no other workers."""
        return self._membership.size == 1

    @property
    def rehearses(self) -> bool:
        """Return whether what the script computes is thrown away."""
        return self.rehearsal.is_running

    def track(self, **things: Any) -> None:
        """Keep further objects with the job's state."""
        for name, thing in things.items():
            self.state.track(name, thing)

    # -- the training as a whole

    def start(self) -> None:
        """Come to the loop: wait to be taken into a group, and take the job's state."""
        if self._has_started:
            return
        self._has_started = True
        self.rehearsal.end()
        self.rounds.warm_up()
        self.state.find_schedulers()
        if self._link is None:
            return
        self._membership.start(**about(self, self.guard))

    def finish(self, *, is_complete: bool = False) -> None:
        """End the training in this worker: its loops are complete, or the script has left them."""
        if self.has_ended or not self._has_started or self._membership.has_left:
            return
        if self.exchange.in_pass or self.rounds.left_early is not None:
            self.stop()  # the script has left its loops early: that ends the training for all
        self.rounds.settle()
        self.end_pass(may_change=False)
        self.has_ended = self.peers.is_over = True
        self.inspector.finish()
        self._backward.install(False)
        self.rounds.close()
        if self._link is not None:
            self._link.tell("ended", step=self.step, complete=is_complete)

    def stop(self) -> None:
        """End the training on all workers; the others learn of it in the next exchange."""
        self.peers.stop_asked = True
        self.peers.stopping |= self._membership.size == 1

    # -- passes

    def boundary(self, *, may_change: bool = True) -> None:
        """End the pass under way, and do what may be done between two passes."""
        self.end_pass(may_change=may_change)
        self._membership.attend()
        self.inspector.mark("other")

    def begin_step(self) -> None:
        """Begin a pass of `coddl.steps`."""
        self.rounds.counts_steps = True
        self.begin_pass(Slice(*2 * [self.settings.global_batch]), None)

    def slice_of(self, samples: int) -> range:
        """Give this worker's part of a batch that every worker has as a whole."""
        part = range(samples) if self.is_alone else self._cut.range_of(samples)
        self.exchange.slice = Slice(samples, len(part))
        return part if part else range(1)

    def begin_pass(self, of: Slice, weight: float | None) -> None:
        """Begin a pass with this worker's slice of a batch."""
        self.exchange.begin_pass(of, weight)
        self._updates = set()
        self.peers.agreed = False
        self._compute_since_ns = time.monotonic_ns()
        if self._membership.size > 1:
            self._clock.mark(0)
        self.inspector.begin(of.own)

    def end_pass(self, *, may_change: bool) -> None:
        """End the pass under way, if there is one."""
        if not self.exchange.in_pass:
            return
        own, size = self.exchange.slice.own, self._membership.size
        self.exchange.end_pass()
        self.pass_stats.add("compute", self._compute_since_ns)
        self.pass_stats.passed(own)
        if size > 1:
            self._clock.mark(1)
            if (gpu_s := self._clock.seconds_before()) is not None:
                self.pass_stats.count_gpu(gpu_s)
        self.progress.step += 1
        self.catching_up.end_pass()
        self.pass_stats.iterated(self.step, own, self.progress.epoch)
        if self.step % CHECK_EVERY == 0:
            self._check()
        may_change &= not (self.peers.stopping or self.peers.leaving)
        if self._updates or self._updates_by_hand():
            self.rounds.note_update()
            if self._link is not None and self._link.turn_end is not None:
                self.inspector.rest()  # the wait for the next turn is no part of a pass
            if may_change and self._is_rigid:
                self._membership.take_turns()  # it stays the worker it is
            elif may_change:
                self._membership.change(agreed=self._agrees_to_change())

    def _updates_by_hand(self) -> bool:
        """Return whether the script changes weights itself: then every pass may be an update."""
        at = self.progress
        if not (at.updates or at.by_hand) and at.step % BY_HAND_EVERY == 0:
            at.by_hand = self.guard.has_moved()
        return at.by_hand

    def _agrees_to_change(self) -> bool:
        """Return whether all workers change the group now: all voted for it, and all came here."""
        self._membership.lingers = mine = self.rounds.reads_ahead
        if self._membership.size == 1:
            return self._membership.is_due
        if not self.peers.agreed:
            return False

        def confirm(groups: Groups) -> bool:
            found = self.peers.compare(groups, self.peers.row("change", value=float(mine)))
            self._membership.lingers = any(row.value for row in found)
            return all(row.kind == "change" for row in found)  # one may have left its loop

        return self.peers.together(confirm, alone=lambda: False, missed=lambda: False)

    def _check(self) -> None:
        """Compare a part of the weights with the others'."""

        def compare(groups: Groups) -> None:
            norm = self.guard.norm(self.step // CHECK_EVERY)
            found = self.peers.compare(groups, self.peers.row("check", value=norm))
            members = self._membership.members  # one that has left its loop compares nothing
            told = {w: r.value for w, r in zip(members, found, strict=True) if r.kind == "check"}
            try:
                self.guard.compare(list(told.values()), list(told))
            except TrainingError as error:
                self.reject(error)

        if self._membership.size > 1:
            self.peers.together(compare, alone=lambda: None, missed=lambda: None)

    def _before_update(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self.inspector.mark("other")
        self.rehearsal.before_update(optimizer)
        try:
            if not self.rehearsal.is_running:
                self.guard.check_update()
                self.exchange.check_update()
        except TrainingError as error:
            self.reject(error)
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        if closure is None or self._membership.size == 1:
            return None

        def agreed() -> Any:
            """Give every worker the same loss, so that line searches go the same way."""
            loss = closure()
            mean = self.mean(loss)
            return loss.detach().new_tensor(mean) if isinstance(loss, Tensor) else mean

        return (args[0], agreed), {}

    def _after_update(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self.inspector.mark("update")
        self.rehearsal.after_update(optimizer)
        if not self.rehearsal.is_running:
            self._updates.add(id(optimizer))
            self.progress.updates += 1

    def mean(self, value: float | Tensor) -> float:
        """Average a number over all workers; within a pass by the samples of each."""
        number = number_of(value)
        if self._membership.size == 1:
            return number
        weight = self.exchange.own_weight if self.exchange.in_pass else 1.0
        with self._waiting():
            return self.peers.mean(number, weight)

    def use_micro_batches(self, micro_batch: int) -> None:
        """Run slices in passes of at most that many samples."""
        micro_batches = MicroBatches(micro_batch, self.parameters, self._optimizers)
        self.exchange.micro_batches, self.state.on_track = micro_batches, micro_batches.watch
        self.inspector.overlap = False  # their gradients are sent after backward
        self._backward.install(True)

    @contextmanager
    def unsynchronised(self) -> Iterator[None]:
        """Leave backward's gradients alone meanwhile; the next exchange takes them along."""
        before, self.exchange.synchronises = self.exchange.synchronises, False
        try:
            yield
        finally:
            self.exchange.synchronises = before

    @contextmanager
    def _exchanging(self) -> Iterator[None]:
        with self.pass_stats.timed("exchange"), self._waiting():
            yield

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Keep what is waiting for others out of the pass's own time."""
        start_ns = time.monotonic_ns()
        try:
            yield
        finally:
            self._compute_since_ns += time.monotonic_ns() - start_ns

    # -- what membership and handover call

    @property
    def position(self) -> int:
        return self.progress.collective

    @property
    def handed(self) -> list[int]:
        return self.rounds.handed

    @property
    def is_mid_pass(self) -> bool:
        return self.exchange.in_pass

    def abandon(self) -> None:
        """Go on in another group: the pass under way is kept, its gradients are sent again."""

    def miss(self, tree: Tree, device_of: DeviceOf) -> None:
        self.catching_up.miss(tree, device_of)

    def outrun(self) -> None:
        self.catching_up.outrun()

    def own(self, rank: int, counts: Sequence[int], groups: Groups, handed: Sequence[int]) -> None:
        """Take over a rank's slices, from the batches on that no worker has been given yet."""
        was_alone = self._membership_size == 1
        self._membership_size = len(counts)
        self._cut = Cut(0, rank, tuple(counts))
        self.rounds.own(self._cut, handed)
        self.exchange.join(groups.train)
        self._backward.install(groups.train is not None or self.exchange.micro_batches is not None)
        self.footprint.begin(self._samples, is_alone=len(counts) == 1)
        self.inspector.regroup(is_apt=len(counts) == 1 or not self.exchange.has_norms)
        if was_alone and rank and self._link is not None:
            seed = torch.default_generator.initial_seed() % 2**62
            randomness.reseed(seed, self._link.worker, self.step)
        if self._link is not None:
            share_cores(len(counts))

    _membership_size = 1

    @property
    def _samples(self) -> int:
        """How many samples a pass has here at most, in parts of the global batch."""
        return largest_pass(self._cut.counts[self._cut.rank], self.settings.micro_batch)

    def signature(self) -> int:
        return signature_of(self.state.parameters())

    def progress_held(self) -> Tree:
        """Return where the training stands, as part of its state."""
        return {
            **asdict(self.progress),
            "loaders": [loader.progress() for loader in self.loaders],
            "values": self.values.held(),
            "streams": randomness.capture_all(),
            "rates": self.guard.rates(),
        }

    def resume(self, held: Tree, *, is_saved: bool) -> None:
        """Stand where another worker, or this job once, stood."""
        self.has_resumed = True
        at = self.progress
        at.step, at.epoch, at.updates = held["step"], held["epoch"], held["updates"]
        at.collective, at.norms = held["collective"], held.get("norms", 0)
        at.by_hand = held.get("by_hand", False)
        self.rounds.resume(held["loaders"])
        self.values.take(held["values"])
        randomness.restore(held["streams"])
        self.guard.take(held["rates"], is_saved=is_saved)

    def pending(self) -> list[Tensor]:
        """Return the parameters whose gradients wait for a later update of their optimizer."""
        waiting = [o for o in self._optimizers if id(o) not in self._updates]
        return [p for o in waiting for p in parameters_of(o) if p.grad is not None]

    def catch_up(self, held: Tree) -> None:
        """Have made as many updates as another worker."""
        self.progress.updates = held["updates"]

    def _described(self) -> Meta:
        batch = self.settings.global_batch
        return {"step": self.step, "epoch": self.progress.epoch, "global_batch": batch}

    # -- telling

    def _tell_lost(self, samples: int) -> None:
        if self._link is not None and self.is_main:
            self._link.tell("lost", step=self.step, samples=samples)

    def _tell_profile(self, measured: Message) -> None:
        if self._link is not None and self.is_main:
            self._link.tell("profile", **measured, **self.state.about())

    def tell_resting(self) -> None:
        """Say that the script is between two epochs."""
        self.footprint.rest()
        self.inspector.rest()
        if self._link is not None:
            self._link.tell("resting")

    def tell_rigid(self) -> None:
        """Say that a job whose epochs we don't count can't be resized from now on."""
        if self._link is None or self._is_rigid:
            return
        self._is_rigid = True
        self._link.tell("rigid", **NO_EPOCHS.parts())

    @property
    def samples_in_pass(self) -> int:
        """How many samples the pass under way has; 0 between passes."""
        return self._samples if self.exchange.in_pass else 0

    def reject(self, error: TrainingError) -> NoReturn:
        """End because the script can't be trained; under a supervisor, that one shows why."""
        if self._link is None:
            raise error
        self.rehearsal.end()
        reject(self._link, error)

    def report(self, metrics: dict[str, float], loss: Message | None) -> None:
        """Send numbers to the job's status, and the mean loss since the last time."""
        if self._link is not None:
            self._link.tell_metrics(metrics, loss)
