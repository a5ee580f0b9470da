"""What a training script calls: prepare, epochs, track, state, is_main, mean and the like."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from coddl.runtime.errors import TrainingError
from coddl.runtime.worker import batches, checks, loops
from coddl.runtime.worker.loader import ElasticLoader, EvalLoader, check_loader
from coddl.runtime.worker.logged_loss import NAME, LoggedLoss
from coddl.runtime.worker.numbers import number_of
from coddl.runtime.worker.session import TrainingSession
from coddl.runtime.worker.settings import Settings
from coddl.runtime.worker.state import to_gpu
from coddl.runtime.worker.strict.prepare import prepare_strict
from coddl.runtime.worker.strict.session import StrictSession
from coddl.runtime.worker.supervisor_link import SupervisorLink, reject
from coddl.runtime.worker.values import Values

LOG_EVERY_S: Final = 0.5

_session: TrainingSession | StrictSession | None = None
_link: SupervisorLink | None = None


def prepare(
    *objects: Any,
    eval: Any = None,
    global_batch: int | None = None,
    micro_batch: int | None = None,
    min_slice: int | None = None,
    reduction: str = "mean",
    weight: Callable[[Any], float | Tensor] | None = None,
    strict: bool = False,
    **strictly: Any,
) -> Any:
    """Make an ordinary training loop elastic; gives what it was given, in the same order.

    Models, optimizers, DataLoaders, and whatever else has a `state_dict`: schedulers, a GradScaler,
    an EMA. The DataLoader comes back as one that gives this worker's slice of every batch; all
    else is the object itself. A dataset with `global_batch` stands for
    `DataLoader(dataset, batch_size=global_batch, shuffle=True)`, with model and batches moved to
    the GPU if there is one.

    eval: a loader whose batches workers share out for evaluation; comes back last.
    micro_batch: samples per pass at most, if a slice does not fit into memory.
    min_slice: samples a worker must have at least; 16 for models with BatchNorm, else 1.
    reduction: "mean", or "sum" for losses that add up over the batch.
    weight: what a batch weighs in the mean, from the batch: its tokens, say.
    strict: the same bits at every number of workers; see docs/elastic.md for its other arguments.
    """
    global _session, _link
    link = SupervisorLink.from_environment() if _session is None else None
    _link = link or _link
    try:
        if _session is not None:
            raise TrainingError(
                "coddl.prepare was called twice",
                "a process trains one job",
                "prepare(model_a, model_b, optimizer_a, optimizer_b, loader) for several models",
            )
        if strict:
            given = {"global_batch": global_batch, "micro_batch": micro_batch, **strictly}
            _session, prepared = prepare_strict(objects, given, link)
        else:
            _refuse_unknown(strictly)
            sorted_ = _Sorted(objects, eval, global_batch)
            settings = sorted_.settings(min_slice, micro_batch, reduction, weight)
            _session, prepared = _prepared_session(sorted_, settings, link)
    except TrainingError as error:
        if link is not None:
            reject(link, error)
        raise
    if link is not None:
        link.tell("prepared")
    return prepared[0] if len(prepared) == 1 else prepared


def _prepared_session(
    given: "_Sorted", settings: Settings, link: SupervisorLink | None
) -> tuple[TrainingSession, tuple[Any, ...]]:
    if given.is_short:
        to_gpu(given.models, given.optimizers)
    session = TrainingSession(given.models, given.optimizers, settings, link)
    if settings.micro_batch is not None:
        checks.refuse_syncnorm(given.models, with_=f"micro_batch={settings.micro_batch}")
        session.use_micro_batches(settings.micro_batch)
    device = next(given.models[0].parameters()).device if given.is_short else None
    elastic = {
        id(loader): ElasticLoader(
            loader, session, device if device is not None and device.type == "cuda" else None
        )
        for loader in given.loaders
    }
    session.loaders += elastic.values()
    for number, thing in enumerate(given.tracked):
        session.state.track(f"prepared {number}", thing)
    checks.warn_of([] if given.is_short else given.models, given.loaders)
    out = tuple(elastic.get(id(each), each) for each in given.returned)
    return session, (*out, EvalLoader(given.eval, session)) if given.eval is not None else out


class _Sorted:
    """The things that prepare was given, by what they are."""

    def __init__(self, objects: Sequence[Any], eval_: Any, global_batch: int | None) -> None:
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self.loaders: list[DataLoader[Any]] = []
        self.tracked: list[Any] = []
        self.returned: list[Any] = []
        self.eval = eval_
        self.is_short = False
        for thing in objects:
            self.returned.append(self._sort(thing, global_batch))
        if not self.models or not self.optimizers:
            missing = "model" if not self.models else "optimizer"
            raise TrainingError(
                f"coddl.prepare was given no {missing}",
                f"it got {', '.join(type(each).__name__ for each in objects) or 'nothing'}",
                "model, optimizer, loader = coddl.prepare(model, optimizer, loader); where the "
                "script updates weights itself, an optimizer that it never steps",
            )
        checks.check_models(self.models)
        checks.check_optimizers(self.optimizers)
        for loader in self.loaders:
            check_loader(loader)

    def _sort(self, thing: Any, global_batch: int | None) -> Any:
        if isinstance(thing, tuple) and thing and all(map(_is_trained, thing)):
            return tuple(self._sort(each, global_batch) for each in thing)
        if isinstance(thing, nn.Module) and not _is_average(thing):
            self.models.append(thing)
        elif isinstance(thing, Optimizer):
            self.optimizers.append(thing)
        elif isinstance(thing, DataLoader):
            self.loaders.append(thing)
        elif hasattr(thing, "state_dict") and not hasattr(thing, "__getitem__"):
            self.tracked.append(thing)
        elif hasattr(thing, "__getitem__") or hasattr(thing, "__iter__"):
            return self._short(thing, global_batch)
        else:
            raise TrainingError(
                f"coddl.prepare can't take a {type(thing).__name__}",
                "it takes models, optimizers, DataLoaders, and objects with a state_dict()",
                "coddl.prepare(model, optimizer, loader)",
            )
        return thing

    def _short(self, dataset: Any, global_batch: int | None) -> Any:
        if global_batch is None or global_batch % 1 or global_batch < 1:
            raise TrainingError(
                f"a {type(dataset).__name__} needs a batch size",
                f"it was given as a dataset, with global_batch={global_batch}",
                "coddl.prepare(model, optimizer, DataLoader(dataset, batch_size=64, "
                "shuffle=True)), or coddl.prepare(model, optimizer, dataset, global_batch=64)",
            )
        self.is_short = True
        shuffles = hasattr(dataset, "__getitem__")
        loader = DataLoader(dataset, batch_size=int(global_batch), shuffle=shuffles or None)
        self.loaders.append(loader)
        return loader

    def settings(
        self, min_slice: int | None, micro_batch: int | None, reduction: str, weight: Any
    ) -> Settings:
        """Say what the session is to keep to."""
        if reduction not in ("mean", "sum"):
            raise TrainingError(
                f"reduction={reduction!r} is unknown",
                "gradients are averaged over the global batch, or added up",
                'reduction="mean" or reduction="sum"',
            )
        least = checks.min_slice_of(self.models, min_slice)
        batch = self._batch()
        most = max(1, batch // least)
        return Settings(batch, most, micro_batch, cast(Any, reduction), weight)

    def _batch(self) -> int:
        if not self.loaders:
            return STEPS_BATCH
        loader = self.loaders[0]
        known = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
        return int(known) if known else STEPS_BATCH


STEPS_BATCH: Final = 256  # parts to cut batches into whose size the script keeps to itself


def _is_trained(thing: Any) -> bool:
    return isinstance(thing, nn.Module | Optimizer)


def _is_average(thing: nn.Module) -> bool:
    """Return whether a model is an average of another one, and not trained itself."""
    return isinstance(thing, torch.optim.swa_utils.AveragedModel)


def _refuse_unknown(arguments: dict[str, Any]) -> None:
    for name in arguments:
        raise TrainingError(
            f"coddl.prepare has no argument {name!r}",
            NOT_ANY_MORE.get(name, "it is not known"),
            INSTEAD.get(name, "help(coddl.prepare)"),
        )


NOT_ANY_MORE: Final = {
    "fuse": "a worker's slice is always one batch now, as with fuse=True",
    "epochs": "the script's own epoch loop counts",
    "clip_norm": "after backward() the gradient is that of the global batch",
    "collate": "the DataLoader's own is used",
    "loader_workers": "the DataLoader's own are used",
    "seed": "the script's own random streams are used",
}
INSTEAD: Final = {
    "fuse": "leave it out",
    "epochs": "for epoch in coddl.epochs(N): for batch in loader: ...",
    "clip_norm": "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) before optimizer.step()",
    "collate": "DataLoader(..., collate_fn=...) given to coddl.prepare",
    "loader_workers": "DataLoader(..., num_workers=...) given to coddl.prepare",
    "seed": "torch.manual_seed(0) at the top of the script",
}


# --- the loops -----------------------------------------------------------------------------------


def epochs(*bounds: int) -> Iterator[int]:
    """Iterate over epochs, like `range`: `for epoch in coddl.epochs(90)`.

    Without a number they have no end: leave the loop, or call `coddl.stop()`.

    A worker that joins begins with the job's current epoch; a job that goes on, with its own.
    """
    return loops.epochs(_elastic("coddl.epochs"), range(*bounds) if bounds else None)


def steps(*bounds: int) -> Iterator[int]:
    """Iterate over steps, like `range`, in scripts that make their batches themselves.

    Without a number they have no end: leave the loop, or call `coddl.stop()`.
    """
    return loops.steps(_elastic("coddl.steps"), range(*bounds) if bounds else None)


def enumerate(loader: Iterable[Any], start: int = 0) -> Iterator[tuple[int, Any]]:
    """Number a loader's batches by their place in the epoch, also in a worker that joins."""
    return loops.enumerated(loader, start)


