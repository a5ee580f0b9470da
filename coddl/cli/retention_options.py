"""What a pool keeps of what is over: `--keep` of `coddl up` and `coddl server`."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from coddl.cli.memory_size import read_memory
from coddl.cli.spans import read_span
from coddl.core.errors import UserError

if TYPE_CHECKING:
    from coddl.server.retention import Retention

JOBS_MIN: Final = 1_000  # policies learn from as many
AGES: Final = ("events", "logs", "metrics", "code", "nodes")
SIZES: Final = ("logs", "metrics", "code")

Keep = Annotated[
    list[str] | None,
    typer.Option(
        "--keep",
        metavar="WHAT=MOST",
        help="How much is kept of what is over: jobs=N in memory, events=AGE, logs=AGE or SIZE, "
        "metrics=AGE or SIZE, code=AGE or SIZE, nodes=AGE, as in --keep logs=14d; repeatable.",
    ),
]


def retention_of(words: Iterable[str]) -> "Retention":
    """Read `jobs=5000`, `logs=14d`, `logs=100GB`; raises UserError."""
    from coddl.server.retention import Retention

    rules = Retention()
    for word in words:
        what, _, most = word.partition("=")
        option = f"--keep {what}="
        if what == "jobs":
            rules = replace(rules, jobs=_count(word, most))
        elif what in SIZES and most.endswith("B"):
            rules = replace(rules, **_named(f"{what}_bytes", read_memory(option, most)))
        elif what in AGES:
            rules = replace(rules, **_named(f"{what}_s", read_span(option, most)))
        else:
            raise UserError(
                f"--keep {word} cannot be used",
                f'"{what}" is none of jobs, {", ".join(AGES)}',
                "--keep logs=14d",
            )
    return rules


def _named(name: str, value: float | None) -> dict[str, Any]:  # Any: an age or a size
    return {name: value}


def checked_keep(words: Iterable[str] | None) -> tuple[str, ...]:
    """Return the same words for a server; raises UserError if it would refuse them."""
    found = tuple(words or ())
    retention_of(found)
    return found


def _count(word: str, most: str) -> int:
    if not most.isdecimal() or int(most) < JOBS_MIN:
        raise UserError(
            f"--keep {word} cannot be used",
            f"policies learn from the last {JOBS_MIN:,} jobs, so as many stay in memory",
            f"--keep jobs={JOBS_MIN}",
        )
    return int(most)
