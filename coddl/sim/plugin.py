"""Policies and placements as users name them: one of ours, or anyone's from a file."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import cast

from coddl.core.errors import UserError
from coddl.core.named import build
from coddl.core.placement.placement import Placement
from coddl.core.policies.policy import Policy
from coddl.core.registry import placement_from, policy_from


def policy_named(spec: str) -> Policy:
    """The policy of `name:parameter=value,…` or of `path/to/file.py:name:parameter=value,…`."""
    return cast(Policy, _from_file(spec, "policy")) if _is_file(spec) else policy_from(spec)


def placement_named(spec: str) -> Placement:
    """The placement of `name:parameter=value,…` or of a file, in the same form as a policy."""
    if _is_file(spec):
        return cast(Placement, _from_file(spec, "placement"))
    return placement_from(spec)


def _is_file(spec: str) -> bool:
    return ".py:" in spec or spec.endswith(".py")


def _from_file(spec: str, noun: str) -> object:
    before, _, rest = spec.partition(".py:") if ".py:" in spec else (spec[:-3], "", "")
    path, (name, _, parameters) = Path(f"{before}.py"), rest.partition(":")
    what = f'{noun} "{spec}" cannot be used'
    module = _module(path, what)
    offered = [key for key, value in vars(module).items() if _is_own(module, key, value)]
    if not callable(getattr(module, name, None)):
        raise UserError(
            what,
            f'{path} has no "{name}"' if name else f"it does not say which {noun} of the file",
            f"{path}:NAME with one of {', '.join(offered) or 'its functions (it has none)'}",
        )
    found: object = getattr(module, name)
    if isinstance(found, type):
        return build(found, parameters, spec, noun)
    if parameters:
        raise UserError(what, f"{name} is a function and takes no parameters", f"{path}:{name}")
    return found


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
    except Exception as error:
        # Whatever the file does wrong while it is run, the user hears of the file and the reason.
        raise UserError(
            what, f"{path} fails: {type(error).__name__}: {error}", f"python {path}"
        ) from error
    return module


def _is_own(module: ModuleType, key: str, value: object) -> bool:
    """Tell whether the module itself offers this, as against having imported it."""
    return (
        not key.startswith("_")
        and callable(value)
        and getattr(value, "__module__", None) == module.__name__
    )
