"""All that a job is, as one tree: what a joiner needs, what a checkpoint holds.

Random numbers, epoch and data position are not here: they follow from the step.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from coddl.runtime.errors import TrainingError
from coddl.runtime.wire import Message
from coddl.runtime.worker.image import Tree, flatten
from coddl.runtime.worker.schedulers import schedulers_of


class SupportsResume(Protocol):
    """What the state needs of its session."""

    def progress_held(self) -> Tree:
        """Return where the training stands."""

    def resume(self, held: Tree, *, is_saved: bool) -> None:
        """Stand there; `is_saved`: a job goes on that had ended."""

    def pending(self) -> list[Tensor]:
        """Return the parameters whose gradients wait for a later update."""

    def catch_up(self, held: Tree) -> None:
        """Have made as many updates; stay where it is otherwise."""


Tracked = Any  # an object with state_dict() and load_state_dict()
DeviceOf = Callable[[Tensor], torch.device]  # where a tensor of an image belongs


class TrainingState:
    """The models, optimizers and tracked objects of one worker."""

    def __init__(
        self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer], trained: SupportsResume
    ) -> None:
        self.tracked: dict[str, Tracked] = {}
        self._models = list(models)
        self._optimizers = list(optimizers)
        self._trained = trained
        self.has_rehearsed = False
        self.on_track: Callable[[Tracked], None] = lambda _: None
        # State that came before `coddl.track` named its owner.
        self._unclaimed: dict[str, Tree] = {}

    def parameters(self) -> list[Tensor]:
        """Return all parameters of the models and optimizers, in order, frozen ones as well."""
        owned: dict[int, Tensor] = {id(p): p for model in self._models for p in model.parameters()}
        # Parameters may live outside the models: a learned temperature, say.
        owned |= {id(p): p for optimizer in self._optimizers for p in parameters_of(optimizer)}
        return list(owned.values())

    def buffers(self) -> list[Tensor]:
        """Return the models' buffers, each once."""
        return list({id(b): b for model in self._models for b in model.buffers()}.values())

    def on_device(self) -> list[Tensor]:
        """Return the tensors that the training keeps on its device, as they are."""
        parameters = self.parameters()
        gradients = [p.grad for p in parameters if p.grad is not None]
        held = flatten([list(optimizer.state.values()) for optimizer in self._optimizers])[1]
        return [*parameters, *self.buffers(), *gradients, *held]

    def about(self) -> Message:
        """Return where the training is kept, and how much a joiner is sent of it."""
        parameters, device = self.parameters(), torch.device("cpu")
        if parameters:
            device = parameters[0].device
        held = flatten([list(optimizer.state.values()) for optimizer in self._optimizers])[1]
        kept = [*parameters, *self.buffers(), *held]
        is_gpu = device.type == "cuda"
        return {
            "device": torch.cuda.get_device_name(device) if is_gpu else device.type,
            "state_bytes": sum(tensor.nbytes for tensor in kept),
        }

    def training(self, *facts: object) -> str:
        """Return a signature of the training: modules, parameters, optimizers, and its own facts.

        Trainings with the same signature take the same time on the same GPU.
        """
        modules = [type(module).__name__ for model in self._models for module in model.modules()]
        optimizers = [type(optimizer).__name__ for optimizer in self._optimizers]
        shapes = [(tuple(p.shape), str(p.dtype), p.requires_grad) for p in self.parameters()]
        told = repr((modules, optimizers, shapes, facts)).encode()
        return hashlib.sha256(told).hexdigest()[:16]

    def tree(self) -> Tree:
        """Return everything as tensors and plain values; nothing is copied."""
        return {
            "parameters": [p.detach() for p in self.parameters()],
            "trains": [p.requires_grad for p in self.parameters()],
            "buffers": [b.detach() for b in self.buffers()],
            "gradients": self._gradients(),
            "groups": self._groups(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "tracked": self._unclaimed
            | {name: thing.state_dict() for name, thing in self.tracked.items()},
            "progress": self._trained.progress_held(),
        }

    @torch.no_grad()
    def restore(
        self, tree: Tree, device_of: DeviceOf, *, progress: bool = True, is_saved: bool = False
    ) -> None:
        """Become the tree; tensors are copied out of it, each to its device.

        Without `progress` the worker stays where it is in the training.
        """
        _copy_all("parameters", self.parameters(), tree["parameters"])
        for parameter, trains in zip(self.parameters(), tree["trains"], strict=True):
            if parameter.requires_grad != trains:  # the script froze it, or unfroze it, meanwhile
                parameter.requires_grad_(trains)
        _copy_all("buffers", self.buffers(), tree["buffers"])
        self._add_groups(tree["groups"])
        for optimizer, held in zip(self._optimizers, tree["optimizers"], strict=True):
            _restore_optimizer(optimizer, held, device_of)
        self._unclaimed = {name: kept(held, device_of) for name, held in tree["tracked"].items()}
        for name in list(self.tracked.keys() & self._unclaimed.keys()):
            self.tracked[name].load_state_dict(self._unclaimed.pop(name))
        if not progress:
            self._trained.catch_up(tree["progress"])
        else:
            # Last: what is tracked may contain the model, whose values it has just set once more.
            for number, gradient in tree["gradients"]:
                self.parameters()[number].grad = kept(gradient, device_of)
            held = kept(tree["progress"], lambda tensor: tensor.device)
            self._trained.resume(held, is_saved=is_saved)

    def forget_rehearsal(self) -> None:
        """Be as new: this worker's own initial weights turn out to be what counts."""
        for optimizer in self._optimizers if self.has_rehearsed else ():
            optimizer.state.clear()

    def _gradients(self) -> list[list[Any]]:
        """Return the gradients that wait for a later update, with the numbers of parameters."""
        pending = {id(p) for p in self._trained.pending()}
        numbered = enumerate(self.parameters()) if pending else ()
        return [
            [n, p.grad.detach()] for n, p in numbered if id(p) in pending and p.grad is not None
        ]

    def _groups(self) -> list[list[list[int]]]:
        """Return the groups of each optimizer, as numbers of parameters."""
        numbers = {id(p): number for number, p in enumerate(self.parameters())}
        return [
            [[numbers[id(p)] for p in group["params"]] for group in optimizer.param_groups]
            for optimizer in self._optimizers
        ]

    def _add_groups(self, groups: list[list[list[int]]]) -> None:
        """Have the groups that the script has added to its optimizers meanwhile."""
        parameters = self.parameters()
        for optimizer, theirs in zip(self._optimizers, groups, strict=True):
            for numbers in theirs[len(optimizer.param_groups) :]:
                optimizer.add_param_group({"params": [parameters[number] for number in numbers]})

    def find_schedulers(self) -> None:
        """Track the learning-rate schedulers of the optimizers that the script did not name."""
        known = {id(thing) for thing in self.tracked.values()}
        for number, optimizer in enumerate(self._optimizers):
            found = schedulers_of(optimizer)
            for place, scheduler in enumerate(each for each in found if id(each) not in known):
                self.track(f"scheduler {number}.{place}", scheduler)

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
        self.on_track(thing)
        if name in self._unclaimed:
            thing.load_state_dict(self._unclaimed.pop(name))


def parameters_of(optimizer: Optimizer) -> Iterable[Tensor]:
    """Return the parameters of all groups, in order."""
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


def _restore_optimizer(optimizer: Optimizer, held: Mapping[str, Any], device_of: DeviceOf) -> None:
    """Load a state_dict without torch's deep copies when nothing special is asked for."""
    if type(optimizer).load_state_dict is not Optimizer.load_state_dict:
        optimizer.load_state_dict(kept(dict(held), device_of))
        return
    numbered = list(parameters_of(optimizer))
    for number, parameter in enumerate(numbered):
        if number not in held["state"]:
            optimizer.state.pop(parameter, None)
    for key, saved in held["state"].items():
        if not isinstance(key, int) or key >= len(numbered):
            optimizer.state[key] = kept(saved, device_of)  # a count of calls, say
            continue
        mine = optimizer.state[numbered[key]]
        for name, value in saved.items():
            mine[name] = _settled(mine.get(name), value, device_of)
    for group, settings in zip(optimizer.param_groups, held["param_groups"], strict=True):
        group.update(
            {name: kept(value, device_of) for name, value in settings.items() if name != "params"}
        )


def _settled(mine: Any, value: Any, device_of: DeviceOf) -> Any:
    """Give a value a place of its own, if it can the one it has already."""
    if not isinstance(value, Tensor) or not isinstance(mine, Tensor):
        return kept(value, device_of)
    if (mine.shape, mine.dtype, mine.device) != (value.shape, value.dtype, device_of(value)):
        return kept(value, device_of)
    return mine.copy_(value, non_blocking=True)


def kept(value: Tree, device_of: DeviceOf) -> Tree:
    """Copy a tree out of the image it lies in."""
    return mapped(value, lambda t: t.to(device_of(t), copy=True, non_blocking=True))


def mapped(value: Tree, change: Callable[[Tensor], Tensor]) -> Tree:
    """Return a tree with other tensors."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return type(value)({key: mapped(item, change) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(item, change) for item in value)
    return value


def to_gpu(models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
    """Move what is trained to the GPU if there is one; parameters stay the tensors they are."""
    if not torch.cuda.is_available():
        return
    for model in models:
        model.to("cuda")
    for optimizer in optimizers:
        for parameter in parameters_of(optimizer):  # some belong to no model
            parameter.data = parameter.data.to("cuda")
        if optimizer.state:
            optimizer.load_state_dict(optimizer.state_dict())  # follows its parameters
