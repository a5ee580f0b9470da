"""Where the real traces and golden results are, if they are at hand."""

from pathlib import Path

import pytest

PHILLY = Path(__file__).parents[2] / "shared" / "data" / "philly"
needs_philly = pytest.mark.skipif(
    not (PHILLY / "jobs.csv.gz").is_file(), reason="the Philly trace is not in ../shared/data"
)
