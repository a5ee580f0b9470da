"""Puts the session in the place of `step` and its like, on the user's own objects.

They stay the objects they are: schedulers made before or after find the optimizer they know.
"""

import copyreg
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, Final

from torch.amp import GradScaler
from torch.optim import Optimizer

from coddl.runtime.errors import TrainingError
from coddl.runtime.worker.session import Session

# What a tracked object does once per iteration, under the names such objects use.
ONCE_PER_ITERATION: Final = ("step", "update", "update_parameters")


def take_over_steps(session: Session, optimizers: Sequence[Optimizer]) -> None:
    """Make every `optimizer.step()` the session's."""
    for number, optimizer in enumerate(optimizers):
        _take_over_step(session, optimizer, number)


def _take_over_step(session: Session, optimizer: Optimizer, number: int) -> None:

    def step(_self: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        if closure is not None:
            raise TrainingError(
                "optimizer.step(closure) can't be used",
                "a closure would run forward and backward again inside the step",
                "an optimizer that needs no closure",
            )
        try:
            return session.stepped(number)
        except TrainingError as error:
            session.reject(error)

    def add_param_group(_self: Optimizer, _group: dict[str, Any]) -> None:
        raise TrainingError(
            "parameters can't be added to a prepared optimizer",
            "all workers must exchange the same parameters from the first step on",
            "give the optimizer all of them before coddl.prepare, with lr=0 until their time",
        )

    optimizer.add_param_group = MethodType(add_param_group, optimizer)  # type: ignore[method-assign]
    # A bound method: schedulers look for its __func__.
    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]


def take_over_tracked(session: Session, thing: Any, optimizers: Sequence[Optimizer]) -> None:
    """Make what the object does once per iteration wait for the iteration."""
    if isinstance(thing, GradScaler):
        _take_over_scaler(session, thing, [id(optimizer) for optimizer in optimizers])
        return
    # A class of its own, not attributes: schedulers' state_dict() is all of their attributes.
    kind = type(thing)
    methods = {
        name: _once_method(session, getattr(kind, name))
        for name in ONCE_PER_ITERATION
        if callable(getattr(kind, name, None))
    }
    methods["__reduce_ex__"] = _reduced_as(kind)
    made = type(kind.__name__, (kind,), {**methods, "__module__": kind.__module__})
    try:
        thing.__class__ = made
    except TypeError as error:
        raise TrainingError(
            f"a {kind.__name__} can't be tracked",
            f"its step() can't be made to wait for the iteration: {error}",
            "a plain class, without __slots__, around it",
        ) from error


def _reduced_as(kind: type) -> Callable[..., Any]:
    """Have an object pickled, and so saved by torch.save, as what its user knows it for."""

    def reduce_ex(self: Any, protocol: Any) -> Any:
        reduced = super(type(self), self).__reduce_ex__(protocol)
        if not isinstance(reduced, tuple) or type(self) not in reduced[1]:
            return reduced
        return (copyreg._reconstructor, (kind, object, None), *reduced[2:])  # type: ignore[attr-defined]

    return reduce_ex


def _once_method(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    def once(self: Any, *args: Any, **named: Any) -> Any:
        return session.when_applied(lambda: original(self, *args, **named))

    return once


def _once(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    def once(*args: Any, **named: Any) -> Any:
        return session.when_applied(lambda: original(*args, **named))

    return once


def _take_over_scaler(session: Session, scaler: GradScaler, known: list[int]) -> None:
    step, unscale = scaler.step, scaler.unscale_

    def scaler_step(optimizer: Optimizer, *args: Any, **named: Any) -> Any:
        number = known.index(id(optimizer))
        # Fused optimizers unscale in their own kernel, which is too late for clipping.
        clips = session.wishes.clip_norm is not None and not session.is_unscaled(number)

        def update() -> Any:
            if clips:
                unscale(optimizer)
            return step(optimizer, *args, **named)

        return session.stepped(number, update)

    def scaler_unscale(optimizer: Optimizer) -> None:
        session.unscaled(known.index(id(optimizer)), lambda: unscale(optimizer))

    scaler.step = scaler_step  # type: ignore[method-assign]
    scaler.unscale_ = scaler_unscale  # type: ignore[method-assign]
    scaler.update = _once(session, scaler.update)  # type: ignore[method-assign]
