"""All that a job is, as one tree: what a joiner needs, what a checkpoint holds.

Random numbers, epoch and data position are not here: they follow from the step.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from coddl.runtime.errors import TrainingError
from coddl.runtime.worker.buffers import Buffers
from coddl.runtime.worker.image import Tree

Tracked = Any  # an object with state_dict() and load_state_dict()


class State:
    """The models, optimizers and tracked objects of one worker."""

    def __init__(
        self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer], buffers: Buffers
    ) -> None:
        self.tracked: dict[str, Tracked] = {}
        self._optimizers = list(optimizers)
        self._buffers = buffers
        owned: dict[int, Tensor] = {id(p): p for model in models for p in model.parameters()}
        # Parameters may live outside the models: a learned temperature, say.
        owned |= {id(p): p for optimizer in optimizers for p in parameters_of(optimizer)}
        self._parameters = list(owned.values())
        # State that came before `coddl.track` named its owner.
        self._unclaimed: dict[str, Tree] = {}

    def tree(self) -> Tree:
        """Give everything as tensors and plain values; nothing is copied."""
        return {
            "parameters": [p.detach() for p in self._parameters],
            "buffers": [b.detach() for b in self._buffers.all],
            "live": self._buffers.agreed(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "tracked": self._unclaimed
            | {name: thing.state_dict() for name, thing in self.tracked.items()},
        }

    @torch.no_grad()
    def restore(self, tree: Tree) -> None:
        """Become the tree; tensors are copied out of it."""
        _copy_all("parameters", self._parameters, tree["parameters"])
        _copy_all("buffers", self._buffers.all, tree["buffers"])
        self._buffers.agree(tree["live"])
        for optimizer, held in zip(self._optimizers, tree["optimizers"], strict=True):
            _restore_optimizer(optimizer, held)
        self._unclaimed = {name: _kept(held) for name, held in tree["tracked"].items()}
        for name in list(self.tracked.keys() & self._unclaimed.keys()):
            self.tracked[name].load_state_dict(self._unclaimed.pop(name))

    def forget_rehearsal(self) -> None:
        """Be as new: this worker's own initial weights turn out to be what counts."""
        for optimizer in self._optimizers:
            optimizer.state.clear()

    def track(self, name: str, thing: Tracked) -> None:
        """Keep a further object with the state, and give it the state that waits for it."""
        if name in self.tracked:
            raise TrainingError(
                f"{name!r} is tracked already", "names must differ", f"coddl.track({name}_2=...)"
            )
        for method in ("state_dict", "load_state_dict"):
            if not callable(getattr(thing, method, None)):
                raise TrainingError(
                    f"{name!r} can't be tracked",
                    f"a {type(thing).__name__} has no {method}()",
                    "an object with state_dict() and load_state_dict()",
                )
        self.tracked[name] = thing
        if name in self._unclaimed:
            thing.load_state_dict(self._unclaimed.pop(name))


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


def parameters_of(optimizer: Optimizer) -> Iterable[Tensor]:
    """Give the parameters of all groups, in order."""
    return (p for group in optimizer.param_groups for p in group["params"])


def _copy_all(what: str, mine: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    shapes = [(tuple(t.shape), t.dtype) for t in mine], [(tuple(t.shape), t.dtype) for t in theirs]
    if shapes[0] != shapes[1]:
        differing = next(
            (i for i, (a, b) in enumerate(zip(*shapes, strict=False)) if a != b), len(mine)
        )
        raise TrainingError(
            f"the saved {what} don't fit this model",
            f"{len(theirs)} were saved and the model has {len(mine)}; number {differing} differs",
            "the script that started the job, or `coddl run --fresh` to start over",
        )
    for to, source in zip(mine, theirs, strict=True):
        to.copy_(source, non_blocking=True)


def _restore_optimizer(optimizer: Optimizer, held: Mapping[str, Any]) -> None:
    """Load a state_dict without torch's deep copies when nothing special is asked for."""
    if type(optimizer).load_state_dict is not Optimizer.load_state_dict:
        optimizer.load_state_dict(_kept(dict(held)))
        return
    numbered = list(parameters_of(optimizer))
    for number in range(len(numbered)):
        if number not in held["state"]:
            optimizer.state.pop(numbered[number], None)
    for number, kept in held["state"].items():
        mine = optimizer.state[numbered[number]]
        for key, value in kept.items():
            mine[key] = _settled(mine.get(key), value, numbered[number])
    for group, saved in zip(optimizer.param_groups, held["param_groups"], strict=True):
        group.update({key: _kept(value) for key, value in saved.items() if key != "params"})


def _settled(mine: Any, value: Any, parameter: Tensor) -> Any:
    """Give a value a place of its own, on the device where optimizers keep such values."""
    if not isinstance(value, Tensor):
        return _kept(value)
    if isinstance(mine, Tensor) and mine.shape == value.shape and mine.dtype == value.dtype:
        return mine.copy_(value, non_blocking=True)
    # Step counts are scalars that stay on the CPU; moments live beside their parameter.
    place = parameter.device if value.shape == parameter.shape else value.device
    return value.to(place, copy=True, non_blocking=True)


def _kept(value: Tree) -> Tree:
    """Copy a tree out of the image it lies in."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return type(value)({key: _kept(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return type(value)(_kept(item) for item in value)
    return value
