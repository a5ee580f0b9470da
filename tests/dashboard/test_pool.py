"""The dashboard of a real pool in a real browser: what happens in the pool is seen on the page."""

import json
import os
import re
import signal
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.dashboard.visit import PHONE, Visit
from tests.e2e.up_pool import UpPool

pytestmark = pytest.mark.slow

ENDLESS = 100_000  # steps
PAGES = {
    "": "Pool",
    "jobs/1": "job 1",
    "nodes": "Nodes",
    "decisions": "Decisions",
    "whatif": "What if",
}
SCRIPT_TAG = "<script>document.title = 'stolen'</script>"


def address(pool: UpPool) -> str:
    return str(json.loads((pool.state / "server.json").read_text())["url"])


def token(pool: UpPool, name: str = "token") -> str:
    return (pool.state / name).read_text().strip()


def submit(pool: UpPool, name: str, pace: Path, *, steps: int = ENDLESS, gpus: str) -> None:
    spots = ("--env", f"E2E_SPOTS={pool.spots}")
    words = ("--name", name, "--gpus", gpus, *spots, "train.py", "--steps", steps, "--pace", pace)
    pool.coddl("submit", *words)


def cancel(pool: UpPool, *names: str) -> None:
    for name in names:
        pool.coddl("cancel", name)
        pool.wait(f"the end of {name}", lambda name=name: pool.job(name)["ended_s"])  # type: ignore[misc]


def test_jobs_appear_grow_shrink_and_finish_on_the_page(
    browser: Browser, pool: UpPool, pace: Path
) -> None:
    # So slow that a job is faster with more slots, whatever else the machine does.
    pace.write_text("0.1")
    with Visit(browser, address(pool), token(pool)) as visit:
        expect(visit.region("Running jobs")).to_contain_text("no job holds a CPU slot")
        submit(pool, "first", pace, gpus="1..4")
        first = visit.row("Running jobs", "first")
        expect(first).to_contain_text("4/1..4")
        expect(first).to_contain_text("RUNNING")
        submit(pool, "second", pace, steps=20, gpus="1..2")
        expect(first).to_contain_text("2/1..4")
        expect(visit.row("Running jobs", "second")).to_contain_text("2/1..2")
        expect(visit.row("Ended jobs", "second")).to_contain_text("SUCCEEDED")
        expect(first).to_contain_text("4/1..4")
        chart = visit.region("CPU slots over time").get_by_role("img")
        expect(chart).to_have_attribute("aria-label", re.compile("2 jobs; 4 held at the end"))
        decisions = visit.region("Last decisions")
        expect(decisions.get_by_text("second submitted")).to_be_visible()

        first.get_by_role("link", name="first").click()
        expect(visit.region("Share over time")).to_contain_text("shares as a table")
        expect(visit.region("Metrics").get_by_role("figure").first).to_be_visible()
        expect(visit.region("Speed")).to_contain_text("measured over")
        expect(visit.region("Story")).to_contain_text(re.compile(r"resized from \d to 4"))
        expect(visit.region("Log")).to_contain_text("worker 0 of job")
    cancel(pool, "first")


def test_no_speed_is_invented_for_a_job_that_made_no_step(browser: Browser, pool: UpPool) -> None:
    pool.coddl("submit", "--name", "dead", "--gpus", "1..4", "train.py", "--no-such-option")
    with Visit(browser, address(pool), token(pool)) as visit:
        visit.row("Ended jobs", "dead").get_by_role("link").click()
        speed = visit.region("Speed")
        expect(speed).to_contain_text("no step has been measured")
        expect(speed.get_by_role("columnheader").first).to_have_text("CPU slots")
        expect(speed.get_by_role("row").nth(2).get_by_role("cell").nth(1)).to_have_text("?")
        expect(speed.get_by_role("img")).to_have_count(0)


def test_a_job_is_cancelled_by_a_click_after_a_question(
    browser: Browser, pool: UpPool, pace: Path
) -> None:
    submit(pool, "unwanted", pace, gpus="1")
    with Visit(browser, address(pool), token(pool)) as visit:
        visit.row("Running jobs", "unwanted").get_by_role("link").click()
        visit.page.get_by_role("button", name="Cancel").click()
        question = visit.page.get_by_role("dialog", name="Cancel job")
        expect(question).to_contain_text("unwanted")
        assert pool.job("unwanted")["state"] != "CANCELLED"
        question.get_by_role("button", name="Cancel").click()
        expect(visit.page.get_by_text("CANCELLED", exact=True)).to_be_visible()
        expect(visit.page.get_by_role("button", name="Cancel")).to_have_count(0)
    assert pool.job("unwanted")["state"] == "CANCELLED"


