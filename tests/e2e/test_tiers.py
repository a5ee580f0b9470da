"""Programs that know nothing of us run in the pool too: restartable, opaque, with a precheck."""

import sys
from pathlib import Path

import pytest

from coddl.core.pool import records as r
from tests.e2e.pool import NODES, Pool
from tests.e2e.training import Work

pytestmark = pytest.mark.slow

COUNT = 150
WAIT = "import pathlib, time\nwhile not pathlib.Path({!r}).exists():\n    time.sleep(0.05)"


def test_programs_run_as_their_tier_says(tmp_path: Path) -> None:
    with Pool(tmp_path) as pool:
        check_that_ends_are_told(pool)
        check_that_prechecks_come_first(pool)
        check_that_a_restartable_one_makes_room_and_goes_on(pool)


def python(code: str) -> list[str]:
    """Give a command."""
    return [sys.executable, "-u", "-c", code]


def check_that_ends_are_told(pool: Pool) -> None:
    good = pool.hand_in({"command": python("print('well', 'done')"), "gpus": 2, "name": "good"})
    bad = pool.hand_in({"command": python("print('oh'); raise SystemExit(7)"), "name": "bad"})
    assert pool.wait_end(good)["exit_code"] == 0
    assert "0 stdout: well done" in pool.printed(good)
    (aimed,) = pool.told(r.Aimed, good)
    assert len(aimed.slots) == 2
    assert len({slot // 2 for slot in aimed.slots}) == 1, "it can't span nodes"
    view = pool.wait_end(bad, "FAILED")
    assert (view["exit_code"], view["failures"]) == (7, 1)
    assert view["trouble"]["because"] == "oh (it exited with code 7)"
    assert "0 stdout: oh" in pool.printed(bad)


def check_that_prechecks_come_first(pool: Pool) -> None:
    ran = pool.folder / "ran"
    run = python(f"open({str(ran)!r}, 'a').write('+')")
    unfit = pool.hand_in({"command": run, "precheck": python("raise SystemExit(3)")})
    assert pool.wait_end(unfit, "FAILED")["trouble"]["what"] == "the precheck failed"
    assert not ran.exists(), "it was never run"
    fit = pool.hand_in({"command": run, "precheck": python("print('fit')"), "gpus": 2})
    pool.wait_end(fit)
    assert ran.read_text() == "+"
    assert "fit" in pool.printed(fit)
    about = [(each.precheck, len(each.slots)) for each in pool.told(r.Aimed, fit)]
    assert about == [(True, 1), (False, 2)], "first on one device, then on all"


def check_that_a_restartable_one_makes_room_and_goes_on(pool: Pool) -> None:
    fields = {"script": "counting.py", "tier": "restartable", "python": sys.executable}
    counting = Work(pool, "counting", "--to", str(COUNT), pace_s=0.2, gpus=2, **fields)
    counting.go_on()
    go = pool.folder / "go"
    urgent = {"command": python(WAIT.format(str(go))), "gpus": 2, "priority": 5}
    others = [pool.hand_in({**urgent, "name": f"urgent-{node}"}) for node in NODES]
    is_out = lambda view: view["state"] == "PREEMPTED"  # noqa: E731
    assert pool.wait_job(counting.job, "making room", is_out)["code"] == "Priority"
    for other in others:
        pool.wait_job(other, "its turn", lambda view: view["state"] == "RUNNING")
    assert "leaves, as Priority:" in pool.printed(counting.job), "it was told why"
    go.touch()
    for other in others:
        pool.wait_end(other)
    assert counting.finish()["attempt"] == 2
    assert counting.diary() == list(range(COUNT)), "it went on where it was"
