"""One name, one thing: no two classes of the package share a name."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2] / "coddl"


def test_every_class_has_a_name_of_its_own() -> None:
    where = defaultdict[str, list[str]](list)
    for file in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                where[node.name].append(str(file.relative_to(ROOT)))
    assert not {name: files for name, files in where.items() if len(files) > 1}
