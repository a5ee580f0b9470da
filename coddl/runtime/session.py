"""One worker's training: passes, iterations, and what may happen between two of them.

    pass, pass, ... last pass   an iteration: forward and backward of the virtual nodes owned here
          optimizer.step()      takes a pass's gradient; in the last pass, exchanges and applies
    between two iterations      a change of generation, an image, leaving
    between two passes          giving up a broken group, and beginning the iteration again

The user's loop drives it: `advance` between passes; `stepped` and `when_applied` within them.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from coddl.runtime.buffers import Buffers
from coddl.runtime.exchange import Exchange
from coddl.runtime.group import Broken
from coddl.runtime.handover import NOTHING, Handover
from coddl.runtime.image import nbytes
from coddl.runtime.imagefile import Meta
from coddl.runtime.leaves import number_of
from coddl.runtime.link import Generation, Groups, Link
from coddl.runtime.loader import FORWARD, Item, Key, Loader, Samples, seed_everything
from coddl.runtime.pulse import Pulse
from coddl.runtime.state import State, parameters_of
from coddl.runtime.vnodes import Batch, owned_by, seed_of


class Leaving(SystemExit):
    """Ends a worker whose virtual nodes have moved to others. Code after the loop is not run."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the script asked `prepare` for."""

    cut: Batch
    epochs: int
    seed: int
    loader_workers: int
    clip_norm: float | None
    strict: bool
    fuse: bool


