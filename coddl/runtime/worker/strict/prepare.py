"""`coddl.prepare(..., strict=True)`: the arguments, the checks, and the loop's iterator."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from coddl.runtime.errors import TrainingError
from coddl.runtime.vnodes import batch_of
from coddl.runtime.worker import checks
from coddl.runtime.worker.state import to_gpu
from coddl.runtime.worker.strict.samples import Item, Samples
from coddl.runtime.worker.strict.session import StrictSession, StrictSettings
from coddl.runtime.worker.strict.stepping import take_over_steps
from coddl.runtime.worker.supervisor_link import SupervisorLink

DEFAULTS = {"epochs": 1, "seed": 0, "collate": None, "loader_workers": 0, "clip_norm": None}


class Batches:
    """The training loop's iterator: micro-batches of all epochs, one pass of the loop each."""

    def __init__(self, session: StrictSession) -> None:
        self._session = session

    def __iter__(self) -> Iterator[Item]:
        if self._session.has_ended:
            raise TrainingError(
                "the training is over",
                f"batches hold all epochs, and all {self.steps} steps are made",
                "coddl.prepare(..., strict=True, epochs=N) in the place of a loop over epochs",
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


def prepare_strict(
    objects: Sequence[Any], given: dict[str, Any], link: SupervisorLink | None
) -> tuple[StrictSession, tuple[Any, ...]]:
    """Set a strict session up; gives it and what `prepare` returns."""
    model, optimizer, data, *others = (*objects, None, None, None)[: max(3, len(objects))]
    models: tuple[nn.Module, ...] = model if isinstance(model, tuple) else (model,)
    optimizers: tuple[Optimizer, ...] = optimizer if isinstance(optimizer, tuple) else (optimizer,)
    settings = {**DEFAULTS, **given}
    if isinstance(data, DataLoader):
        data = _taken_from(data, settings)
    _check(models, optimizers, settings)
    cut = batch_of(settings["global_batch"], settings["micro_batch"])
    samples = Samples(data, cut, settings["seed"], settings["collate"])
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    to_gpu(models, optimizers)
    strictly = StrictSettings(
        cut,
        settings["epochs"],
        settings["seed"],
        settings["loader_workers"],
        settings["clip_norm"],
    )
    session = StrictSession(models, optimizers, samples, strictly, link)
    take_over_steps(session, optimizers)
    for number, thing in enumerate(others):
        session.track(**{f"prepared {number}": thing})
    return session, (model, optimizer, Batches(session), *others)


def _taken_from(loader: "DataLoader[Any]", settings: dict[str, Any]) -> Any:
    """Take from a DataLoader what a strict job can use, and refuse the rest."""
    if not isinstance(loader.sampler, RandomSampler | SequentialSampler) or not loader.batch_size:
        raise TrainingError(
            f"strict=True can't use a {type(loader.sampler).__name__}",
            "a strict job finds every sample by seed, step and virtual node",
            "strict=False, or a dataset that holds just the samples to train on",
        )
    settings["global_batch"] = settings["global_batch"] or loader.batch_size
    settings["collate"] = settings["collate"] or loader.collate_fn
    settings["loader_workers"] = settings["loader_workers"] or loader.num_workers
    return loader.dataset


def _check(
    models: Sequence[nn.Module], optimizers: Sequence[Optimizer], settings: dict[str, Any]
) -> None:
    for name in settings.keys() - DEFAULTS.keys() - {"global_batch", "micro_batch"}:
        raise TrainingError(
            f"coddl.prepare has no argument {name!r}", "it is not known", "help(coddl.prepare)"
        )
    for thing, kind in [*((m, nn.Module) for m in models), *((o, Optimizer) for o in optimizers)]:
        if not isinstance(thing, kind):
            raise TrainingError(
                f"a {type(thing).__name__} is no {kind.__name__}",
                "prepare takes model, optimizer, dataset, in this order",
                "coddl.prepare(model, optimizer, dataset, global_batch=256, strict=True)",
            )
    checks.check_models(models)
    checks.refuse_syncnorm(models, with_="strict=True")
    checks.check_optimizers(optimizers)
    if settings["global_batch"] is None:
        raise TrainingError(
            "strict=True needs global_batch",
            "it was given a dataset without one",
            "coddl.prepare(model, optimizer, dataset, global_batch=256, strict=True)",
        )
    clip_norm, epochs = settings["clip_norm"], settings["epochs"]
    if clip_norm is not None and not clip_norm > 0:
        raise TrainingError(
            f"clip_norm={clip_norm} would stop the training", "it must be above 0", "clip_norm=1.0"
        )
    if epochs < 1:
        raise TrainingError(f"epochs={epochs} trains nothing", "it must be at least 1", "epochs=1")
