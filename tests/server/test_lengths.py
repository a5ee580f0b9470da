"""Losses and lengths of jobs, as REST shows them."""

from coddl.api import wire
from coddl.core.pool.records import (
    LossMeasured,
    RunEnded,
    RunPrepared,
    RunProgressed,
    RunStepped,
)
from coddl.core.speed.convergence import LossCurve
from tests.server.harness import LivePool, eventually

CURVE = LossCurve(0.003, 0.2, 0.4)
STEPS = [round(1.1**k) for k in range(26, 70)]


def test_a_length_that_is_predicted_is_shown_as_such(live: LivePool) -> None:
    agent = live.joined("n1", slots=1)
    live.submit(name="a", gpus="1")
    agent.expect_orders(lambda new: new.orders.leads)
    assert (live.job("a")["length"], live.job("a")["losses"]) == (None, [])
    agent.report(
        RunPrepared(1, 1, None, None, 64, workers_max=8, epoch_steps=50), RunStepped(1, 1, 1)
    )
    eventually(lambda: (live.job("a")["length"] or {}).get("source") == "unknown")
    agent.report(*(LossMeasured(1, 1, step, CURVE.loss(step)) for step in STEPS))
    progress = wire.RunProgress(progressed=RunProgressed(1, 1, STEPS[-1], 1, 0.5, 40))
    agent.say(wire.Progress(runs=(progress,)))
    job = eventually(lambda: (j := live.job("a"))["eta_s"] is not None and j)
    assert isinstance(job, dict)
    length = job["length"]
    assert (length["source"], job["steps"], job["progress"]) == ("predicted", None, None)
    assert job["eta_s"] == length["steps_left"] * 0.5
    assert 0.1 <= length["error"] < 2.0
    assert length["sentence"] == (
        f"about {length['steps_left']:,} more steps, "
        f"predicted from its loss ± {length['error']:.0%}"
    )
    assert len(job["losses"]) == 24
    assert job["losses"][0] == {"step": STEPS[0], "loss": CURVE.loss(STEPS[0])}
    assert job["losses"][-1] == {"step": STEPS[-1], "loss": CURVE.loss(STEPS[-1])}
    explained = live.api("GET", "/jobs/a/explain").json()
    assert explained["job"]["length"]["source"] == "predicted"
    kinds = {each["kind"] for each in live.api("GET", "/events?limit=1000").json()["items"]}
    assert "RunPrepared" in kinds
    assert "LossMeasured" not in kinds, "losses are no events"
    assert not any("loss of" in line["text"] for line in explained["story"])
    agent.report(RunEnded(1, 1, "succeeded", 800, 0))
    done = eventually(lambda: (j := live.job("a"))["state"] == "SUCCEEDED" and j)
    assert isinstance(done, dict)
    assert (done["length"], len(done["losses"])) == (None, 24)