class Session:
    """A worker. Without a supervisor it is alone, owns every virtual node, and never changes."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        samples: Samples,
        wishes: Wishes,
        link: Link | None,
    ) -> None:
        self.wishes = wishes
        self.step = 0  # iterations applied; also the number of the one under way
        self.steps = wishes.epochs * samples.steps_per_epoch
        self.grad_norm: Tensor | None = None
        self._samples = samples
        self._link = link
        self._device = next(iter(models[0].parameters()), torch.empty(0)).device
        self._optimizers = list(optimizers)
        self._originals = [optimizer.step for optimizer in optimizers]
        self._buffers = Buffers(models)
        self.state = State(models, optimizers, self._buffers)
        self._exchange = Exchange(
            [list(parameters_of(optimizer)) for optimizer in optimizers],
            self._buffers,
            virtual_nodes=wishes.cut.virtual_nodes,
            strict=wishes.strict,
        )
        folder = Path(os.environ.get("CODDL_STASH", "/dev/shm/coddl"))
        host = link.host if link is not None else ""
        self._handover = Handover(self.state, folder, host, self._described)
        self.pulse = Pulse(link, traced=os.environ.get("CODDL_TRACE") == "1")
        self._loader = Loader(samples, wishes.loader_workers, self._device, self._keys_ahead)
        self._generation = Generation(0, (0,), (wishes.cut.virtual_nodes,))
        self._rank = 0
        self._groups = Groups()
        self._passes: list[tuple[int, ...]] = []
        self._index = -1  # which pass of the iteration; -1 before the first
        self._started = False
        self.rehearsing = False
        self._has_state = link is None
        self._exchanged = False  # this iteration's sums are in place
        self._applying = False
        self._changes = False  # the group agreed to change after this iteration
        self._failed = False  # the group is broken; the supervisor will regroup
        self._deferred: list[Callable[[], object]] = []
        self._means: dict[int, dict[int, float]] = {}
        self._mean_calls = 0
        self._unscaled: set[int] = set()
        self._compute_since_ns = 0
        self._take_places(self._generation)
        if link is not None:
            self._handover.open_ahead(self._device)

    # -- what the user's loop calls

    @property
    def epoch(self) -> int:
        """The number of the epoch under way."""
        return self.step // self._samples.steps_per_epoch

    @property
    def is_last_pass(self) -> bool:
        """Tell whether this pass completes the iteration, on this worker."""
        return not self.rehearsing and self._index == len(self._passes) - 1

    @property
    def is_main(self) -> bool:
        """Tell whether this is the oldest worker; alone, always."""
        if self._link is None:
            return True
        return self._rank == 0 if self._started else os.environ.get("CODDL_MAIN") == "1"

    def advance(self) -> Item:
        """End the pass before, do what may be done between passes, give the next batch."""
        if self._index >= 0:
            self.pulse.add("compute", self._compute_since_ns)
            self.pulse.passed(1 if self.rehearsing else len(self._passes[self._index]))
            self._end_pass()
        if not self._started and self._start_needs_rehearsal():
            return self._begin_pass((0,))
        self._attend()
        if self.step >= self.steps:
            self._index = -1
            self._loader.close()
            if self._link is not None:
                self._link.tell("ended", step=self.step)
            raise StopIteration
        return self._begin_pass(self._passes[self._index + 1])

    def stepped(self, optimizer: int, apply: Callable[[], Any] | None = None) -> Any:
        """Take the place of `optimizer.step()`; `apply` is the update if not its own."""
        update = apply or (lambda: self._apply(optimizer))
        if self._applying or self._index < 0:
            return update()
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
        """Tell whether `unscale_` was called for it in this pass."""
        return optimizer in self._unscaled

    def when_applied(self, call: Callable[[], object]) -> Any:
        """Run a call once per iteration, after its update; never in other passes."""
        if self._applying or self._index < 0:
            return call()
        if not self.is_last_pass or self._failed:
            return None
        if not self._exchanged or len(self._optimizers) > 1:
            self._deferred.append(call)
            return None
        return call()

    def exchanged(self) -> bool:
        """Make this iteration's sums, once; tells whether that worked."""
        if self._exchanged or self._failed:
            return self._exchanged
        vote = self._link is not None and self._link.due(self.step)
        try:
            with self.pulse.timed("exchange"):
                votes, _ = self._exchange.finish(vote)
        except Broken as failure:
            self._break(failure)
        else:
            self._exchanged = True
            self._changes = vote and votes == len(self._generation.members)
        return self._exchanged

    def mean(self, value: float | Tensor) -> float:
        """Average over the virtual nodes of the iteration, of all workers in its last pass."""
        number = number_of(value)
        if self._index < 0 or self.rehearsing:
            return number
        call, self._mean_calls = self._mean_calls, self._mean_calls + 1
        seen = self._means.setdefault(call, {})
        seen |= dict.fromkeys(self._passes[self._index], number)
        if self.is_last_pass and self._groups.talk is not None and not self._failed:
            values = torch.zeros(self.wishes.cut.virtual_nodes, dtype=torch.float64)
            for node, one in seen.items():
                values[node] = one  # the others' are zero here, so the sum is exact
            try:
                self._groups.talk.finish(self._groups.talk.all_reduce(values))
                seen = dict(enumerate(values.tolist()))
            except Broken as failure:
                self._break(failure)
        return sum(seen[node] for node in sorted(seen)) / len(seen)

    def report(self, metrics: dict[str, float]) -> None:
        """Send numbers to whoever watches the job."""
        if self._link is not None:
            self._link.tell("metrics", values=metrics)

    # -- passes

    def _begin_pass(self, nodes: tuple[int, ...]) -> Item:
        self._index = 0 if self.rehearsing else self._index + 1
        self._exchanged = False
        self._mean_calls = 0
        self._unscaled.clear()
        with self.pulse.timed("data"):
            batch = self._loader.fetch(Key(self.step, nodes))
        seed = seed_of(self.wishes.seed, self.step, nodes[0], FORWARD)
        seed_everything(seed)
        if self._device.type == "cuda":
            torch.cuda.manual_seed(seed)
        self._exchange.begin_pass(nodes[0], last=self.is_last_pass)
        self._compute_since_ns = time.monotonic_ns()
        return batch

    def _end_pass(self) -> None:
        if self.rehearsing:
            self.rehearsing = False
            self._index = -1
            self._exchange.restart()
            self._buffers.undo()
            return
        if not self.is_last_pass:
            if not self._failed:
                self._exchange.end_pass()
            return
        if self.exchanged():
            with self._application():
                pass
            self._end_iteration()

    @contextmanager
    def _application(self) -> Iterator[None]:
        """Apply an update: what runs inside, then what waited for it."""
        self._applying = True
        try:
            yield
            deferred, self._deferred = self._deferred, []
            for call in deferred:
                call()
        finally:
            self._applying = False

    def _apply(self, optimizer: int) -> Any:
        if self.wishes.clip_norm is not None and self._applying:
            parameters = list(parameters_of(self._optimizers[optimizer]))
            self.grad_norm = clip_grad_norm_(parameters, self.wishes.clip_norm)
        return self._originals[optimizer]()

    def _end_iteration(self) -> None:
        self.step += 1
        self._restart()
        nodes = sum(map(len, self._passes))
        self.pulse.iterated(self.step, nodes * self.wishes.cut.micro_batch)
        if self._link is None:
            return
        if self._changes:
            self._changes = False
            self._enter(*self._link.take_pending())
        elif self._link.capture:
            self._link.capture = False
            self._write_image()
        if self.step == 1:
            self._reserve()

    def _restart(self) -> None:
        """Stand before the first pass of an iteration."""
        self._index = -1
        self._exchanged = False
        self._deferred = []
        self._means = {}
        self._exchange.restart()

    # -- generations

    def _start_needs_rehearsal(self) -> bool:
        """Rehearse or start.

        A joiner runs one pass for itself, before anyone waits for it: kernels are loaded, models
        are compiled, memory is found. What it computes is thrown away.
        """
        if os.environ.pop("CODDL_REHEARSE", "") == "1":
            self.rehearsing = True
            return True
        if self._link is not None:
            cut = self.wishes.cut
            self._handover.await_ahead()
            self._link.tell(
                "arrived",
                virtual_nodes=cut.virtual_nodes,
                global_batch=cut.global_batch,
                steps=self.steps,
                state_bytes=nbytes(self.state.tree()),
            )
            while not self._started:
                self._wait_for_generation()
        self._started = True
        return False

    def _wait_for_generation(self) -> None:
        """Wait, before the first pass, to be taken into a group."""
        assert self._link is not None
        link = self._link
        with link.changed:
            link.changed.wait_for(
                lambda: link.due(sys.maxsize) or link.regroup is not None or link.stop, timeout=1.0
            )
        self.pulse.alive()
        if link.due(sys.maxsize):
            self._enter(*link.take_pending())
        else:
            self._attend()

    def _attend(self) -> None:
        """Do what the supervisor asks for between passes; come back when there is a group again."""
        while (link := self._link) is not None:
            if link.stop:
                raise Leaving(0)
            if link.regroup is not None:
                self._regroup(link.regroup)
            elif self._failed:
                self.pulse.alive()
                with link.changed:
                    link.changed.wait_for(
                        lambda: link.regroup is not None or link.stop, timeout=1.0
                    )
            else:
                return

    def _regroup(self, generation: Generation) -> None:
        """Give up the broken group and this iteration's passes; begin it again with who is left."""
        assert self._link is not None
        link = self._link
        with link.changed:
            while not link.stop and link.regroup is generation:
                if link.pending is not None and link.pending[0] is generation:
                    pending, link.pending, link.regroup = link.pending, None, None
                    break
                self.pulse.alive()
                link.changed.wait(0.5)
            else:
                return  # something newer came: look again
        self._failed = self._changes = False
        self._restart()
        self._enter(*pending)

    def _enter(self, generation: Generation, groups: Groups) -> None:
        """Work in a generation from here on, with the state of its most advanced member."""
        assert self._link is not None
        link, started_s = self._link, time.monotonic()
        was_main = self._started and self._rank == 0
        for group in (groups.train, groups.talk, groups.bridge):
            if group is not None:
                group.patience = self._patient
        try:
            if link.worker in generation.members or generation.bridge:
                self._take_state(generation, groups)
        except Broken as failure:
            self._adopt(generation, groups)
            self._break(failure)
            return
        state_s = time.monotonic() - started_s - self._handover.boundary_s
        if link.worker not in generation.members:
            if was_main and not generation.members:
                self._write_image()
            link.tell("swapped", generation=generation.number, step=self.step, left=True)
            self.pulse.flush()
            raise Leaving(0)
        self._adopt(generation, groups)
        boundary_s = self._handover.boundary_s
        swap_s = time.monotonic() - started_s - state_s - boundary_s
        self._handover.close_ahead(self._device)
        link.tell(
            "swapped",
            generation=generation.number,
            step=self.step,
            left=False,
            pause={"boundary_s": boundary_s, "state_s": state_s, "swap_s": swap_s},
        )

    def _take_state(self, generation: Generation, groups: Groups) -> None:
        with self.pulse.timed("state"):
            if generation.image is not None:
                self.step = self._handover.load(Path(generation.image))
                self._has_state = True
            applied = self.step if self._has_state else NOTHING
            via = groups.bridge if generation.bridge else groups.talk
            self.step = self._handover.synchronise(via, applied, self._exchange.signature())
            self._has_state = True

    def _adopt(self, generation: Generation, groups: Groups) -> None:
        assert self._link is not None
        with self.pulse.timed("swap"), self._link.changed:
            if self._groups is not groups:
                self._groups.close()
            self._link.current, self._link.groups = generation, groups
            self._generation, self._groups = generation, groups
            if self._link.worker in generation.members:
                self._rank = generation.members.index(self._link.worker)
                self._take_places(generation)
            self._started = True

    def _take_places(self, generation: Generation) -> None:
        """Own this generation's virtual nodes."""
        owned = owned_by(self._rank, generation.counts)
        self._passes = [tuple(owned)] if self.wishes.fuse else [(node,) for node in owned]
        weight = len(owned) if self.wishes.fuse else 1
        train = self._groups.train if len(generation.members) > 1 else None
        self._exchange.join(train, generation.counts, weight)
        if self.wishes.strict:
            # Sums inside kernels depend on the number of threads.
            torch.set_num_threads(1)
        elif self._link is not None and "OMP_NUM_THREADS" not in os.environ:
            cores = len(os.sched_getaffinity(0))
            torch.set_num_threads(max(1, cores // len(generation.members)))

    def _break(self, failure: Broken) -> None:
        self._failed = True
        if self._link is not None:
            self._link.tell("broken", generation=self._generation.number, because=str(failure))

    def _patient(self) -> bool:
        assert self._link is not None
        self.pulse.alive()
        return self._link.regroup is None and not self._link.stop

    # -- images

    def _write_image(self) -> None:
        assert self._link is not None
        start_s = time.monotonic()
        path = self._handover.write()
        self._link.tell(
            "image",
            path=str(path),
            step=self.step,
            bytes=path.stat().st_size,
            seconds=time.monotonic() - start_s,
        )

    def _reserve(self) -> None:
        """Make room for images now that optimizers have their state, without holding anyone up."""
        bytes_ = nbytes(self.state.tree())
        threading.Thread(
            target=self._handover.reserve,
            args=(bytes_, self._device),
            name="coddl-room",
            daemon=True,
        ).start()

    def _described(self) -> Meta:
        cut = self.wishes.cut
        return {
            "step": self.step,
            "epoch": self.epoch,
            "virtual_nodes": cut.virtual_nodes,
            "global_batch": cut.global_batch,
            "seed": self.wishes.seed,
        }

    def _keys_ahead(self) -> Iterator[Key]:
        """Tell loader processes what will be asked for next, as things stand."""
        for step in range(self.step, self.steps):
            for nodes in list(self._passes):
                yield Key(step, nodes)
