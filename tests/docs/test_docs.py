"""What the documentation says is run."""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from coddl.core.named import described, parameters_of
from coddl.core.registry import PLACEMENTS, POLICIES
from coddl.sim.failures import PhillyFailures
from coddl.traces.files import write_trace
from coddl.traces.generators import poisson

ROOT = Path(__file__).parents[2]
COMMAND = f"{Path(sys.executable).parent}/coddl"
BLOCK = re.compile(r"^```(python|console|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PATIENCE_S = 300.0
ELSEWHERE = ("elastic.md", "port-a-script.md")  # test_elastic.py runs what they say
PAGES = ("README.md", *(
    f"docs/{page.name}"
    for page in sorted((ROOT / "docs").glob("*.md"))
    if page.name not in ELSEWHERE and BLOCK.search(page.read_text(encoding="utf-8"))
))  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a place to work in, with what the pages take for granted, and a pool of its own."""
    trace = poisson(jobs=40, gpus=64, load=1.0)
    for name in ("jobs.csv", "jobs.csv.gz"):
        write_trace(trace, tmp_path / name)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "train.py").write_text(file_of("docs/pool.md", "train.py"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with tempfile.TemporaryDirectory(prefix="cdl") as short:  # sockets have short paths
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        yield tmp_path
        if (tmp_path / "state" / "coddl" / "pool").exists():
            run([COMMAND, "down", "--cancel-jobs"], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_snippet_of_a_page_runs(page: str, folder: Path) -> None:
    ran = 0
    for kind, text in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        if text.startswith("# file: "):
            (folder / text.splitlines()[0].removeprefix("# file: ")).write_text(text)
        elif kind == "console":
            for line in text.splitlines():
                words = line.removeprefix("$ ").partition(" #")[0].split()
                if words[:2] == ["coddl", "up"]:
                    words += ["--port", "0"]  # the usual one may be another pool's
                if words[0] != "make":  # the two commands are what CI itself runs
                    run([f"{Path(sys.executable).parent}/{words[0]}", *words[1:]], folder)
                    ran += 1
        else:
            run([sys.executable, "-c", text], folder)
            ran += 1
    assert ran > 0


def file_of(page: str, name: str) -> str:
    """Give the file that a page shows."""
    blocks = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    return str(next(text for _, text in blocks if text.startswith(f"# file: {name}\n")))


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_every_policy_and_placement_is_documented() -> None:
    policies = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in policies for name in POLICIES)
    placements = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in placements for name in PLACEMENTS)


@pytest.mark.parametrize("name", [*POLICIES, *(f"placement {name}" for name in PLACEMENTS)])
def test_every_parameter_says_what_it_means(name: str) -> None:
    found = PLACEMENTS[name[10:]] if name.startswith("placement ") else POLICIES[name]
    text = (ROOT / "docs" / "reference" / "policies.md").read_text(encoding="utf-8")
    section = text.partition(f"### {name}\n")[2].partition("\n#")[0]
    for parameter in parameters_of(found):
        assert parameter.meaning, parameter
        assert f"| `{parameter.name}` | {parameter.default} |" in section


def test_a_lease_is_that_of_a_node() -> None:
    for name, found in {**POLICIES, **PLACEMENTS}.items():
        told = described(name, found)
        words = (told.summary, told.rules, *(each.meaning for each in told.parameters))
        assert not re.search(r"(?i)\blease", " ".join(words)), name  # what jobs have are turns


def test_every_parameter_of_failures_is_documented() -> None:
    text = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")
    for parameter in parameters_of(PhillyFailures):
        assert f"| `{parameter.name}` | {parameter.default} |" in text


COMMON = {"--help", "--output", "--json", "--server", "--state-dir", "--token-file", "--tls-ca"}
OPTIONS = {
    "simulate": "simulate.md",
    "reproduce": "reproduce.md",
    "estimate": "estimate.md",
    "whatif": "whatif.md",
} | dict.fromkeys(
    ("up", "down", "server", "agent", "submit", "ls", "logs", "drain", "forget", "events", "wait"),
    "pool.md",
)


@pytest.mark.parametrize(("command", "page"), OPTIONS.items())
def test_every_option_of_a_command_is_documented(command: str, page: str) -> None:
    shown = subprocess.run(
        [COMMAND, command, "--help"],
        capture_output=True, text=True, check=True, env={"COLUMNS": "200", "TERM": "dumb"},
    ).stdout  # fmt: skip
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for option in set(re.findall(r"^│\s+(--[a-z][a-z-]+)", shown, re.MULTILINE)) - COMMON:
        assert option in text, option


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^):]+)\)", page.read_text(encoding="utf-8")):
            name, _, anchor = target.partition("#")
            there = page.parent / name if name else page
            assert there.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors_of(there), f"{page.name}: {target}"


def anchors_of(page: Path) -> set[str]:
    """Give the sections of a page as links name them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}
