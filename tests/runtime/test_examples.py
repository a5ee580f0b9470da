"""The examples learn: run by plain python, and pushed around by a supervisor."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.runtime.elastic import PATIENCE_S, ROOT, Elastic, environment

pytest.importorskip("torch")

EXAMPLES = ROOT / "examples"
LINES_MAX = 80


@dataclass(frozen=True, slots=True)
class Example:
    """A script, how long to run it, and what its last words must say."""

    script: str
    epochs: int
    last_words: str  # a pattern for the one number that counts
    at_least: float = float("-inf")
    at_most: float = float("inf")

    def check(self, printed: str) -> None:
        """Fail unless it has learned, and said each thing once."""
        lines = printed.splitlines()
        assert (found := re.match(self.last_words, lines[-1])), printed
        assert self.at_least <= float(found[1]) <= self.at_most, printed
        assert len(said := [line.partition(":")[0] for line in lines]) == len(set(said)), printed


CASES = {
    "image classifier": Example("image_classifier.py", 8, r"final accuracy ([\d.]+)%", at_least=80),
    "language model": Example("char_lm.py", 2, r"final perplexity ([\d.]+)", at_most=2.0),
    "GAN": Example("gan.py", 12, r"finally (\d+)% of the points on 8 of 8 spots", at_least=40),
}
cases = pytest.mark.parametrize("example", CASES.values(), ids=CASES.keys())


@pytest.mark.slow
@cases
def test_an_example_learns_alone_without_a_warning(example: Example, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / example.script), str(example.epochs)],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S,
        check=False,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")
    example.check(run.stdout)


@pytest.mark.slow
@cases
def test_an_example_learns_while_it_is_resized_and_suspended(
    example: Example, tmp_path: Path
) -> None:
    with Elastic(tmp_path, str(EXAMPLES / example.script), str(example.epochs)) as job:
        job.wait_step(1)
        for workers in (2, 4, 1):
            job.ask("resize", workers=workers)
        job.ask("suspend")
        job.ask("resume", workers=2)
        example.check(job.finish())
    assert job.sizes() == [1, 2, 4, 1]
    assert [event["to"] for event in job.events if event["is"] == "resumed"] == [2]


@cases
def test_an_example_is_short_enough_to_read(example: Example) -> None:
    source = (EXAMPLES / example.script).read_text(encoding="utf-8")
    assert len(source.splitlines()) <= LINES_MAX


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {e.script for e in CASES.values()}
