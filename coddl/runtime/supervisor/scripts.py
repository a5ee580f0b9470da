"""What a training script's source tells before it runs."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FILES_MAX: Final = 500  # that are read for one script


def calls_prepare(script: Path) -> bool:
    """Tell whether a script uses `coddl.prepare`, itself or in a module of its folder.

    Modules are followed as far as they are imported by name. Source that can't be read or parsed
    counts as no.
    """
    files = [script]
    for path in files:  # grows meanwhile
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
        if _uses_prepare(tree):
            return True
        found = dict.fromkeys(_modules(tree, path, script.parent))
        files += [each for each in found if each not in files][: FILES_MAX - len(files)]
    return False


def _uses_prepare(tree: ast.Module) -> bool:
    aliases = set[str]()  # of the package
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                aliases |= {each.asname or "coddl" for each in names if each.name == "coddl"}
            case ast.ImportFrom(module="coddl", names=names, level=0):
                if any(each.name in ("prepare", "*") for each in names):
                    return True
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == "prepare"
        and isinstance(node.value, ast.Name)
        and node.value.id in aliases
        for node in ast.walk(tree)
    )


def _modules(tree: ast.Module, path: Path, root: Path) -> Iterator[Path]:
    """Give the files below a script's folder that a module imports."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (file for name in names for file in _files(root, name.name))
            case ast.ImportFrom(module=module, names=names, level=level):
                folder = path.parents[level - 1] if 0 < level <= len(path.parents) else root
                for name in names:
                    yield from _files(folder, f"{module}.{name.name}" if module else name.name)


def _files(folder: Path, name: str) -> Iterator[Path]:
    """Give the files of a module and of the packages that it is in, if they are in a folder."""
    # A copy of this package beside the script is not the script's.
    for part in name.split(".") if name.partition(".")[0] != "coddl" else ():
        folder = folder / part
        for file in (folder.with_suffix(".py"), folder / "__init__.py"):
            if file.is_file():
                yield file
