"""`@kernel`: compile a function with numba and keep the result between runs.

numba checks only the file of the function itself for changes, so a loop would go on calling a stale
policy after that policy's file was edited; and it compiles anew what another docstring has moved to
another line. Compiled code is therefore filed under a digest of all that kernels depend on, without
docstrings and comments.
"""

import ast
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar, cast

import numba
import numpy as np
from numba.core import caching

P = ParamSpec("P")
R = TypeVar("R")


def kernel_int(value: int) -> int:
    """A constant to pass to kernels: for a literal, numba compiles the called kernel once more."""
    return cast(int, np.int64(value))


ZERO, ONE, TWO = (kernel_int(value) for value in range(3))

_PACKAGE = Path(__file__).parent.parent
DIGITS = 16  # of a digest


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


def _cache_folder() -> Path:
    """Where compiled kernels are kept: in the user's cache, by the state of the sources.

    To parse the sources takes longer than a start may, so their digest is kept too, by content.
    """
    content, folder = hashlib.sha256(), _user_cache() / "coddl"
    for source in _sources(_PACKAGE).values():
        content.update(source.read_bytes())
    known = folder / f"sources-{content.hexdigest()[:DIGITS]}"
    try:
        digest = known.read_text()
    except OSError:
        digest = ""
    if len(digest) != DIGITS:
        digest = source_digest(_PACKAGE)
        with suppress(OSError):  # nowhere to write: parse the sources in every run
            folder.mkdir(parents=True, exist_ok=True)
            known.write_text(digest)
    return folder / f"kernels-{digest}"


def _sources(package: Path) -> dict[str, Path]:
    """The files that kernels may be in, by module name."""
    files = sorted([*package.glob("core/**/*.py"), *package.glob("sim/*.py")])
    names = (file.relative_to(package.parent).with_suffix("").parts for file in files)
    return {".".join(parts): file for parts, file in zip(names, files, strict=True)}


def source_digest(package: Path) -> str:
    """The digest of the code that kernels depend on: their modules and what those import."""
    trees = {name: ast.parse(file.read_bytes()) for name, file in _sources(package).items()}
    imports = {
        name: {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        for name, tree in trees.items()
    }
    needed = {name for name in trees if __name__ in imports[name]}
    while more := {each for name in needed for each in imports[name] if each in trees} - needed:
        needed |= more
    digest = hashlib.sha256(numba.__version__.encode())
    for name in sorted(needed):
        digest.update(ast.dump(_without_docstrings(trees[name])).encode())
    return digest.hexdigest()[:DIGITS]


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            del node.body[: ast.get_docstring(node) is not None]
    return tree


_CACHE = str(_cache_folder())


class _Locator(caching._CacheLocator):
    """Where numba keeps a kernel: ours by the digest of all sources, any other by its own file."""

    def __init__(self, function: Callable[..., object], path: str) -> None:
        self._py_file = path
        ours = Path(path).is_relative_to(_PACKAGE)
        self._stamp = "" if ours else hashlib.sha256(Path(path).read_bytes()).hexdigest()
        self._line = "" if ours else str(function.__code__.co_firstlineno)
        self._folder = str(Path(_CACHE) / function.__module__)

    @classmethod
    def from_function(cls, function: Callable[..., object], path: str) -> Self | None:
        try:
            found = cls(function, path)
            cast(Any, found).ensure_cache_path()  # Any: numba has no types
        except OSError:
            return None
        return found

    def get_cache_path(self) -> str:
        return self._folder

    def get_source_stamp(self) -> str:
        return self._stamp

    def get_disambiguator(self) -> str:
        return self._line


class _CacheImpl(caching.CompileResultCacheImpl):
    _locator_classes: list[type[object]] = [_Locator]  # noqa: RUF012 (as numba declares it)


_tells: list[Callable[[], None]] = []  # called before the next kernel is compiled


class _Cache(caching.FunctionCache):
    _impl_class = _CacheImpl

    def load_overload(self, *wanted: object) -> object:
        """Load a compiled kernel; None: no run has left it, and it is compiled next."""
        found: object = cast(Any, super()).load_overload(*wanted)  # Any: numba has no types
        while found is None and _tells:
            _tells.pop()()
        return found


def tell_compiling(tell: Callable[[], None]) -> None:
    """Call this once, before the next kernel that no earlier run has compiled."""
    _tells[:] = [tell]


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` on first use; the uncompiled source stays reachable as `.py_func`.

    The lock of the interpreter is released while it runs, so runs of one process use all cores.
    """
    compiled = _compiled(function)
    with suppress(RuntimeError):  # nowhere to write: compile anew in every run
        cast(Any, compiled)._cache = cast(Any, _Cache)(function)  # Any: numba has no types
    return compiled


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
