"""Size is design feedback: a limit that is crossed says what to do instead."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("coddl", "tests", "benchmarks", "examples")
FUNCTION_LINES, MODULE_LINES, POSITIONAL_ARGUMENTS = 60, 500, 5
VAGUE_NAMES = {"utils", "manager"}
POLICIES = {("coddl", "core", "policies"), ("coddl", "core", "parameter_server")}
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def problems(path: Path, source: str) -> Iterator[str]:
    """Say what is too big in a module, where, and what to do about it."""
    if VAGUE_NAMES & {*path.parent.parts, path.stem}:
        yield f"{path}: a name that fits anything; name it after what it holds"
    if (lines := len(source.splitlines())) > MODULE_LINES:
        yield f"{path}: {lines} lines; split it where its nouns part"
    in_policies = path.parts[:3] in POLICIES
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (*FUNCTION, ast.ClassDef)):
            continue
        where = f"{path}:{node.lineno} {node.name}"
        is_function = isinstance(node, FUNCTION)
        if (is_function or in_policies) and (lines := code_lines(node)) > FUNCTION_LINES:
            yield f"{where}: {lines} lines; lift the ifs, extract a pure helper"
        if isinstance(node, FUNCTION) and (count := positional(node)) > POSITIONAL_ARGUMENTS:
            yield f"{where}: {count} positional arguments; pass a dataclass or keywords only"


def code_lines(node: ast.stmt) -> int:
    """Count the lines a definition spans, less the docstrings in it."""
    inner = (n for n in ast.walk(node) if isinstance(n, (*FUNCTION, ast.ClassDef)))
    return span(node) - sum(span(n.body[0]) for n in inner if ast.get_docstring(n) is not None)


def span(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def positional(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the arguments a caller gives by position; a kernel may take any number of columns."""
    decorators = {ast.unparse(d).split("(")[0].split(".")[-1] for d in function.decorator_list}
    if {"kernel", "part"} & decorators:
        return 0
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def test_code_is_tidy() -> None:
    paths = (p for package in PACKAGES for p in sorted((ROOT / package).rglob("*.py")))
    found = [line for p in paths for line in problems(p.relative_to(ROOT), p.read_text("utf-8"))]
    assert not found, "\n" + "\n".join(found)


LONG = "def f():\n" + "    pass\n" * 60
LONG_CLASS = LONG.replace("def f()", "class F")
CASES = {
    "a long function": ("coddl/a.py", LONG, "coddl/a.py:1 f: 61 lines; lift"),
    "a docstring is free": ("coddl/a.py", LONG.replace("pass", '"""Doc."""', 1), ""),
    "a long policy class": ("coddl/core/policies/a.py", LONG_CLASS, "F: 61"),
    "a long class elsewhere": ("coddl/sim/a.py", LONG_CLASS, ""),
    "a long module": ("coddl/a.py", "\n" * 501, "coddl/a.py: 501 lines; split"),
    "many arguments": ("coddl/a.py", "def f(a, b, c, d, e, f): ...", "f: 6 positional"),
    "five and self": ("coddl/a.py", "def f(self, a, b, c, d, e, *, f=1): ...", ""),
    "a kernel's columns": ("coddl/a.py", "@kernel(cache=True)\ndef f(a, b, c, d, e, f): ...", ""),
    "a vague name": ("coddl/sim/utils.py", "", "name it after what it holds"),
}


@pytest.mark.parametrize(("path", "source", "want"), CASES.values(), ids=CASES.keys())
def test_a_limit_crossed_says_what_to_do(path: str, source: str, want: str) -> None:
    found = "\n".join(problems(Path(path), source))
    assert want in found
    assert bool(found) == bool(want)
