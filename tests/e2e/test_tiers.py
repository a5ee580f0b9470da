"""Programs that know nothing of us run in the pool too: restartable, opaque, with a precheck."""

import sys
from pathlib import Path

import pytest

from coddl.core.pool import records as r
from tests.e2e.netns import why_not
from tests.e2e.pool import NODES, Pool
from tests.e2e.training import Work

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]

COUNT = 150


def python(code: str) -> list[str]:
    """Give a command."""
    return [sys.executable, "-u", "-c", code]


def test_programs_run_on_one_node_each_and_tell_how_they_ended(tmp_path: Path) -> None:
    with Pool(tmp_path) as pool:
        good = pool.hand_in({"command": python("print('well', 'done')"), "gpus": 2, "name": "good"})
        bad = pool.hand_in({"command": python("print('oh'); raise SystemExit(7)"), "name": "bad"})
        ran = tmp_path / "ran"
        run = python(f"open({str(ran)!r}, 'a').write('+')")
        unfit = pool.hand_in({"command": run, "precheck": python("raise SystemExit(3)")})
        assert pool.wait_end(good)["exit_code"] == 0
        assert "0 stdout: well done" in pool.printed(good)
        (aimed,) = pool.told(r.Aimed, good)
        assert [len(aimed.slots), len({slot // 2 for slot in aimed.slots})] == [2, 1]

        view = pool.wait_end(bad, "FAILED")
        assert (view["exit_code"], view["failures"]) == (7, 1)
        assert "oh" in pool.printed(bad)
        assert view["trouble"]["because"] == "it exited with code 7"

        view = pool.wait_end(unfit, "FAILED")
        assert view["trouble"]["what"] == "the precheck failed"
        assert not ran.exists(), "it was never run"
        check = python("print('fit')")
        fit = pool.hand_in({"command": run, "precheck": check, "gpus": 2, "name": "fit"})
        pool.wait_end(fit)
        assert ran.read_text() == "+"
        assert "fit" in pool.printed(fit)
        about = [(each.precheck, len(each.slots)) for each in pool.told(r.Aimed, fit)]
        assert about == [(True, 1), (False, 2)], "first on one device, then on all"


def test_a_restartable_program_makes_room_and_goes_on(tmp_path: Path) -> None:
    with Pool(tmp_path) as pool:
        fields = {"script": "counting.py", "tier": "restartable", "python": sys.executable}
        counting = Work(pool, "counting", "--to", str(COUNT), pace_s=0.2, gpus=2, **fields)
        counting.go_on()
        wait = f"import pathlib, time\nwhile not pathlib.Path({str(tmp_path / 'go')!r}).exists():\n"
        wait += " time.sleep(0.05)"
        urgent = {"command": python(wait), "gpus": 2, "priority": 5}
        others = [pool.hand_in({**urgent, "name": f"urgent-{node}"}) for node in NODES]
        view = pool.wait_job(counting.job, "making room", lambda view: view["state"] == "PREEMPTED")
        assert view["code"] == "Priority"
        for other in others:
            pool.wait_job(other, "its turn", lambda view: view["state"] == "RUNNING")
        assert "leaves, as Priority:" in pool.printed(counting.job), "it was told why"
        (tmp_path / "go").touch()
        for other in others:
            pool.wait_end(other)
        assert counting.finish()["attempt"] == 2
        assert counting.diary() == list(range(COUNT)), "it went on where it was"
