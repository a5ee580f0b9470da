"""Each extra of the package works alone: its entry modules need nothing that others install."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

PROJECT: Final = tomllib.loads(Path("pyproject.toml").read_text())["project"]
EXTRAS: Final[dict[str, list[str]]] = PROJECT["optional-dependencies"]
# What is imported first by the commands and functions that an extra is installed for.
ENTRIES: Final = {
    "sim": (
        "coddl.cli.main",
        "coddl.sim.api",
        "coddl.sim.report",
        "coddl.cli.table",
        "coddl.cli.estimateview",
    ),
    "runtime": ("coddl", "coddl.runtime.worker.prepare"),
    "client": ("coddl.cli.main", "coddl.api.client", "coddl.api.pool_client", "coddl.cli.poolview"),
    "top": ("coddl.cli.main", "coddl.cli.top.app"),
    "server": ("coddl.cli.main", "coddl.server.main"),
    "agent": ("coddl.cli.main", "coddl.agent.main", "coddl.agent.options"),
    "ray": ("coddl.engines.ray",),
    "s3": ("coddl.agent.object_store", "s3fs"),
    "testing": ("coddl.testing",),
}
MODULES: Final = {  # of distributions that are imported under another name
    "nvidia-ml-py": "pynvml",
    "pyyaml": "yaml",
}
IMPORT: Final = """
import importlib, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
for name in sys.argv[2:]:
    importlib.import_module(name)
"""


def modules_of(extra: str) -> set[str]:
    """The modules that an extra installs, with those of the extras that it includes."""
    found: set[str] = set()
    for requirement in EXTRAS[extra]:
        name = re.split(r"[\[<>=]", requirement)[0]
        if name == "coddl":
            included = re.findall(r"\[(.*)\]", requirement)[0].split(",")
            found |= set.union(*map(modules_of, included))
        else:
            found.add(MODULES.get(name, name.replace("-", "_")))
    return found


def test_every_extra_has_entries() -> None:
    assert set(ENTRIES) == set(EXTRAS) - {"all", "dev", "docs"}


@pytest.mark.parametrize("extra", ENTRIES)
def test_an_extra_works_alone(extra: str) -> None:
    own = modules_of(extra)
    if "torch" in own:
        own.add("numpy")  # which it uses where it finds it
    missing = set.union(*map(modules_of, ENTRIES)) - own
    command = [sys.executable, "-c", IMPORT, ",".join(sorted(missing)), *ENTRIES[extra]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
