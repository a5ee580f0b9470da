"""Where the real traces and golden results are, if they are at hand."""

from pathlib import Path

import pytest

PHILLY = Path(__file__).parents[2] / "shared" / "data" / "philly"
needs_philly = pytest.mark.skipif(
    not (PHILLY / "jobs.csv.gz").is_file(), reason="the Philly trace is not in ../shared/data"
)
T4_PLACEMENTS = PHILLY.parent / "t4_placements"
needs_t4 = pytest.mark.skipif(
    not T4_PLACEMENTS.is_dir(), reason="t4_placements is not in ../shared/data"
)
PAIRS = PHILLY.parent / "k80_p100_v100" / "throughputs.json.gz"
needs_pairs = pytest.mark.skipif(
    not PAIRS.is_file(), reason="k80_p100_v100 is not in ../shared/data"
)
