"""Policies as users name them: one of ours, or anyone's from a file."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import cast

from coddl.core.errors import UserError
from coddl.core.named import build
from coddl.core.policies.policy import Policy
from coddl.core.policies.registry import policy_from


def policy_named(spec: str) -> Policy:
    """The policy of `name:parameter=value,…` or of `path/to/file.py:name:parameter=value,…`."""
    if ".py:" not in spec and not spec.endswith(".py"):
        return policy_from(spec)
    before, _, rest = spec.partition(".py:") if ".py:" in spec else (spec[:-3], "", "")
    path, (name, _, parameters) = Path(f"{before}.py"), rest.partition(":")
    what = f'policy "{spec}" cannot be used'
    module = _module(path, what)
    offered = [key for key, value in vars(module).items() if _is_own(module, key, value)]
    if not callable(getattr(module, name, None)):
        raise UserError(
            what,
            f'{path} has no "{name}"' if name else "it does not say which policy of the file",
            f"{path}:NAME with one of {', '.join(offered) or 'its functions (it has none)'}",
        )
    found = getattr(module, name)
    if isinstance(found, type):
        found = build(found, parameters, spec)
    elif parameters:
        raise UserError(what, f"{name} is a function and takes no parameters", f"{path}:{name}")
    return cast(Policy, found)


def _module(path: Path, what: str) -> ModuleType:
    """Run the file as a module of its own."""
    if not path.is_file():
        raise UserError(what, f"there is no file {path}", "the path of a Python file")
    name = f"coddl_policy_{path.stem}"
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
    """Tell whether the module itself offers this as a policy, as against having imported it."""
    return (
        not key.startswith("_")
        and callable(value)
        and getattr(value, "__module__", None) == module.__name__
    )
