"""Gates calls of the script's objects, such as schedulers, EMAs and scalers: once per update.

They stay the same objects, so references to them in the script stay valid.
"""

import copyreg
from collections.abc import Callable
from typing import Any, Final

from torch.amp import GradScaler

from coddl.runtime.errors import TrainingError

Gate = Callable[[Callable[[], Any]], Any]  # runs a call, keeps it for later, or drops it

# What such objects do once per update, under the names they use.
ONCE_PER_UPDATE: Final = ("step", "update", "update_parameters")
SCALER_CALLS: Final = ("step", "unscale_", "update")


def gate_scaler(scaler: GradScaler, gate: Gate, names: tuple[str, ...] = SCALER_CALLS) -> None:
    """Let a scaler act only through the gate."""
    for name in names:
        setattr(scaler, name, _gated(gate, getattr(scaler, name)))


def gate_object(thing: Any, gate: Gate) -> None:
    """Let an object's `step`, `update` and the like act only through the gate."""
    # A class of its own, not attributes: schedulers' state_dict() is all of their attributes.
    kind = type(thing)
    methods = {
        name: _gated_method(gate, getattr(kind, name))
        for name in ONCE_PER_UPDATE
        if callable(getattr(kind, name, None))
    }
    methods["__reduce_ex__"] = _reduced_as(kind)
    made = type(kind.__name__, (kind,), {**methods, "__module__": kind.__module__})
    try:
        thing.__class__ = made
    except TypeError as error:
        raise TrainingError(
            f"a {kind.__name__} can't be tracked",
            f"its step() can't be made to wait for the update: {error}",
            "a plain class, without __slots__, around it",
        ) from error


def _gated_method(gate: Gate, original: Callable[..., Any]) -> Callable[..., Any]:
    def gated(self: Any, *args: Any, **named: Any) -> Any:
        return gate(lambda: original(self, *args, **named))

    return gated


def _gated(gate: Gate, original: Callable[..., Any]) -> Callable[..., Any]:
    def gated(*args: Any, **named: Any) -> Any:
        return gate(lambda: original(*args, **named))

    return gated


def _reduced_as(kind: type) -> Callable[..., Any]:
    """Have an object pickled, and so saved by torch.save, as what its user knows it for."""

    def reduce_ex(self: Any, protocol: Any) -> Any:
        reduced = super(type(self), self).__reduce_ex__(protocol)
        if not isinstance(reduced, tuple) or type(self) not in reduced[1]:
            return reduced
        return (copyreg._reconstructor, (kind, object, None), *reduced[2:])  # type: ignore[attr-defined]

    return reduce_ex
