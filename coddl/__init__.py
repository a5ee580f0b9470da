"""CoDDL: elastic sharing of a GPU cluster among deep-learning training jobs.

Importing it needs nothing but Python; what needs more is imported when it is first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coddl.sim.api import simulate

__version__ = "0.1.0"
__all__ = ["__version__", "simulate"]


def __getattr__(name: str) -> object:
    if name == "simulate":
        try:
            from coddl.sim.api import simulate
        except ModuleNotFoundError as error:
            hint = "coddl.simulate needs more than the base install: pip install 'coddl[sim]'"
            raise ModuleNotFoundError(f"{error}; {hint}") from error

        return simulate
    raise AttributeError(f"module 'coddl' has no attribute {name!r}")
