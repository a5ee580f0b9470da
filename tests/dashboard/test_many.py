"""The page with 1,000 jobs and 1,000 GPUs: of an invented pool, since real jobs are too heavy."""

import datetime
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, Request, expect

from tests.dashboard.invented_pool import InventedPool
from tests.dashboard.stub_server import StubServer
from tests.dashboard.visit import PHONE, Visit

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ROWS_MAX: Final = 50  # of a page of a table


def test_a_pool_of_a_thousand_jobs_and_gpus_can_be_worked_with(browser: Browser) -> None:
    pool = InventedPool(time.time(), gpus=1_000, active=1_000)
    last = max(job.id for job in pool.jobs)
    pool.jobs[-1].name = tag = "<script>alert(1)</script>"
    with StubServer(pool) as server, Visit(browser, server.url, "any") as visit:
        running = visit.region("Running jobs")
        expect(running).to_contain_text("Running (")
        expect(visit.region("GPUs over time").get_by_role("img")).to_be_visible()
        assert running.get_by_role("row").count() <= ROWS_MAX + 1
        visit.page.get_by_label("Filter Running jobs").fill(f"script {last}")
        expect(running.get_by_role("row")).to_have_count(2)
        expect(running.get_by_role("link", name=tag)).to_be_visible()
        visit.page.get_by_label("Filter Running jobs").fill("")
        running.get_by_role("button", name="GPUS").click()
        running.get_by_role("button", name="Next").click()
        expect(running).to_contain_text("2 of ")

        visit.page.get_by_role("link", name="Nodes").click()
        nodes = visit.region("Nodes")
        expect(nodes).to_contain_text("125 nodes")
        expect(nodes.get_by_role("row")).to_have_count(ROWS_MAX + 1)
        nodes.get_by_label("Filter Nodes").fill("n124")
        expect(nodes.get_by_role("row")).to_have_count(2)


def test_an_hour_of_64_gpus_is_drawn_again(browser: Browser) -> None:
    assert browser.is_connected()
    words = [sys.executable, "-m", "benchmarks.redraw", "--repeats", "2", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(done.stdout)["redraw_ms"] > 0


def test_a_range_of_time_goes_by_the_clock_of_the_pool(browser: Browser) -> None:
    ahead = InventedPool(time.time() + 1e6, gpus=8, active=4)  # as an emulated pool may be

    def is_recent(request: Request) -> bool:
        found = re.search(r"/timeline\?since_s=([0-9]+)", request.url)
        return found is not None and 890.0 < ahead.now_s - int(found[1]) < 900.0 + 1.0

    with StubServer(ahead) as server, Visit(browser, server.url, "any") as visit:
        expect(visit.page.get_by_text("live", exact=True)).to_be_visible()
        with visit.page.expect_request(is_recent):
            visit.page.get_by_role("button", name="15 min").click()


def test_a_date_is_shown_where_it_is_not_the_pools_today(browser: Browser) -> None:
    here = datetime.datetime.now().astimezone()
    noon = here.replace(hour=12, minute=0) + datetime.timedelta(days=3)
    ahead = InventedPool(noon.timestamp(), gpus=8, active=4)
    old = next(job for job in ahead.jobs if not job.is_active(ahead.now_s))
    old.submitted_s, old.runs_s = time.time(), 1.0  # today by the clock of the browser
    with StubServer(ahead) as server, Visit(browser, server.url, "any") as visit:
        made = visit.region("Last decisions").locator("time").first
        expect(made).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
        ended = visit.row("Ended jobs", old.name)
        expect(ended).to_contain_text(re.compile(rf"{here:%Y-%m-%d} \d\d:\d\d:\d\d"))


def test_a_number_of_each_epoch_has_the_step_at_which_it_changed(browser: Browser) -> None:
    pool = InventedPool(time.time(), gpus=8, active=1)
    with StubServer(pool) as server, Visit(browser, server.url, "any") as visit:
        visit.go("jobs/1")
        curves = visit.region("Metrics").get_by_role("figure")
        expect(curves.filter(has_text="loss")).to_contain_text("step 35")
        expect(curves.filter(has_text="accuracy")).to_contain_text("0.75since step 30")


def test_slots_that_are_held_and_not_at_work_are_told(browser: Browser) -> None:
    pool = InventedPool(time.time(), gpus=8, active=4)
    with StubServer(pool) as server, Visit(browser, server.url, "any") as visit:
        headline = visit.page.locator(".headline")
        expect(headline).to_contain_text("8 of 8")
        expect(headline).not_to_contain_text("at work")
        next(job for job in pool.jobs if job.gpus > 1).starting = 1
        visit.page.reload()
        expect(headline).to_contain_text("8 of 8 (7 at work)")


def test_an_address_of_no_page_is_told(browser: Browser) -> None:
    with (
        StubServer(InventedPool(time.time(), gpus=8, active=4)) as server,
        Visit(browser, server.url, "any") as visit,
    ):
        visit.go("nonsense")
        expect(visit.page.get_by_role("heading", name="There is no such page")).to_be_visible()
        visit.page.get_by_role("link", name="The pool", exact=True).click()
        expect(visit.region("Running jobs")).to_be_visible()


def test_a_session_that_is_kept_ends_in_all_tabs(browser: Browser) -> None:
    with StubServer(InventedPool(time.time(), gpus=8, active=4)) as server:
        context = browser.new_context()
        first, second = context.new_page(), context.new_page()
        first.goto(server.url)
        first.get_by_label("Token").fill("any")
        first.get_by_label("Keep me signed in").check()
        first.get_by_role("button", name="Sign in").click()
        expect(first.get_by_role("link", name="Nodes")).to_be_visible()
        second.goto(server.url)
        expect(second.get_by_role("link", name="Nodes")).to_be_visible()
        first.get_by_role("button", name="Sign out").click()
        expect(second.get_by_label("Token")).to_be_visible()
        context.close()


def test_a_phone_is_told_of_progress_and_of_what_it_can_do(browser: Browser) -> None:
    pool = InventedPool(time.time(), gpus=8, active=4)
    with (
        StubServer(pool) as server,
        Visit(browser, server.url, "any", PHONE, has_touch=True) as visit,
    ):
        running = visit.region("Running jobs")
        expect(running.get_by_role("columnheader", name="PROGRESS")).to_be_visible()
        expect(visit.page.get_by_text("Tap a band for its job.")).to_be_visible()
        expect(visit.page.get_by_text("double-click for all")).to_be_hidden()
