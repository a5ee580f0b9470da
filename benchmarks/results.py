"""Regenerates docs/results.md, docs/results/ and their pictures from real runs: `make results`.

python -m benchmarks.results [--write] DATA [NAME...]

DATA is a folder with philly/, t4_placements/ and k80_p100_v100/. With names, only those experiments
are run and shown, a quick look at how a section will read: it goes to stdout. With --write, too,
their sections, pictures and rows of the overview are replaced in the pages, and nothing else.

The template holds the pages with experiments, one after the other: `<!-- page: NAME -->` begins
one. `{{afs}}` is replaced by the sections of the experiments whose names begin with `afs-`,
`{{overview}}` by a table of all experiments. Other pages of docs/results/, on what single
benchmarks measured, are written by hand, where they are.
"""

import argparse
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from coddl.reproduce.experiment import Experiment, Finding, Inputs
from coddl.reproduce.plot import write_plot
from coddl.reproduce.registry import ALL, experiments_named

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PICTURES = DOCS / "img" / "reproduce"
TEMPLATE = ROOT / "benchmarks" / "results.template.md"
FIRST: Final = "results.md"  # the page before the first mark
PAGE: Final = re.compile(r"^<!-- page: (\S+) -->\n", re.MULTILINE)
PLACE: Final = re.compile(r"\{\{([a-z ]+)\}\}")
Found = Sequence[tuple[Experiment, Finding]]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are aligned to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def section(experiment: Experiment, finding: Finding) -> str:
    """What one experiment found."""
    figures = [[each.what, each.published or "-", each.ours] for each in finding.figures]
    parts = [
        f"## {experiment.title}",
        f"`coddl reproduce {experiment.name}` · {experiment.source}",
        table(["", "published", "ours"], figures),
        f"![{finding.plot.title}](../img/reproduce/{experiment.name}.svg)",
    ]
    if finding.details is not None:
        parts.append(table(finding.details.head, finding.details.rows))
    return "\n\n".join([*parts, f"*Differs:* {experiment.differs}", *finding.notes])


def templates() -> dict[str, str]:
    """The template of each page, by its path below docs/."""
    first, *others = PAGE.split(TEMPLATE.read_text(encoding="utf-8"))
    return {FIRST: first, **dict(zip(others[::2], others[1::2], strict=True))}


def page_of(experiment: str, pages: Mapping[str, str]) -> str:
    """The page that shows an experiment."""
    prefix = experiment.partition("-")[0]
    return next(
        page
        for page, text in pages.items()
        if any(prefix in words.split() for words in PLACE.findall(text))
    )


def filled(text: str, overview: str, sections: Mapping[str, str]) -> str:
    """A page with what was found in the place of `{{...}}`."""

    def found(match: re.Match[str]) -> str:
        prefixes = match[1].split()
        shown = [text for name, text in sections.items() if name.partition("-")[0] in prefixes]
        return overview if match[1] == "overview" else "\n\n".join(shown)

    return PLACE.sub(found, text).strip() + "\n"


def overview(found: Found, pages: Mapping[str, str]) -> str:
    """The first figure of each experiment."""
    rows = [row_of(experiment, finding, pages) for experiment, finding in found]
    return table(["experiment", "published", "ours"], rows)


def row_of(experiment: Experiment, finding: Finding, pages: Mapping[str, str]) -> list[str]:
    """The first figure of an experiment with a published value beside it."""
    figures = [each for each in finding.figures if each.published] or [*finding.figures]
    link = experiment.title.lower().replace(" ", "-")
    anchor = "".join(c for c in link if c.isalnum() or c in "-_")
    named = f"[{experiment.name}]({page_of(experiment.name, pages)}#{anchor})"
    return [f"{named}: {figures[0].what}", figures[0].published or "-", figures[0].ours]


def replaced(text: str, begins: str, ends: str, new: str) -> str:
    """A page with a part replaced: from its line that begins so up to the next that ends it."""
    pattern = rf"^{re.escape(begins)}.*?(?={ends}|\Z)"
    found, count = re.subn(pattern, lambda _: new, text, flags=re.MULTILINE | re.DOTALL)
    assert count == 1, f"{count} parts of the page begin with {begins!r}"
    return found


def write_one(experiment: Experiment, finding: Finding) -> None:
    """Replace what the pages tell of one experiment."""
    pages = templates()
    page, overall = DOCS / page_of(experiment.name, pages), DOCS / FIRST
    text = page.read_text(encoding="utf-8")
    new = section(experiment, finding) + "\n\n"
    text = replaced(text, f"## {experiment.title}\n", "^## ", new).strip() + "\n"
    page.write_text(text, encoding="utf-8")
    line = "| " + " | ".join(row_of(experiment, finding, pages)) + " |"
    text = replaced(overall.read_text(encoding="utf-8"), f"| [{experiment.name}](", "$", line)
    overall.write_text(text, encoding="utf-8")
    write_plot(PICTURES / f"{experiment.name}.svg", finding.plot)


def run(experiments: Sequence[Experiment], inputs: Inputs) -> Found:
    """Run experiments in turn, and say on stderr how long each took."""
    found = []
    for experiment in experiments:
        began_s = time.perf_counter()
        found.append((experiment, experiment.run(inputs)))
        took_s = time.perf_counter() - began_s
        print(f"{experiment.name:24} {took_s:6.1f} s", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Run everything, write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, metavar="DATA", help="folder with the measured data")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these, to stdout")
    parser.add_argument("--write", action="store_true", help="replace these in the pages")
    options = parser.parse_args()
    folder, names = options.data, options.names
    for name in ("philly", "t4_placements", "k80_p100_v100"):
        if not (folder / name).is_dir():
            sys.exit(f"error: the results cannot be made\n  because {folder} has no {name}/")
    if names and options.write:
        for experiment in experiments_named(names):
            write_one(experiment, *(finding for _, finding in run([experiment], Inputs(folder))))
        return
    found = run(experiments_named(names) if names else ALL, Inputs(folder))
    sections = {experiment.name: section(experiment, finding) for experiment, finding in found}
    if names:
        print("\n\n".join(sections.values()))
        return
    PICTURES.mkdir(parents=True, exist_ok=True)
    for experiment, finding in found:
        write_plot(PICTURES / f"{experiment.name}.svg", finding.plot)
    for old in {*PICTURES.glob("*.svg")} - {PICTURES / f"{each.name}.svg" for each in ALL}:
        old.unlink()  # of an experiment that is no more
    pages = templates()
    for page, text in pages.items():
        (DOCS / page).parent.mkdir(exist_ok=True)
        (DOCS / page).write_text(filled(text, overview(found, pages), sections), encoding="utf-8")
    print(f"docs/results.md and docs/results/ written: {len(found)} experiments")


if __name__ == "__main__":
    main()
