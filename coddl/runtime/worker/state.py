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
from coddl.runtime.worker.image import Tree, flatten

Tracked = Any  # an object with state_dict() and load_state_dict()
Home = Callable[[Tensor], torch.device]  # where a tensor of an image belongs


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
    def restore(self, tree: Tree, home: Home) -> None:
        """Become the tree; tensors are copied out of it, each to its home."""
        _copy_all("parameters", self._parameters, tree["parameters"])
        _copy_all("buffers", self._buffers.all, tree["buffers"])
        self._buffers.agree(tree["live"])
        for optimizer, held in zip(self._optimizers, tree["optimizers"], strict=True):
            _restore_optimizer(optimizer, held, home)
        self._unclaimed = {name: _kept(held, home) for name, held in tree["tracked"].items()}
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
        flatten({name: thing.state_dict()})  # what can't be kept is better refused now
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
            f"{len(theirs)} were saved and the model has {len(mine)}; the first that differ are "
            f"{_shown(theirs, differing)} and {_shown(mine, differing)}",
            "the script that started the job, or `coddl run --fresh` to start over",
        )
    for to, source in zip(mine, theirs, strict=True):
        to.copy_(source, non_blocking=True)


def _shown(tensors: Sequence[Tensor], number: int) -> str:
    if number >= len(tensors):
        return "none"
    return f"{tuple(tensors[number].shape)} of {tensors[number].dtype}"


def _restore_optimizer(optimizer: Optimizer, held: Mapping[str, Any], home: Home) -> None:
    """Load a state_dict without torch's deep copies when nothing special is asked for."""
    if type(optimizer).load_state_dict is not Optimizer.load_state_dict:
        optimizer.load_state_dict(_kept(dict(held), home))
        return
    numbered = list(parameters_of(optimizer))
    for number, parameter in enumerate(numbered):
        if number not in held["state"]:
            optimizer.state.pop(parameter, None)
    for key, kept in held["state"].items():
        if not isinstance(key, int) or key >= len(numbered):
            optimizer.state[key] = _kept(kept, home)  # not a parameter's: some count their calls
            continue
        mine = optimizer.state[numbered[key]]
        for name, value in kept.items():
            mine[name] = _settled(mine.get(name), value, home)
    for group, saved in zip(optimizer.param_groups, held["param_groups"], strict=True):
        group.update(
            {name: _kept(value, home) for name, value in saved.items() if name != "params"}
        )


def _settled(mine: Any, value: Any, home: Home) -> Any:
    """Give a value a place of its own, if it can the one it has already."""
    if not isinstance(value, Tensor) or not isinstance(mine, Tensor):
        return _kept(value, home)
    if (mine.shape, mine.dtype, mine.device) != (value.shape, value.dtype, home(value)):
        return _kept(value, home)
    return mine.copy_(value, non_blocking=True)


def _kept(value: Tree, home: Home) -> Tree:
    """Copy a tree out of the image it lies in."""
    if isinstance(value, Tensor):
        return value.to(home(value), copy=True, non_blocking=True)
    if isinstance(value, dict):
        return type(value)({key: _kept(item, home) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return type(value)(_kept(item, home) for item in value)
    return value
