"""The observer itself: it must see two owners of a slot, or it proves nothing."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.observer import Observer
from tests.e2e.pool import SCRIPTS, environment


@contextlib.contextmanager
def sitting(folder: Path, job: int, slots: str) -> Iterator[None]:
    """Have a process of a job sit on slots for a while."""
    about = {"CODDL_SLOT": slots, "CODDL_JOB_ID": str(job), "CODDL_ATTEMPT": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", "import spot; print('here', flush=True); input()"],
        env=environment(E2E_SPOTS=str(folder), **about),
        cwd=SCRIPTS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"here\n"
    yield
    process.kill()
    process.communicate()


@pytest.fixture
def observer(tmp_path: Path) -> Iterator[Observer]:
    observer = Observer(tmp_path / "spots")
    yield observer
    observer.close()


def test_jobs_that_take_turns_are_no_offence(observer: Observer) -> None:
    for job in (1, 2):
        with sitting(observer.folder, job, "0,1"), sitting(observer.folder, 3, "2"):
            assert {each.job for each in observer.sitters()} == {job, 3}
    assert not observer.sitters()
    observer.look()
    observer.check()


@pytest.mark.parametrize(("job", "who"), [(2, "another job"), (1, "another process of the job")])
def test_two_on_a_slot_are_seen(observer: Observer, job: int, who: str) -> None:
    with sitting(observer.folder, 1, "0,1"), sitting(observer.folder, job, "1"):
        observer.look()
    with pytest.raises(AssertionError, match="two processes on one slot"):
        observer.check()
    assert bool(observer.crowded) == (who == "another job")
