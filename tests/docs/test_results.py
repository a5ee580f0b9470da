"""The pages of results are what `make results` writes."""

from collections import Counter
from pathlib import Path

from benchmarks.results import PLACE, filled, page_of, templates
from coddl.reproduce.registry import ALL

DOCS = Path(__file__).parents[2] / "docs"
PAGES = templates()


def test_every_experiment_has_a_section_on_its_page() -> None:
    for experiment in ALL:
        text = (DOCS / page_of(experiment.name, PAGES)).read_text(encoding="utf-8")
        assert text.count(f"\n## {experiment.title}\n") == 1, experiment.name


def test_every_experiment_is_shown_on_one_page() -> None:
    names = Counter(name for text in PAGES.values() for found in PLACE.findall(text)
                    for name in found.split())  # fmt: skip
    assert names == Counter({"overview", *(each.name.partition("-")[0] for each in ALL)})


def test_pages_are_made_from_the_template() -> None:
    """Around what experiments found, a page says what its template says."""
    for page, template in PAGES.items():
        parts = PLACE.split(template)[::2]
        assert len(parts) > 1, f"{page} shows no experiment: write it by hand, below docs/"
        text = (DOCS / page).read_text(encoding="utf-8")
        assert text.startswith(parts[0].strip()), page
        for part in parts[1:]:
            assert part.strip() in text, page


def test_every_page_of_results_is_listed() -> None:
    listed = (DOCS / "results.md").read_text(encoding="utf-8")
    for page in (DOCS / "results").iterdir():
        assert f"](results/{page.name}) |" in listed, page.name


def test_places_are_filled_in_order_of_the_experiments() -> None:
    sections = {"a-1": "## A1", "b-1": "## B1", "c-1": "## C1", "a-2": "## A2"}
    assert filled("# T\n\n{{a c}}\n", "| all |", sections) == "# T\n\n## A1\n\n## C1\n\n## A2\n"
    assert filled("{{overview}}", "| all |", sections) == "| all |\n"


def test_results_are_those_of_the_golden_clusters() -> None:
    """Pages are generated; a hand that typed into them would have to get these right."""
    text = (DOCS / "results" / "afs.md").read_text(encoding="utf-8")
    assert "{{" not in text
    assert "| ed69ec (1,400) | 1,027.8 |" in text
