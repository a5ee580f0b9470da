"""CoDDL: elastic sharing of a GPU cluster among deep-learning training jobs.

Importing it needs nothing but Python; what needs more is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from coddl.api.pool_client import Client
    from coddl.runtime.worker.prepare import (
        backward,
        barrier,
        enumerate,
        epochs,
        gather,
        is_main,
        log,
        mean,
        no_sync,
        prepare,
        slice,
        state,
        steps,
        stop,
        sum,
        track,
    )
    from coddl.sim.api import simulate

__version__ = "0.1.0"
__all__ = [
    "Client",
    "__version__",
    "backward",
    "barrier",
    "enumerate",
    "epochs",
    "gather",
    "is_main",
    "log",
    "mean",
    "no_sync",
    "prepare",
    "simulate",
    "slice",
    "state",
    "steps",
    "stop",
    "sum",
    "track",
]

# Where each name lives, and the extra that installs what it needs.
_HOME: Final = {
    "Client": ("coddl.api.pool_client", "client"),
    "simulate": ("coddl.sim.api", "sim"),
    **{
        name: ("coddl.runtime.worker.prepare", "runtime")
        for name in __all__
        if name not in ("__version__", "Client", "simulate")
    },
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'coddl' has no attribute {name!r}")
    module, extra = _HOME[name]
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        hint = f"coddl.{name} needs more than the base install: pip install 'coddl[{extra}]'"
        raise ModuleNotFoundError(f"{error}; {hint}") from error
