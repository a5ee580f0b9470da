"""The page of what `import coddl` gives, from signatures and docstrings."""

import inspect
import re
from collections.abc import Callable
from typing import Any, Final

import coddl

WIDTH: Final = 80


def python_page() -> str:
    """Every function that `import coddl` gives, with its docstring."""
    parts = [
        "# Python API",
        "What `import coddl` gives. Nothing is imported before its first use: `import coddl` needs "
        "no other package. [Make your training elastic](../elastic.md) explains how the calls work "
        "together.",
    ]
    for name in coddl.__all__:
        found = getattr(coddl, name)
        if callable(found):
            called = f"coddl.{name}{_signature(found)}"
            parts.append(f"## coddl.{name}\n\n```python\n{called}\n```\n\n{_docstring(found)}")
    return "\n\n".join(parts)


def _signature(function: Callable[..., Any]) -> str:
    """Give a signature without types; one argument per line if it is long."""
    told = inspect.signature(function)
    bare = [each.replace(annotation=each.empty) for each in told.parameters.values()]
    short = str(told.replace(parameters=bare, return_annotation=told.empty)).replace("'", '"')
    if len(short) <= WIDTH:
        return short
    lines, stars = [], False
    for each in bare:
        if each.kind is each.KEYWORD_ONLY and not stars:
            lines += [] if any(kind.kind is kind.VAR_POSITIONAL for kind in bare) else ["*"]
            stars = True
        lines.append(str(each).replace("'", '"'))
    return "(\n" + "".join(f"    {line},\n" for line in lines) + ")"


def _docstring(function: Callable[..., Any]) -> str:
    """Give a docstring as Markdown: lines that explain an argument become a list."""
    return re.sub(r"^(\w+): ", r"- `\1`: ", inspect.getdoc(function) or "", flags=re.MULTILINE)