def slice(*parts: Any) -> Any:
    """Cut this worker's slice out of a batch that every worker has; tensors, or dicts of them."""
    session = _elastic("coddl.slice")
    whole = parts[0] if len(parts) == 1 else parts
    count = batches.samples_in(whole)
    if count is None:
        raise TrainingError(
            f"coddl.slice can't cut a {type(whole).__name__}",
            "it holds no tensor whose first dimension counts samples",
            "x, y = coddl.slice(x, y)",
        )
    return batches.cut(whole, session.slice_of(count), count)


def stop() -> None:
    """End the training on all workers: their loops end as if all epochs were done."""
    _elastic("coddl.stop").stop()


# --- gradients and state -------------------------------------------------------------------------


def no_sync() -> AbstractContextManager[None]:
    """Leave gradients unexchanged meanwhile: the next `backward()` outside takes them along."""
    return _elastic("coddl.no_sync").unsynchronised()


def backward(loss: Tensor, weight: float | Tensor | None = None) -> None:
    """Run `loss.backward()`, where this worker's part of the mean weighs `weight`: its tokens."""
    if weight is not None and _session is not None:
        _elastic("coddl.backward(weight=...)").exchange.weight = number_of(weight)
    torch.autograd.backward(loss)


def track(**things: Any) -> None:
    """Keep further objects with the job's state: a scheduler, an EMA, a GradScaler, ...

    Each has state_dict() and load_state_dict().
    """
    _prepared("coddl.track").track(**things)


