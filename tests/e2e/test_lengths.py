"""A training without a number of epochs: its length follows from the losses that it logs."""

from pathlib import Path

import pytest

from coddl.core.pool import records as r
from tests.e2e.pool import Pool, View
from tests.e2e.training import Work

pytestmark = pytest.mark.slow

PACE_S = 0.03  # of a step: it makes some 2600
LEASE_S = 60.0  # a server may take long to start on a busy machine; the job goes on meanwhile


def is_predicted(view: View) -> bool:
    return bool(view["length"]) and view["length"]["source"] == "predicted"


def losses(pool: Pool, job: int) -> list[tuple[int, float]]:
    """Give the losses that a job shows; the journal must have them."""
    shown = [(each["step"], each["loss"]) for each in pool.job(job)["losses"]]
    assert set(shown) <= {(each.step, each.loss) for each in pool.told(r.LossMeasured, job)}
    return shown


def test_the_length_of_an_open_loop_is_predicted_and_survives_a_restart(tmp_path: Path) -> None:
    with Pool(tmp_path, nodes=("n1",), slots=1, lease_s=LEASE_S) as pool:
        work = Work(pool, "open", pace_s=PACE_S, script="converging.py", gpus="1")
        early = pool.wait_job(work.job, "a length", lambda view: view["length"] is not None)
        assert (early["steps"], early["progress"]) == (None, None)
        view = pool.wait_job(work.job, "a prediction", is_predicted)
        assert view["length"]["steps_left"] > 0
        for command in ("explain", "describe"):
            told = pool.cli(command, "open")
            assert "predicted from its loss ±" in told
            assert "had a loss of" not in told, "losses are no events"
        pool.wait("an ETA", lambda: "~" in pool.cli("ls"))

        before = losses(pool, work.job)
        pool.kill("server")
        pool.start_server()
        pool.wait("the server", pool.is_ready)
        after = losses(pool, work.job)
        assert after[0] == before[0]
        assert after[-1][0] >= before[-1][0]
        assert len(after) >= len(before)
        assert is_predicted(pool.job(work.job))
        known = len(pool.told(r.LossMeasured, work.job))
        pool.wait("more losses", lambda: len(pool.told(r.LossMeasured, work.job)) > known)

        done = work.finish()
        assert (done["length"], done["left_early"]) == (None, False)
        assert done["losses"][-1]["loss"] < done["losses"][0]["loss"]
        assert len(pool.told(r.LossMeasured, work.job)) < 100, "the journal is not flooded"
