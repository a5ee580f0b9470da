"""The profile of a job's training, as REST shows it."""

from coddl.core.pool.records import RunPrepared, RunProfiled
from coddl.core.speed.inspection import ExchangeTime, LinkSpeed
from coddl.core.speed.profile import TrainingProfile
from coddl.server.views import estimate_input
from tests.core.pool.profiles import PROFILE
from tests.core.pool.story import Story
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


def test_what_estimates_start_from_is_shown(live: LivePool) -> None:
    agent = live.joined("n1", slots=1)
    live.submit(name="a", gpus="1")
    agent.expect_orders(lambda new: new.orders.leads)
    assert live.api("GET", "/jobs/a/estimate").status_code == 404
    agent.report(RunPrepared(1, 1, None, None, 64, training="abc"), RunProfiled(1, 1, PROFILE))
    eventually(lambda: live.api("GET", "/jobs/a/estimate").status_code == 200)
    told = live.api("GET", "/jobs/a/estimate").json()
    assert TrainingProfile.from_data(told.pop("profile")) == PROFILE
    assert told == {"links": {}, "node_gpus": 1, "measured": [], "remembered": []}


def test_links_say_how_many_workers_they_were_inspected_with() -> None:
    tried = tuple(ExchangeTime(workers, 1024, 1e-3) for workers in (2, 3))
    story = Story(2, links={"node": LinkSpeed(1.25, 30.0, 5.0, "gloo", tried)})
    job = story.submit(1, 2)
    told = estimate_input(story.pool, story.job(job), PROFILE)
    assert told.links["node"].model_dump() == {
        "gb_s": 1.25,
        "latency_us": 30.0,
        "call_us": 5.0,
        "backend": "gloo",
        "workers": [2, 3],
        "factors": [],
    }
    assert told.node_gpus == 2
