"""Puts the session in the place of `step` and its like, on the user's own objects.

They stay the objects they are: schedulers made before or after find the optimizer they know.
"""

import functools
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

from torch.amp import GradScaler
from torch.optim import Optimizer

from coddl.runtime.errors import TrainingError
from coddl.runtime.worker.gated_calls import gate_object, gate_scaler
from coddl.runtime.worker.strict.session import StrictSession


def take_over_steps(session: StrictSession, optimizers: Sequence[Optimizer]) -> None:
    """Make every `optimizer.step()` the session's."""
    for number, optimizer in enumerate(optimizers):
        _take_over_step(session, optimizer, number)


def _take_over_step(session: StrictSession, optimizer: Optimizer, number: int) -> None:

    # A scheduler marks the step that it counts, and warns if that one was replaced. Ours calls it.
    @functools.wraps(optimizer.step)
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


def take_over_tracked(session: StrictSession, thing: Any, optimizers: Sequence[Optimizer]) -> None:
    """Make what the object does once per iteration wait for the iteration."""
    if isinstance(thing, GradScaler):
        _take_over_scaler(session, thing, [id(optimizer) for optimizer in optimizers])
    else:
        gate_object(thing, session.when_applied)


def _take_over_scaler(session: StrictSession, scaler: GradScaler, known: list[int]) -> None:
    step, unscale = scaler.step, scaler.unscale_

    def scaler_step(optimizer: Optimizer, *args: Any, **named: Any) -> Any:
        number = known.index(id(optimizer))
        # Fused optimizers unscale in their own kernel, which is too late for clipping.
        clips = session.settings.clip_norm is not None and not session.is_unscaled(number)

        def update() -> Any:
            if clips:
                unscale(optimizer)
            return step(optimizer, *args, **named)

        return session.stepped(number, update)

    def scaler_unscale(optimizer: Optimizer) -> None:
        session.unscaled(known.index(id(optimizer)), lambda: unscale(optimizer))

    scaler.step = scaler_step  # type: ignore[method-assign]
    scaler.unscale_ = scaler_unscale  # type: ignore[method-assign]
    gate_scaler(scaler, session.when_applied, ("update",))
