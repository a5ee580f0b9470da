"""What is compiled once stays compiled until code changes that it depends on."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coddl.core.compiling import source_digest
from coddl.core.seeds import MODULUS, first_seed, next_seed

KERNEL = '''"""A policy."""
from coddl.core.compiling import kernel
from coddl.core.jobs import GPUS

@kernel
def rule(x):
    """Do it."""
    return x + GPUS
'''
EDITS = {
    "another docstring": ("core/rule.py", '"""Do it."""', '"""Do\n\n    it well."""', True),
    "no docstring": ("core/rule.py", '    """Do it."""\n', "", True),
    "a comment": ("core/rule.py", "return", "# why\n    return", True),
    "another rule": ("core/rule.py", "x + GPUS", "x - GPUS", False),
    "another constant of what it imports": ("core/jobs.py", "GPUS = 9", "GPUS = 8", False),
    "what no kernel imports": ("core/pool.py", "True", "False", True),
}


@pytest.mark.parametrize("edit", EDITS)
def test_only_code_that_kernels_depend_on_counts(edit: str, tmp_path: Path) -> None:
    package, (file, before, after, same) = tmp_path / "coddl", EDITS[edit]
    (package / "core").mkdir(parents=True)
    (package / "core/rule.py").write_text(KERNEL)
    (package / "core/jobs.py").write_text("GPUS = 9\n")
    (package / "core/pool.py").write_text("OPEN = True\n")
    digest, text = source_digest(package), (package / file).read_text()
    assert before in text
    (package / file).write_text(text.replace(before, after))
    assert (source_digest(package) == digest) == same


SUM = """
import numpy as np
from coddl.core.slots import summed
summed(np.arange(3), np.arange(3), 3)
print(sum(summed.stats.cache_hits.values()))
"""


def test_a_kernel_that_has_moved_is_not_compiled_again(tmp_path: Path) -> None:
    here = Path(__file__).parents[2] / "coddl"
    for part in ("__init__.py", "core"):
        copy = shutil.copytree if (here / part).is_dir() else shutil.copy
        (tmp_path / "coddl").mkdir(exist_ok=True)
        copy(here / part, tmp_path / "coddl" / part)
    path = tmp_path / "coddl/core/slots.py"

    def hits() -> int:
        environment = {"PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        command = [sys.executable, "-c", SUM]
        return int(subprocess.check_output(command, env=os.environ | environment, cwd=tmp_path))

    assert hits() == 0
    path.write_text(path.read_text().replace('    """Sum values', '    """\n    Sum the values'))
    path.write_text(path.read_text().replace('"""', '"""\n\n', 1))
    assert hits() == 1


TOLD = """
import numpy as np
from coddl.core.compiling import tell_compiling
from coddl.core.slots import summed
told = []
tell_compiling(lambda: told.append("compiling"))
summed(np.arange(3), np.arange(3), 3)
summed(np.arange(3), np.arange(3, dtype=np.int32), 3)
print(len(told))
"""


def test_it_is_told_once_and_only_where_something_is_compiled(tmp_path: Path) -> None:
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", TOLD]
    told = [int(subprocess.check_output(command, env=environment)) for _ in range(2)]
    assert told == [1, 0]


def test_seeds_never_leave_the_range_of_the_generator() -> None:
    assert first_seed(0) == 1
    assert first_seed(10**12) < MODULUS
    assert 0 < next_seed(MODULUS - 1) < MODULUS
    assert next_seed(1) == 16807
