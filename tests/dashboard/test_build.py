"""What is built: small enough to load at once, and with types as the server describes itself."""

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from coddl.server.dashboard import BUILT

SOURCE: Final = Path(__file__).parents[2] / "dashboard"
FIRST_LOAD_BYTES: Final = 300_000  # compressed


def test_the_first_load_is_small() -> None:
    if not (BUILT / "index.html").is_file():
        pytest.skip("the dashboard is not built: make web")
    files = [path.read_bytes() for path in BUILT.rglob("*") if path.is_file()]
    assert sum(len(gzip.compress(each)) for each in files) < FIRST_LOAD_BYTES


def test_the_types_are_those_of_the_server(tmp_path: Path) -> None:
    generator = SOURCE / "node_modules" / ".bin" / "openapi-typescript"
    if not generator.exists() or shutil.which("node") is None:
        pytest.skip("openapi-typescript is not installed: make web")
    description, types = tmp_path / "openapi.json", tmp_path / "schema.d.ts"
    # In a process of its own: the browser's event loop may run in this one.
    told = subprocess.run(
        [sys.executable, "-m", "docs.generator.openapi"],
        cwd=SOURCE.parent,
        check=True,
        capture_output=True,
        timeout=120,
    )
    description.write_bytes(told.stdout)
    subprocess.run(
        [generator, description, "--output", types], check=True, capture_output=True, timeout=120
    )
    assert types.read_text() == (SOURCE / "src" / "schema.d.ts").read_text(), "run `make web-types`"


def test_no_dependency_names_a_registry() -> None:
    lock = json.loads((SOURCE / "package-lock.json").read_text())
    assert not [name for name, each in lock["packages"].items() if "resolved" in each]
    manifest = json.loads((SOURCE / "package.json").read_text())
    versions = manifest["dependencies"] | manifest["devDependencies"]
    assert all(version[0].isdigit() for version in versions.values()), "exact versions"
