"""What a training script calls: prepare, track, is_main, mean, log."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from coddl.runtime.errors import TrainingError
from coddl.runtime.vnodes import batch_of
from coddl.runtime.worker.leaves import number_of
from coddl.runtime.worker.link import Link, reject
from coddl.runtime.worker.loader import Item, Samples
from coddl.runtime.worker.session import Session, Wishes
from coddl.runtime.worker.state import parameters_of
from coddl.runtime.worker.stepping import take_over_steps, take_over_tracked

Models = TypeVar("Models", bound="nn.Module | tuple[nn.Module, ...]")
Optimizers = TypeVar("Optimizers", bound="Optimizer | tuple[Optimizer, ...]")

LOG_EVERY_S: Final = 0.5


class Batches:
    """The training loop's iterator: micro-batches of all epochs, one pass of the loop each."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __iter__(self) -> Iterator[Item]:
        if self._session.has_ended:
            raise TrainingError(
                "the training is over",
                f"batches hold all epochs, and all {self.steps} steps are made",
                "coddl.prepare(..., epochs=N) in the place of a loop over epochs",
            )
        return self

    def __next__(self) -> Item:
        try:
            return self._session.advance()
        except TrainingError as error:
            self._session.reject(error)

    @property
    def step(self) -> int:
        """The iteration under way: how many updates the weights have seen before it."""
        return self._session.step

    @property
    def epoch(self) -> int:
        """The epoch under way, from 0."""
        return self._session.epoch

    @property
    def steps(self) -> int:
        """How many iterations the whole training has."""
        return self._session.steps

    @property
    def completes(self) -> bool:
        """Whether this pass completes the iteration: after its `step()`, the weights are new."""
        return self._session.is_last_pass

    @property
    def grad_norm(self) -> Tensor | None:
        """The last gradient's norm before clipping, with `clip_norm`."""
        return self._session.grad_norm


_session: Session | None = None
_optimizers: Sequence[Optimizer] = ()


def prepare(
    model: Models,
    optimizer: Optimizers,
    dataset: Any,
    *,
    global_batch: int,
    micro_batch: int | None = None,
    epochs: int = 1,
    seed: int = 0,
    collate: Callable[[list[Item]], Item] | None = None,
    loader_workers: int = 0,
    clip_norm: float | None = None,
    strict: bool = False,
    fuse: bool = False,
) -> tuple[Models, Optimizers, Batches]:
    """Make an ordinary training loop elastic; gives (model, optimizer, batches).

    Model and optimizer are the ones given (moved to the GPU if there is one); tuples of them for
    several. One pass over `batches` is one micro-batch; `optimizer.step()` applies an update when
    the global batch is complete, whatever the number of workers.

    global_batch: samples per update. micro_batch: samples per pass; by default the global batch is
    cut into the largest power of two of parts up to 16. epochs, seed: of the whole training.
    collate, loader_workers: as for a DataLoader. clip_norm: clip the update's gradient.
    strict: the same bits at every number of workers. fuse: run a worker's micro-batches as one
    batch, which is faster, and lets masks and batch statistics depend on the number of workers.
    """
    global _session, _optimizers
    link = Link.from_environment() if _session is None else None
    try:
        models: tuple[nn.Module, ...] = model if isinstance(model, tuple) else (model,)
        _optimizers = optimizer if isinstance(optimizer, tuple) else (optimizer,)
        cut = batch_of(global_batch, micro_batch)
        _check(models, _optimizers, strict=strict, fuse=fuse, epochs=epochs, clip_norm=clip_norm)
        samples = Samples(dataset, cut, seed, collate)
        wishes = Wishes(cut, epochs, seed, loader_workers, clip_norm, strict, fuse)
        if strict:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        _to_gpu(models, _optimizers)
        _session = Session(models, _optimizers, samples, wishes, link)
    except TrainingError as error:
        if link is not None:
            reject(link, error)
        raise
    if link is not None:
        link.tell("prepared")
    take_over_steps(_session, _optimizers)
    return model, optimizer, Batches(_session)


