"""The uncompiled twin of a kernel."""

from collections.abc import Callable
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast

from numba.core.dispatcher import Dispatcher

P = ParamSpec("P")
R = TypeVar("R")


def twin(kernel: Callable[P, R]) -> Callable[P, R]:
    """The kernel's own source, run by the interpreter all the way down: the kernels it calls are
    uncompiled too.
    """
    return cast(Callable[P, R], _uncompiled(cast(Dispatcher, kernel), {}))


def _uncompiled(kernel: Dispatcher, done: dict[Dispatcher, FunctionType]) -> FunctionType:
    if kernel not in done:
        source = kernel.py_func
        names: dict[str, Any] = dict(source.__globals__)  # Any: a module's names
        done[kernel] = FunctionType(source.__code__, names, source.__name__, source.__defaults__)
        for name in source.__code__.co_names:
            if isinstance(names.get(name), Dispatcher):
                names[name] = _uncompiled(names[name], done)
    return done[kernel]
