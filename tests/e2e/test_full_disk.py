"""The disk with the jobs folder is full: a job that can't be saved trains on, and says why."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Alone
from tests.e2e.pool import Pool
from tests.e2e.training import Training

pytestmark = pytest.mark.slow

STEPS = 100
SLOW_S = 0.2  # per pass: it does not end while the disk is full
LEASE_S = 60.0  # a lease that runs out meanwhile would lose steps
DISK = "8m"
BLOCK_BYTES = 4096
NO_ROOM = "No space left on device"


class Disk:
    """A small file system; `fill` leaves no room on it until `free` does."""

    def __init__(self, folder: Path) -> None:
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Write until the system refuses; again takes what others have left since."""
        with self._ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(BLOCK_BYTES)):
                pass

    def free(self) -> None:
        self._ballast.unlink()


@contextlib.contextmanager
def mounted(folder: Path) -> Iterator[Disk]:
    """Have a disk of its own at a folder."""
    folder.mkdir(parents=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    mount = subprocess.run(words, capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"no file system can be mounted here: {mount.stderr.strip()}")
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def refused(disk: Disk, training: Training) -> bool:
    """Tell whether a checkpoint was refused; one that is just made leaves its elder's room."""
    disk.fill()
    return training.view["unsaved"] is not None


def test_a_job_that_can_not_be_saved_trains_on_and_leaves_when_there_is_room(
    tmp_path: Path, alone: Alone
) -> None:
    with mounted(tmp_path / "state" / "jobs") as disk, Pool(tmp_path, lease_s=LEASE_S) as pool:
        strict = Training(pool, "strict", steps=STEPS, pace_s=SLOW_S, args="--strict", gpus="3")
        strict.go_on()
        pool.wait("a checkpoint that is refused", lambda: refused(disk, strict))
        assert strict.view["state"] == "RUNNING"
        pool.cli("suspend", "strict", code=1)
        assert strict.view["state"] == "STOPPING"
        strict.go_on()
        assert strict.view["gpus"] == 3
        for words in (["ls"], ["describe", "strict"], ["events"]):
            said = pool.cli(*words)
            assert "cannot save its state" in said, words
            assert NO_ROOM in said, words

        disk.free()
        pool.wait_job(strict.job, "rest", lambda view: view["state"] == "SUSPENDED")
        made = strict.diary()
        assert made == list(range(len(made))), "no step was lost, and none made twice"
        assert not pool.observer.sitters()
        pool.cli("resume", "strict")
        view = strict.finish()
        assert view["unsaved"] is None
        assert strict.hash == alone(STEPS)