def track(**things: Any) -> None:
    """Keep further objects with the job's state: schedulers, an EMA, a GradScaler, ...

    Each has state_dict() and load_state_dict(). Its step(), update() or update_parameters() then
    act once per iteration, in the pass that completes it.
    """
    session = _prepared("coddl.track")
    for name, thing in things.items():
        session.state.track(name, thing)
        take_over_tracked(session, thing, _optimizers)


def is_main() -> bool:
    """Tell whether this is the worker that should print and save: the oldest one."""
    return _session is None or _session.is_main


def mean(value: float | Tensor) -> float:
    """Average a number over the iteration's micro-batches, on all workers.

    Exact in the pass that completes the iteration (`batches.completes`); before it, the mean over
    what this worker has seen. Every worker must make the same calls.
    """
    session = _prepared("coddl.mean")
    try:
        return session.mean(value)
    except TrainingError as error:
        session.reject(error)


_logged: dict[str, float | Tensor] = {}
_logged_s = 0.0


def log(**metrics: float | Tensor) -> None:
    """Show numbers in the job's status; the main worker's count. Cheap: sent twice a second."""
    global _logged_s
    session = _prepared("coddl.log")
    if not session.is_main or session.rehearsing:
        return
    _logged.update(
        (name, value.detach() if isinstance(value, Tensor) else value)
        for name, value in metrics.items()
    )
    now_s = time.monotonic()
    if now_s - _logged_s >= LOG_EVERY_S:
        _logged_s = now_s
        session.report({name: number_of(value) for name, value in _logged.items()})


def _prepared(what: str) -> Session:
    if _session is None:
        raise TrainingError(
            f"{what} was called too early",
            "the job is not prepared yet",
            "call coddl.prepare(...) first",
        )
    return _session


def _check(
    models: Sequence[nn.Module],
    optimizers: Sequence[Optimizer],
    *,
    strict: bool,
    fuse: bool,
    epochs: int,
    clip_norm: float | None,
) -> None:
    if _session is not None:
        raise TrainingError(
            "coddl.prepare was called twice",
            "a process trains one job",
            "prepare((model_a, model_b), (optimizer_a, optimizer_b), ...) for several models",
        )
    for thing, kind in [*((m, nn.Module) for m in models), *((o, Optimizer) for o in optimizers)]:
        if not isinstance(thing, kind):
            raise TrainingError(
                f"a {type(thing).__name__} is no {kind.__name__}",
                "prepare takes model, optimizer, dataset, in this order",
                "coddl.prepare(model, optimizer, dataset, global_batch=256)",
            )
    owned: set[int] = set()
    for optimizer in optimizers:
        if shared := owned & {id(p) for p in parameters_of(optimizer)}:
            raise TrainingError(
                "a parameter belongs to two optimizers",
                f"{len(shared)} parameters would be updated twice in an iteration",
                "each parameter in one optimizer",
            )
        owned |= {id(p) for p in parameters_of(optimizer)}
        if not any(True for _ in parameters_of(optimizer)):
            raise TrainingError(
                f"the {type(optimizer).__name__} has no parameters",
                "there is nothing to train",
                f"{type(optimizer).__name__}(model.parameters(), lr=...)",
            )
    if strict and fuse:
        raise TrainingError(
            "strict and fuse exclude each other",
            "fused batches have other random numbers and sums at each number of workers",
            "one of them",
        )
    if clip_norm is not None and not clip_norm > 0:
        raise TrainingError(
            f"clip_norm={clip_norm} would stop the training", "it must be above 0", "clip_norm=1.0"
        )
    if epochs < 1:
        raise TrainingError(f"epochs={epochs} trains nothing", "it must be at least 1", "epochs=1")


def _to_gpu(models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
    """Move what is trained to the GPU if there is one; parameters stay the tensors they are."""
    trained = [p for optimizer in optimizers for p in parameters_of(optimizer)]
    if torch.cuda.is_available():
        for model in models:
            model.to("cuda")
        for parameter in trained:  # some belong to no model
            parameter.data = parameter.data.to("cuda")
        for optimizer in optimizers:
            if optimizer.state:
                optimizer.load_state_dict(optimizer.state_dict())  # follows its parameters
    if len({parameter.device for parameter in trained}) > 1:
        raise TrainingError(
            "parameters live on several devices",
            "gradients are exchanged as one",
            "all of the model on one device",
        )
