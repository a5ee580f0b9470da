"""What the documentation says is run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from coddl.core.policies.registry import POLICIES, policy_parameters
from coddl.traces.files import write_trace
from coddl.traces.make import poisson

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/simulate.md", "docs/write-a-policy.md")
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_every_snippet_of_a_page_runs(page: str, tmp_path: Path) -> None:
    trace = poisson(jobs=40, gpus=64, load=1.0)
    for name in ("jobs.csv", "jobs.csv.gz"):
        write_trace(trace, tmp_path / name)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    ran = 0
    for kind, text in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        if kind == "console":
            for line in text.splitlines():
                words = line.removeprefix("$ ").partition(" #")[0].split()
                if words[0] != "make":  # the two commands are what CI itself runs
                    run([f"{Path(sys.executable).parent}/{words[0]}", *words[1:]], tmp_path)
                    ran += 1
        elif text.startswith("# file: "):
            (tmp_path / text.splitlines()[0].removeprefix("# file: ")).write_text(text)
        else:
            run([sys.executable, "-c", text], tmp_path)
            ran += 1
    assert ran > 0


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_every_policy_and_parameter_is_documented() -> None:
    text = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")
    for name in POLICIES:
        assert f"`{name}`" in text
        for parameter in policy_parameters(name):
            assert f"| `{parameter.name}` |" in text


def test_every_option_of_simulate_is_documented() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "coddl.cli.main", "simulate", "--help"],
        capture_output=True, text=True, check=True, env={"COLUMNS": "200", "TERM": "dumb"},
    ).stdout  # fmt: skip
    text = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")
    for option in set(re.findall(r"--[a-z][a-z-]+", shown)) - {"--help", "--output"}:
        assert option in text, option


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_results_are_those_of_the_golden_clusters() -> None:
    """The page is generated; a hand that typed into it would have to get these right."""
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert "{{" not in text
    assert "| ed69ec (1,400) | 1,027.8 |" in text