def state(**values: Any) -> Values:
    """Keep plain values with the job: `best = coddl.state(loss=1e9)`, then `best.loss = ...`.

    They are saved, and handed to workers that join; at each epoch's start all workers have the
    main worker's.
    """
    session = _elastic("coddl.state")
    session.values.name(values)
    return session.values


# --- numbers -------------------------------------------------------------------------------------


def is_main() -> bool:
    """Return whether this is the worker that should print and save: the oldest one."""
    if _session is None:
        return True
    return _session.is_main and not getattr(_session, "rehearses", False)


def mean(value: float | Tensor) -> float:
    """Average a number over all workers; in the loop by the samples each has of the batch.

    Every worker must make the same calls.
    """
    session = _prepared("coddl.mean")
    try:
        return session.mean(value)
    except TrainingError as error:
        session.reject(error)


def sum(value: Any) -> Any:
    """Add a number, or a tensor, up over all workers, which must all make the call."""
    session = _elastic("coddl.sum")
    if isinstance(value, Tensor) and value.numel() > 1:
        return value if session.is_alone else session.peers.gather(value[None]).sum(0)
    number = number_of(value)
    return number if session.is_alone else session.peers.sum(number)


def gather(value: Tensor) -> Tensor:
    """Put all workers' tensors together along their first dimension; all must make the call."""
    session = _elastic("coddl.gather")
    return value if session.is_alone else session.peers.gather(value)


def barrier() -> None:
    """Wait until all workers have come here: before they load what the main one has saved."""
    session = _elastic("coddl.barrier")
    if not session.is_alone:
        session.peers.sum(0.0)


_logged: dict[str, float | Tensor] = {}
_logged_s = 0.0
_loss = LoggedLoss()


def log(**metrics: float | Tensor) -> None:
    """Show numbers in the job's status; the main worker's count. Cheap: sent twice a second.

    From `loss` the length of a training is predicted that does not tell it.
    """
    global _logged_s
    session = _prepared("coddl.log")
    if not session.is_main or session.rehearses:
        return
    _logged.update(
        (name, value.detach() if isinstance(value, Tensor) else value)
        for name, value in metrics.items()
    )
    if NAME in metrics:
        _loss.add(metrics[NAME], session.step)
    now_s = time.monotonic()
    if now_s - _logged_s >= LOG_EVERY_S:
        _logged_s = now_s
        numbers = {name: number_of(value) for name, value in _logged.items()}
        session.report(numbers, _loss.take())


def finish() -> None:
    """End the training of a script that has come to its end; called where that is seen."""
    if isinstance(_session, TrainingSession):
        _session.finish()


def out_of_memory() -> None:
    """Say that the script ended because memory ran out; called where its end is seen."""
    link = _link or SupervisorLink.from_environment()  # it may not have come to `prepare`
    if link is not None:
        in_pass = _session.samples_in_pass if isinstance(_session, TrainingSession) else 0
        link.tell("out-of-memory", samples=in_pass)


def _prepared(what: str) -> TrainingSession | StrictSession:
    if _session is None:
        raise TrainingError(
            f"{what} was called too early",
            "the job is not prepared yet",
            "call coddl.prepare(...) first",
        )
    return _session


def _elastic(what: str) -> TrainingSession:
    session = _prepared(what)
    if isinstance(session, StrictSession):
        raise TrainingError(
            f"{what} can't be used with strict=True",
            "there one loop over batches runs through all epochs, a virtual node at a time",
            "coddl.prepare(..., strict=True, epochs=N), and batches.epoch and batches.step",
        )
    return session
