"""Pages name things that exist: messages, commands, options, files."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from coddl.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
COMMAND = re.compile(r"(?:^|[ /`$])coddl ([a-z]+)((?: [^`\n#|]+)?)", re.MULTILINE)
PATH = re.compile(r"`((?:coddl|tests|examples|benchmarks|docs)/[\w./-]+)`")


def strings_in_code() -> Iterator[str]:
    """Give the texts of the package, with what is put into them left out."""
    for path in (ROOT / "coddl").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Constant(str(text)):
                    yield text
                case ast.JoinedStr(parts):
                    yield "…".join(
                        str(p.value) if isinstance(p, ast.Constant) else "" for p in parts
                    )


def test_every_message_on_troubleshooting_is_one_of_the_code() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)
    quoted = {words for row in rows for words in re.findall(r"`([^`]+)`", row)}
    assert len(quoted) > 40
    known = list(strings_in_code())
    assert [words for words in quoted if not any(words in each for each in known)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_on_a_page_exists(page: Path) -> None:
    commands = vars(typer.main.get_command(app))["commands"]
    wrong = []
    for name, rest in COMMAND.findall(page.read_text(encoding="utf-8")):
        if name not in commands:
            wrong += [name] if rest.startswith(" -") else []  # else: "coddl" in a sentence
        elif name not in ("run", "submit", "trace"):  # what follows a script is the script's
            known = {option for each in commands[name].params for option in each.opts}
            known |= {option for each in commands[name].params for option in each.secondary_opts}
            used = re.findall(r"(?<= )--[a-z][a-z-]*", rest.partition(" | ")[0])
            wrong += [f"{name} {each}" for each in used if each not in known | {"--help"}]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = PATH.findall(page.read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_hop_of_the_walks_is_a_file() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    hops = re.findall(r"^\| \d+ \| ([^|]+) \|", text, re.MULTILINE)
    assert len(hops) > 25
    for hop in hops:
        first, *others = re.findall(r"`([^`]+\.py)`", hop)
        folder = (ROOT / "coddl" / first).parent
        for name in (first, *others):
            assert (ROOT / "coddl" / name).exists() or (folder / name).exists(), name
