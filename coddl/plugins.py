"""Policies and placements from users' files: the one loader of the simulator and of pools.

A plug-in runs with the rights of the process that loads it. So a path comes from the user who
starts that process, and never from a client of a pool, who only names what was loaded.
"""

import importlib.util
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Final, cast

from coddl.core.errors import UserError
from coddl.core.named import Plugged, from_plugin, is_plugin, plugin_parts
from coddl.core.placement.placement import Placement
from coddl.core.policies.policy import Policy
from coddl.core.registry import Registry, placement_from, policy_from

# What each is called with, and what it answers.
CALLS: Final = {"policy": (1, "Allocation"), "placement": (2, "Placed")}


def policy_named(spec: str) -> Policy:
    """The policy of `name:parameter=value,…` or of `path/to/file.py:name:parameter=value,…`."""
    return cast(Policy, _from_file(spec, "policy")) if is_plugin(spec) else policy_from(spec)


def placement_named(spec: str) -> Placement:
    """The placement of `name:parameter=value,…` or of a file, in the same form as a policy."""
    if is_plugin(spec):
        return cast(Placement, _from_file(spec, "placement"))
    return placement_from(spec)


def registry_of(paths: Sequence[str | Path]) -> Registry:
    """Load plug-ins; raises UserError for the first that can't be used."""
    registry = registry_of_usable(paths)
    for error in registry.unusable.values():
        raise error
    return registry


def registry_of_usable(paths: Sequence[str | Path]) -> Registry:
    """Load plug-ins; `unusable` says what is wrong with those that can't be used."""
    found: dict[str, dict[str, Plugged]] = {noun: {} for noun in CALLS}
    unusable: dict[str, UserError] = {}
    seen: dict[str, Path] = {}
    for path in (Path(each).absolute() for each in paths):
        try:
            _check_name(path, seen)
            for noun, offered in _offered_by(path).items():
                found[noun] |= {f"{path.name}:{name}": each for name, each in offered.items()}
        except UserError as error:
            unusable[path.name] = error
    return Registry(found["policy"], found["placement"], unusable)


def _check_name(path: Path, seen: dict[str, Path]) -> None:
    """Refuse a second file of the same name: its policies could not be told apart."""
    what = f'plug-in "{path}" cannot be used'
    if path.suffix != ".py":
        raise UserError(what, f'the name "{path.name}" does not end in .py', "a Python file")
    if (other := seen.setdefault(path.name, path)) != path:
        raise UserError(what, f"{other} has the same name", "another name for one of them")


def _offered_by(path: Path) -> dict[str, dict[str, Plugged]]:
    """Give the policies and placements of a file, by name."""
    what = f'plug-in "{path}" cannot be used'
    module = _module(path, what)
    own = _own(module)
    offered = {
        noun: {name: each for name, each in own.items() if _answers(each, noun)} for noun in CALLS
    }
    if not any(offered.values()):
        raise UserError(
            what,
            f"it defines no policy and no placement, only {', '.join(own) or 'nothing public'}",
            "a function or class that is called with a snapshot (a policy), or with a snapshot "
            "and an allocation (a placement)",
        )
    return offered


def _answers(each: Plugged, noun: str) -> bool:
    """Tell whether something can be called as a policy, or as a placement, is."""
    arguments, answer = CALLS[noun]
    if isinstance(each, type) and "__call__" not in dir(each):
        return False
    try:
        called = inspect.signature(each.__call__ if isinstance(each, type) else each)
        called.bind(*[None] * (arguments + isinstance(each, type)))
    except (TypeError, ValueError):
        return False
    told = called.return_annotation
    name = str(getattr(told, "__name__", told)).rpartition(".")[2]
    return told is called.empty or name == answer  # else a helper that says what it gives


def _from_file(spec: str, noun: str) -> object:
    file, name, _ = plugin_parts(spec)
    path = Path(file)
    what = f'{noun} "{spec}" cannot be used'
    module = _module(path, what)
    found = getattr(module, name, None)
    if not callable(found):
        raise UserError(
            what,
            f'{path} has no "{name}"' if name else f"it does not say which {noun} of the file",
            f"{path}:NAME with one of {', '.join(_own(module)) or 'its functions (it has none)'}",
        )
    return from_plugin(found, spec, noun)


def _module(path: Path, what: str) -> ModuleType:
    """Run the file as a module of its own."""
    if not path.is_file():
        raise UserError(what, f"there is no file {path}", "the path of a Python file")
    name = f"coddl_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up by name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        # Whatever the file does wrong while it is run, the user hears of the file and the reason.
        raise UserError(
            what, f"{path} fails: {type(error).__name__}: {error}", f"python {path}"
        ) from error
    return module


def _own(module: ModuleType) -> dict[str, Plugged]:
    """Give what the module itself offers, as against what it has imported."""
    return {
        key: value
        for key, value in vars(module).items()
        if not key.startswith("_")
        and callable(value)
        and getattr(value, "__module__", None) == module.__name__
    }
