"""Checkpoints of one run are the start of another, at any size; broken ones are passed over."""

from pathlib import Path

import pytest

from tests.runtime.elastic import Elastic, alone, line_of

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

ARGS = ("--strict", "--epochs", "5", "--pace-s", "0.03")


@pytest.fixture(scope="module")
def undisturbed() -> str:
    return line_of(alone("net.py", *ARGS[:-2]), "hash")


def interrupted(folder: Path, workers: int) -> list[Path]:
    """Train until there are two checkpoints, then stop; gives them, the newest last."""
    with Elastic(folder, "net.py", *ARGS, workers=workers, checkpoint_every_s=0.2) as job:
        first = job.wait_kind("checkpoint")
        job.wait(lambda e: e["is"] == "checkpoint" and e["step"] > first["step"])
    return sorted((folder / "checkpoints").glob("*.ckpt"))


@pytest.mark.parametrize(("before", "after"), [(8, 1), (1, 8)])
def test_a_checkpoint_is_continued_at_another_size(
    tmp_path: Path, before: int, after: int, undisturbed: str
) -> None:
    interrupted(tmp_path, before)
    with Elastic(tmp_path, "net.py", *ARGS, workers=after) as job:
        printed = job.finish()
        origin = job.wait_kind("origin")
    assert (origin["where"], origin["skipped"]) == ("checkpoint", [])
    assert origin["step"] > 0
    assert line_of(printed, "hash") == undisturbed


def test_a_broken_checkpoint_is_passed_over_and_said_so(tmp_path: Path, undisturbed: str) -> None:
    older, newest = interrupted(tmp_path, 2)
    newest.write_bytes(newest.read_bytes()[:-1000])
    with Elastic(tmp_path, "net.py", *ARGS, workers=2) as job:
        printed = job.finish()
        origin = job.wait_kind("origin")
    assert origin["path"] == str(older)
    (said,) = origin["skipped"]
    assert newest.name in said
    assert line_of(printed, "hash") == undisturbed


def test_state_travels_between_machines_over_the_new_group(
    tmp_path: Path, undisturbed: str
) -> None:
    # Workers with odd numbers take another address of this machine for another machine.
    with Elastic(tmp_path, "net.py", *ARGS, workers=1, env={"HOSTS": "2"}) as job:
        job.wait_step(3)
        for size in (3, 2):
            job.ask("resize", workers=size)
        job.ask("suspend")
        job.ask("resume", workers=3)
        assert line_of(job.finish(), "hash") == undisturbed, job.story()
