"""The profile of a job's training, as REST shows it."""

from coddl.core.pool.records import RunPrepared, RunProfiled
from coddl.core.speed.profile import TrainingProfile
from tests.core.pool.profiles import PROFILE
from tests.server.harness import LivePool, eventually


def test_a_profile_is_shown_once_it_is_measured(live: LivePool) -> None:
    agent = live.joined("n1", slots=1)
    live.submit(name="a", gpus="1")
    agent.expect_orders(lambda new: new.orders.leads)
    missing = live.api("GET", "/jobs/a/profile")
    assert (missing.status_code, missing.json()["what"]) == (404, 'job 1 "a" has no profile')
    agent.report(RunPrepared(1, 1, None, None, 64, training="abc"), RunProfiled(1, 1, PROFILE))
    eventually(lambda: live.api("GET", "/jobs/a/profile").status_code == 200)
    assert TrainingProfile.from_data(live.api("GET", "/jobs/a/profile").json()) == PROFILE
