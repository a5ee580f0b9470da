"""One worker's training: passes, iterations, and what may happen between two of them.

    pass, pass, ... last pass   an iteration: forward and backward of the virtual nodes owned here
          optimizer.step()      takes a pass's gradient; in the last pass, exchanges and applies
    between two iterations      a change of generation, an image, leaving
    between two passes          giving up a broken group, and beginning the iteration again

The user's loop drives it: `advance` between passes; `stepped` and `when_applied` within them.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from coddl.runtime.errors import TrainingError
from coddl.runtime.imagefile import Meta
from coddl.runtime.vnodes import Batch, owned_by, seed_of
from coddl.runtime.wire import Message
from coddl.runtime.worker.backward import Backward, NoExchange
from coddl.runtime.worker.group import GroupError
from coddl.runtime.worker.handover import Handover
from coddl.runtime.worker.image import Tree
from coddl.runtime.worker.inspection import PassClock, PassInspector
from coddl.runtime.worker.membership import Membership
from coddl.runtime.worker.numbers import number_of
from coddl.runtime.worker.pass_stats import GpuClock, PassStats
from coddl.runtime.worker.state import DeviceOf, TrainingState, parameters_of
from coddl.runtime.worker.strict.buffers import Buffers
from coddl.runtime.worker.strict.exchange import StrictExchange
from coddl.runtime.worker.strict.samples import (
    FORWARD,
    Item,
    Key,
    Loader,
    Samples,
    seed_everything,
)
from coddl.runtime.worker.supervisor_link import Groups, SupervisorLink, reject


@dataclass(frozen=True, slots=True)
class StrictSettings:
    """What the script asked `prepare` for."""

    cut: Batch
    epochs: int
    seed: int
    loader_workers: int
    clip_norm: float | None


class StrictSession:
    """A worker. Without a supervisor it is alone, owns every virtual node, and never changes."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        samples: Samples,
        settings: StrictSettings,
        link: SupervisorLink | None,
    ) -> None:
        self.settings = settings
        self.step = 0  # iterations applied; also the number of the one under way
        self.steps = settings.epochs * samples.steps_per_epoch
        self.grad_norm: Tensor | None = None
        self._samples = samples
        self._link = link
        self._device = next(iter(models[0].parameters()), torch.empty(0)).device
        self._optimizers = list(optimizers)
        self._originals = [optimizer.step for optimizer in optimizers]
        self._buffers = Buffers(models)
        self.state = TrainingState(models, optimizers, self)
        self._exchange = StrictExchange(
            [list(parameters_of(optimizer)) for optimizer in optimizers],
            self._buffers,
            virtual_nodes=settings.cut.virtual_nodes,
        )
        self.pass_stats = PassStats(link, traced=os.environ.get("CODDL_TRACE") == "1")
        handover = Handover(
            self.state,
            self._device,
            Path(os.environ.get("CODDL_STASH", "/dev/shm")),
            host=link.host if link is not None else "",
            describe=self._described,
        )
        self._membership = Membership(link, self, handover, self.pass_stats)
        self._loader = Loader(samples, settings.loader_workers, self._device, self._keys_ahead)
        self._passes: list[int] = []
        self._index = -1  # which pass of the iteration; -1 before the first
        self._has_started = False
        self.has_ended = False
        self.rehearsing = False
        self._exchanged = False  # this iteration's sums are in place
        self._applying = False
        self._agreed = False  # the group will change after this iteration
        self._deferred: list[Callable[[], object]] = []
        self._means: dict[int, dict[int, float]] = {}
        self._mean_calls = 0
        self._unscaled: set[int] = set()
        self._compute_since_ns = 0
        self._clock = GpuClock(self._device)
        self._inspector = PassInspector(
            PassClock(self._device),
            self._exchange.sent_together,
            Backward(NoExchange()).observe,
            None if link is None else self._tell_profile,
            overlap=False,
        )
        self.own(0, (settings.cut.virtual_nodes,), Groups(), ())
        if link is not None:
            link.on_gpu = self._device.type == "cuda"
            handover.open_ahead()

    # -- what the user's loop calls

    @property
    def epoch(self) -> int:
        """The number of the epoch under way."""
        return self.step // self._samples.steps_per_epoch

    @property
    def is_last_pass(self) -> bool:
        """Return whether this pass completes the iteration, on this worker."""
        return not self.rehearsing and self._index == len(self._passes) - 1

    @property
    def is_main(self) -> bool:
        """Return whether this is the oldest worker; alone, always."""
        return self._membership.is_main

    def advance(self) -> Item:
        """End the pass before, do what may be done between passes, give the next batch."""
        if self._index >= 0:
            self.pass_stats.add("compute", self._compute_since_ns)
            self.pass_stats.passed(1)
            self._end_pass()
        if not self._has_started:
            if os.environ.pop("CODDL_REHEARSE", "") == "1":
                return self._rehearse()
            self._start()
        self._membership.attend()
        if self.step >= self.steps:
            self.has_ended = True
            self._index = -1
            self._loader.close()
            self._inspector.finish()
            if self._link is not None:
                self._link.tell("ended", step=self.step)
            raise StopIteration
        return self._begin_pass(self._passes[self._index + 1])

    @property
    def rehearses(self) -> bool:
        """Return whether what the script computes is thrown away."""
        return self.rehearsing

    def track(self, **things: Any) -> None:
        """Keep further objects with the job's state; what they do, they do once per iteration."""
        from coddl.runtime.worker.strict.stepping import take_over_tracked

        for name, thing in things.items():
            self.state.track(name, thing)
            take_over_tracked(self, thing, self._optimizers)

    def stepped(self, optimizer: int, apply: Callable[[], Any] | None = None) -> Any:
        """Take the place of `optimizer.step()`; `apply` is the update if not its own."""
        update = apply or (lambda: self._apply(optimizer))
        if self._applying or self._index < 0:
            return update()
        if self.rehearsing:
            return rehearse_update(self._optimizers[optimizer], self._originals[optimizer])
        if optimizer in self._unscaled:
            self._unscaled.remove(optimizer)  # its gradient was taken then
        else:
            self._exchange.collect(optimizer)
        if not self.is_last_pass:
            return None
        if len(self._optimizers) > 1:
            # Other losses of this pass must see the weights that other workers see.
            self._deferred.append(update)
            return None
        if self.exchanged():
            with self._application():
                return update()
        return None

    def unscaled(self, optimizer: int, unscale: Callable[[], Any]) -> Any:
        """Take the place of `GradScaler.unscale_`: it works on sums, so they are made first."""
        if self._applying or self._index < 0:
            return unscale()
        if not self.is_last_pass:
            return None
        self._exchange.collect(optimizer)
        self._unscaled.add(optimizer)
        if len(self._optimizers) > 1:
            self._deferred.append(unscale)
            return None
        return unscale() if self.exchanged() else None

    def is_unscaled(self, optimizer: int) -> bool:
        """Return whether `unscale_` was called for it in this pass."""
        return optimizer in self._unscaled

    def when_applied(self, call: Callable[[], object]) -> Any:
        """Run a call once per iteration, after its update; never in other passes."""
        if self._applying or self._index < 0:
            return call()
        if not self.is_last_pass or self._membership.failed:
            return None
        if not self._exchanged or len(self._optimizers) > 1:
            self._deferred.append(call)
            return None
        return call()

    def exchanged(self) -> bool:
        """Make this iteration's sums, once; return whether that worked."""
        if self._exchanged or self._membership.failed:
            return self._exchanged
        vote = self._membership.is_due
        self._clock.mark(1)
        self._inspector.mark("other")
        try:
            with self.pass_stats.timed("exchange"), self._waiting():
                votes = self._exchange.finish(vote)
        except GroupError as failure:
            self._membership.broke(failure)
        else:
            self._exchanged = True
            self._inspector.mark("exchange")
            if self._membership.size > 1 and (gpu_s := self._clock.seconds_before()) is not None:
                self.pass_stats.count_gpu(gpu_s)
            self._agreed = vote and votes == self._membership.size
        return self._exchanged

    def mean(self, value: float | Tensor) -> float:
        """Average over the virtual nodes of the iteration, of all workers in its last pass."""
        number = number_of(value)
        if self._index < 0 or self.rehearsing:
            return number
        call, self._mean_calls = self._mean_calls, self._mean_calls + 1
        seen = self._means.setdefault(call, {})
        seen[self._passes[self._index]] = number
        if self.is_last_pass and not self._membership.failed:
            seen = self._shared(seen)
        return sum(seen[node] for node in sorted(seen)) / len(seen)

    def _shared(self, seen: dict[int, float]) -> dict[int, float]:
        """Put the numbers of all together: those of others are zero here, so sums are exact."""
        rows = torch.zeros(2, self.settings.cut.virtual_nodes, dtype=torch.float64)
        for node, one in seen.items():
            rows[0, node], rows[1, node] = one, 1.0
        if (talk := self._membership.groups.talk) is not None:
            try:
                with self._waiting():
                    talk.finish(talk.all_reduce(rows))
            except GroupError as failure:
                self._membership.broke(failure)
                return seen
        if not rows[1].all():
            raise TrainingError(
                "coddl.mean was not called in every pass of the iteration",
                f"{int(rows[1].sum())} of {rows.shape[1]} virtual nodes gave a number",
                "call it in each pass, and use what it gives where batches.completes",
            )
        return dict(enumerate(rows[0].tolist()))

    def reject(self, error: TrainingError) -> NoReturn:
        """End because the script can't be trained; under a supervisor, that one shows why."""
        if self._link is None:
            raise error
        reject(self._link, error)

    def report(self, metrics: dict[str, float], loss: Message | None) -> None:
        """Send numbers to the job's status, and the mean loss since the last time."""
        if self._link is not None:
            self._link.tell_metrics(metrics, loss)

    def _tell_profile(self, measured: Message) -> None:
        if self._link is not None and self.is_main:
            self._link.tell("profile", **measured, **self.state.about())

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Keep what is waiting for others out of the pass's own time."""
        start_ns = time.monotonic_ns()
        try:
            yield
        finally:
            self._compute_since_ns += time.monotonic_ns() - start_ns

    # -- passes

    def _begin_pass(self, node: int) -> Item:
        self._index = 0 if self.rehearsing else self._index + 1
        self._exchanged = False
        self._mean_calls = 0
        self._unscaled.clear()
        self._inspector.mark("other")
        with self.pass_stats.timed("data"):
            batch = self._loader.fetch(Key(self.step, node), inline=self.rehearsing)
        seed = seed_of(self.settings.seed, self.step, node, FORWARD)
        seed_everything(seed)
        if self._device.type == "cuda":
            torch.cuda.manual_seed(seed)
        self._exchange.begin_pass(node)
        self._compute_since_ns = time.monotonic_ns()
        if self._index == 0:
            self._clock.mark(0)
        if self._index == 0 and not self.rehearsing:
            self._inspector.begin(len(self._passes) * self.settings.cut.micro_batch)
        else:
            self._inspector.mark("data")
        return batch

    def _end_pass(self) -> None:
        if self.rehearsing:
            self.rehearsing = False
            self._index = -1
            self._exchange.restart()
            return
        if not self.is_last_pass:
            if not self._membership.failed:
                self._keep_pass()
            return
        if self.exchanged():
            with self._application():
                pass
            self._end_iteration()

    def _keep_pass(self) -> None:
        try:
            self._exchange.end_pass()
        except GroupError as failure:
            self._membership.broke(failure)

    @contextmanager
    def _application(self) -> Iterator[None]:
        """Apply an update: what runs inside, then what waited for it."""
        self._applying = True
        self._inspector.mark("other")
        try:
            yield
            deferred, self._deferred = self._deferred, []
            for call in deferred:
                call()
        finally:
            self._applying = False
            self._inspector.mark("update")

    def _apply(self, optimizer: int) -> Any:
        if self.settings.clip_norm is not None and self._applying:
            parameters = list(parameters_of(self._optimizers[optimizer]))
            self.grad_norm = clip_grad_norm_(parameters, self.settings.clip_norm)
        return self._originals[optimizer]()

    def _end_iteration(self) -> None:
        self.step += 1
        agreed = self._agreed
        self.restart()
        self.pass_stats.iterated(self.step, len(self._passes) * self.settings.cut.micro_batch)
        self._membership.change(agreed=agreed)

    def _start(self) -> None:
        cut, sizes = self.settings.cut, self._exchange.gradient_bytes()
        self._membership.start(
            parts=cut.virtual_nodes,
            workers_max=cut.virtual_nodes,
            virtual_nodes=cut.virtual_nodes,
            global_batch=cut.global_batch,
            steps=self.steps,
            seed=self.settings.seed,
            signature=self.signature(),
            training=self.state.training(cut.global_batch, cut.virtual_nodes),
            gradient_bytes=sum(sizes),
            largest_tensor_bytes=max(sizes, default=0),
        )
        self._has_started = True

    def _rehearse(self) -> Item:
        """Run one pass before anyone waits for this worker; what it computes is thrown away.

        Kernels are loaded, models are compiled, optimizers make room for their state.
        """
        self.rehearsing = self.state.has_rehearsed = True
        return self._begin_pass(0)

    # -- what membership calls

    def restart(self) -> None:
        """Stand before the first pass of an iteration."""
        self._index = -1
        self._exchanged = self._agreed = False
        self._deferred = []
        self._means = {}
        self._exchange.restart()

    @property
    def position(self) -> int:
        return self.step

    @property
    def handed(self) -> Sequence[int]:
        return ()  # the step tells

    @property
    def is_mid_pass(self) -> bool:
        return False  # what is under way is begun again

    def abandon(self) -> None:
        self.restart()

    def miss(self, tree: Tree, device_of: DeviceOf) -> None:
        self.state.restore(tree, device_of)

    def outrun(self) -> None:
        """Nothing: the one behind takes the state at once."""

    def progress_held(self) -> Tree:
        return {"step": self.step, "live": self._buffers.agreed()}

    def resume(self, held: Tree, *, is_saved: bool) -> None:  # noqa: ARG002
        self.step = held["step"]
        self._buffers.agree(held["live"])

    def pending(self) -> list[Tensor]:
        return []  # all updates are made together

    def catch_up(self, held: Tree) -> None:
        self.resume(held, is_saved=False)

    def own(self, rank: int, counts: Sequence[int], groups: Groups, _handed: Sequence[int]) -> None:
        """Take over a rank's virtual nodes; exchange with this group."""
        owned = owned_by(rank, counts)
        self._passes = list(owned)
        self._exchange.join(groups.train, counts)
        self._inspector.regroup()
        torch.set_num_threads(1)  # sums inside kernels depend on their number

    def signature(self) -> int:
        """Return a signature of the parameters' layout."""
        return self._exchange.signature()

    def _described(self) -> Meta:
        cut = self.settings.cut
        return {
            "step": self.step,
            "epoch": self.epoch,
            "virtual_nodes": cut.virtual_nodes,
            "global_batch": cut.global_batch,
            "seed": self.settings.seed,
            "steps_per_epoch": self._samples.steps_per_epoch,
        }

    def _keys_ahead(self) -> Iterator[Key]:
        """Announce to loader processes what will be needed next, as things stand."""
        for step in range(self.step, self.steps):
            for node in list(self._passes):
                yield Key(step, node)


def rehearse_update(optimizer: Optimizer, step: Callable[[], Any]) -> None:
    """Have an optimizer make its state and load its kernels, without moving a weight."""
    if not all("lr" in group for group in optimizer.param_groups):
        return
    for parameter in parameters_of(optimizer):
        if parameter.grad is not None:
            parameter.grad.zero_()
    rates = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = torch.zeros_like(rate) if isinstance(rate, Tensor) else 0.0
    step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