def test_a_job_is_resized_in_a_dialog(browser: Browser, pool: UpPool, pace: Path) -> None:
    submit(pool, "sized", pace, gpus="1..4")
    with Visit(browser, address(pool), token(pool)) as visit:
        visit.row("Running jobs", "sized").get_by_role("link").click()
        visit.page.get_by_role("button", name="Resize").click()
        dialog = visit.page.get_by_role("dialog", name="Resize sized")
        expect(dialog).to_contain_text("a number of CPU slots")
        visit.page.keyboard.type("9")  # what was there is selected
        expect(dialog.get_by_label("Least")).to_have_value("9")
        dialog.get_by_role("button", name="Resize").click()
        expect(dialog.get_by_role("alert")).to_contain_text("Least (9) must not be more than Most")
        dialog.get_by_label("Most").fill("9")
        dialog.get_by_role("button", name="Resize").click()
        expect(dialog.get_by_role("alert")).to_contain_text("at least 9 CPU slots")
        expect(dialog.get_by_role("alert")).to_contain_text("try Least 4, Most 4")
        dialog.get_by_label("Least").fill("1")
        dialog.get_by_label("Most").fill("2")
        dialog.get_by_role("button", name="Resize").click()
        expect(dialog).to_have_count(0)
    assert pool.job("sized")["gpus_max"] == 2
    cancel(pool, "sized")


def test_a_wrong_token_is_refused_with_words_of_what_to_do(browser: Browser, pool: UpPool) -> None:
    page = browser.new_page()
    page.goto(address(pool))
    page.keyboard.type("not a token")  # the field has the focus
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("the token is not accepted")
    expect(page.get_by_role("alert")).to_contain_text("paste the content")
    page.close()


def test_the_read_token_shows_everything_and_offers_nothing(
    browser: Browser, pool: UpPool, pace: Path
) -> None:
    submit(pool, "safe", pace, gpus="1")
    reader = token(pool, "read-token")
    with Visit(browser, address(pool), reader) as visit:
        expect(visit.page.get_by_text("read-only")).to_be_visible()
        visit.row("Running jobs", "safe").get_by_role("link").click()
        expect(visit.region("Story")).to_contain_text("submitted")
        for name in ("Cancel", "Suspend", "Resize"):
            expect(visit.page.get_by_role("button", name=name)).to_have_count(0)
        visit.go("nodes")
        expect(visit.region("Nodes")).to_contain_text("UP")
        expect(visit.page.get_by_role("button", name="Drain")).to_have_count(0)
    url = f"{address(pool)}/api/v1/jobs/safe:cancel"
    refused = httpx.post(url, headers={"Authorization": f"Bearer {reader}"})
    assert (refused.status_code, refused.json()["code"]) == (403, "Forbidden")
    cancel(pool, "safe")


def test_the_page_says_that_the_server_is_away_and_goes_on_when_it_is_back(
    browser: Browser, pool: UpPool, pace: Path
) -> None:
    with Visit(browser, address(pool), token(pool)) as visit:
        expect(visit.page.get_by_text("live", exact=True)).to_be_visible()
        about = json.loads((pool.state / "server.json").read_text())
        os.kill(about["pid"], signal.SIGKILL)
        expect(visit.page.get_by_text("The server does not answer")).to_be_visible()
        expect(visit.page.get_by_text("Connected again")).to_be_visible()
        pool.wait("the agent", lambda: "UP" in pool.coddl("nodes").stdout)
        submit(pool, "after", pace, gpus="1")
        expect(visit.row("Running jobs", "after")).to_contain_text("1/1")
    cancel(pool, "after")


def test_what_a_job_prints_is_only_text(browser: Browser, pool: UpPool) -> None:
    printed = f"printf '\\033[1;31m%s\\033[0m\\n' \"{SCRIPT_TAG}\""  # in red
    pool.coddl("submit", "--name", "loud", "--", "sh", "-c", printed)
    with Visit(browser, address(pool), token(pool)) as visit:
        visit.row("Ended jobs", "loud").get_by_role("link").click()
        expect(visit.region("Log").get_by_text(SCRIPT_TAG, exact=True)).to_be_visible()
        visit.page.get_by_label("Search the log").fill("STOLEN")
        expect(visit.region("Log").locator("mark")).to_have_text("stolen")
        assert "stolen" not in visit.page.title()
        visit.page.get_by_label("Search the log").fill("no such text")
        expect(visit.region("Log").get_by_text(SCRIPT_TAG)).to_have_count(0)


def test_a_replay_is_asked_for_and_answered(browser: Browser, pool: UpPool) -> None:
    with Visit(browser, address(pool), token(pool, "read-token")) as visit:
        visit.go("whatif")
        visit.page.get_by_label("Policies").fill("srtf")
        visit.page.get_by_role("button", name="Replay").click()
        answer = visit.region("Answer")
        expect(answer).to_contain_text("jobs")
        expect(answer.get_by_role("row").filter(has_text="recorded")).to_be_visible()
        expect(answer.get_by_role("row").filter(has_text="what if")).to_contain_text("srtf")
        visit.go("nodes")
        expect(visit.region("Nodes")).to_contain_text("UP")
        visit.go("whatif")  # the last question is kept with its answer
        expect(visit.region("Answer")).to_contain_text("srtf")
        expect(visit.page.get_by_label("Policies")).to_have_value("srtf")


def test_pages_are_no_wider_than_a_phone(browser: Browser, pool: UpPool) -> None:
    with Visit(browser, address(pool), token(pool), PHONE) as visit:
        for where, heading in PAGES.items():
            visit.go(where)
            expect(visit.page.get_by_role("heading", name=heading).first).to_be_attached()
            assert not visit.is_too_wide(), where
