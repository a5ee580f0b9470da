"""Real training that an agent hosts: what it does with slices that do not fit in memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coddl.runtime.supervisor.job_status import RETIRED
from coddl.runtime.supervisor.memory_fit import RememberedLimit
from tests.runtime.elastic import ROOT, SCRIPTS
from tests.runtime.nodes import Pool, environment_in

pytest.importorskip("torch")
pytestmark = pytest.mark.slow


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    environment = environment_in(tmp_path, str(ROOT), OMP_NUM_THREADS="1")
    pool = Pool(environment, (str(SCRIPTS / "leaving.py"), "memory"), nodes=1)
    yield pool
    pool.close()


def test_slices_that_one_job_ran_out_with_are_not_tried_by_the_next(
    pool: Pool, tmp_path: Path
) -> None:
    lead = pool.lead()
    pool.assign(lead, 1)
    tried = lead.wait("memory")
    assert (tried["workers_min"], tried["evidence"], tried["samples"]) == (2, "tried", 64)
    assert lead.end() == RETIRED
    found = RememberedLimit(lead.wait("prepared")["model"], tried["samples"], job=3)

    limited: dict[str, Any] = {"limits": (found,), "folder": tmp_path / "next"}
    lead = pool.lead(attempt=2, **limited)
    pool.assign(lead, 1)
    known = lead.wait("memory")
    assert known["because"] == "a slice of 64 samples does not fit in memory, as job 3 found"
    assert (known["workers_min"], known["evidence"]) == (2, "remembered")
    assert lead.end() == RETIRED
    assert not lead.told("started")

    lead = pool.lead(attempt=3, **limited)
    pool.assign(lead, 2)
    lead.wait_size(2)
    lead.finish()
    assert [event["evidence"] for event in lead.told("memory")] == ["remembered"]
