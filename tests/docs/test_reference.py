"""The pages of the reference say what the code says."""

import pytest

pytest.importorskip("torch")  # signatures of what scripts call

from docs.generator.__main__ import PAGES, pages
from docs.generator.environment import INTERNAL, VARIABLES, variables_in_code

GENERATED = pages()


@pytest.mark.parametrize("name", GENERATED)
def test_a_page_is_up_to_date(name: str) -> None:
    assert (PAGES / name).read_text(encoding="utf-8") == GENERATED[name], "run `make docs`"


def test_no_page_is_left_over() -> None:
    assert {path.name for path in PAGES.iterdir()} == set(GENERATED)


def test_every_variable_is_described_or_internal() -> None:
    assert variables_in_code() == set(VARIABLES) | INTERNAL


def test_every_command_and_option_is_on_the_page() -> None:
    """A check of the generator itself, with a command below another and an option without value."""
    text = GENERATED["cli.md"]
    for line in (
        "### coddl trace make",
        "| `--follow`, `-f` |",
        "| <code>--gpus N&#124;MIN..MAX</code> |",
    ):
        assert line in text


def test_shapes_are_explained_by_the_comments_beside_their_fields() -> None:
    assert "| `progress` | number or null | yes | 0..1 |" in GENERATED["rest.md"]


def test_an_error_has_the_status_that_the_server_answers_with() -> None:
    text = GENERATED["errors.md"]
    assert "| `NotFound` | 102 | 404 |" in text
    assert "| `PoolTaken` | 2 | - |" in text  # the server does not start
