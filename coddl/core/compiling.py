"""`@kernel`: compile a function with numba and keep the result between runs.

numba checks only the file of the function itself for changes, so a loop would go on calling a stale
policy after that policy's file was edited. The cache folder is therefore named after the content of
every file that holds kernels.
"""

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numpy as np
from numba.core import config

P = ParamSpec("P")
R = TypeVar("R")


def whole_number(value: int) -> int:
    """A constant to pass to kernels: for a literal, numba compiles the called kernel once more."""
    return cast(int, np.int64(value))


ZERO, ONE, TWO = (whole_number(value) for value in range(3))

_PACKAGE = Path(__file__).parent.parent


def _user_cache() -> Path:
    """The user's cache folder; without a home, as in some containers, a temporary one."""
    try:
        home = Path.home()
    except RuntimeError:
        return Path(tempfile.gettempdir())
    if sys.platform == "darwin":
        return home / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")


def cache_folder() -> Path:
    """Where compiled kernels are kept: in the user's cache, by the state of the sources."""
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted([*_PACKAGE.glob("core/**/*.py"), *_PACKAGE.glob("sim/*.py")]):
        digest.update(source.read_bytes())
    return _user_cache() / "coddl" / f"kernels-{digest.hexdigest()[:16]}"


_CACHE = str(cache_folder())


def is_compiled() -> bool:
    """Tell whether an earlier run has left the compiled simulator to start from."""
    return any(Path(_CACHE).rglob("compiled.run_compiled*.nbc"))


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` on first use; the uncompiled source stays reachable as `.py_func`.

    The lock of the interpreter is released while it runs, so runs of one process use all cores.
    """
    # numba reads the folder from its configuration at this moment only; other users keep theirs.
    before = getattr(config, "CACHE_DIR", "")
    setattr(config, "CACHE_DIR", _CACHE)  # noqa: B010 (the module's stub lacks it)
    try:
        return _compiled(function, cache=True)
    except RuntimeError:  # nowhere to write: compile anew in every run
        return _compiled(function)
    finally:
        setattr(config, "CACHE_DIR", before)  # noqa: B010


def part(function: Callable[P, R]) -> Callable[P, R]:
    """A part of kernels: compiled into those that call it, and not to be called from Python.

    What would make it callable from there takes long to compile.
    """
    return _compiled(function, no_cpython_wrapper=True)


def as_part(compiled: Callable[P, R]) -> Callable[P, R]:
    """The part that does the same as a kernel."""
    return part(cast(Any, compiled).py_func)  # Any: numba's own type


def _compiled(function: Callable[P, R], **options: bool) -> Callable[P, R]:
    njit: Any = numba.njit  # Any: its stub lacks some options
    compiled: Callable[P, R] = njit(
        nogil=True, error_model="numpy", no_cfunc_wrapper=True, **options
    )(function)
    return compiled
