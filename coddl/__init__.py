"""CoDDL: elastic sharing of a GPU cluster among deep-learning training jobs.

Importing it needs nothing but Python; what needs more is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from coddl.runtime.worker.prepare import is_main, log, mean, prepare, track
    from coddl.sim.api import simulate

__version__ = "0.1.0"
__all__ = ["__version__", "is_main", "log", "mean", "prepare", "simulate", "track"]

# Where each name lives, and the extra that installs what it needs.
_HOME: Final = {
    "simulate": ("coddl.sim.api", "sim"),
    "prepare": ("coddl.runtime.worker.prepare", "runtime"),
    "track": ("coddl.runtime.worker.prepare", "runtime"),
    "is_main": ("coddl.runtime.worker.prepare", "runtime"),
    "mean": ("coddl.runtime.worker.prepare", "runtime"),
    "log": ("coddl.runtime.worker.prepare", "runtime"),
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
