"""Checkpoints at a URI: whole or not used, of the newest attempt, on whichever node is asked."""

from pathlib import Path

import pytest

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor.remote_checkpoints import RemoteCheckpoints
from coddl.testing.remote_files import FakeRemoteFiles
from tests.runtime.test_checkpoint_store import image_at


@pytest.fixture
def files() -> FakeRemoteFiles:
    return FakeRemoteFiles()


def node(files: FakeRemoteFiles, folder: Path, attempt: int = 1) -> RemoteCheckpoints:
    """Open the checkpoints on a node with a folder of its own."""
    return RemoteCheckpoints(files, folder, attempt)


def saved(files: FakeRemoteFiles, folder: Path, *steps: int, attempt: int = 1) -> None:
    folder.mkdir(exist_ok=True)
    for step in steps:
        done = node(files, folder, attempt).save(image_at(folder / "slot-0.img", step))
        assert done is not None
        assert (done.path, done.step) == (f"fake://jobs/step-{step:09}.ckpt", step)


def test_what_one_node_saves_another_finds_in_a_folder_of_its_own(
    files: FakeRemoteFiles, tmp_path: Path
) -> None:
    assert node(files, tmp_path / "a").newest() is None
    assert node(files, tmp_path / "a").newest_step() == -1
    saved(files, tmp_path / "a", 5, 7)
    found = node(files, tmp_path / "b", 2).newest()
    assert found is not None
    assert (found.path, found.step) == (tmp_path / "b" / "step-000000007.ckpt", 7)
    assert found.path.read_bytes() == files.files["step-000000007.ckpt"]
    assert node(files, tmp_path / "b").newest_step() == 7


def test_a_host_brings_the_checkpoint_that_a_lead_has_found_elsewhere(
    files: FakeRemoteFiles, tmp_path: Path
) -> None:
    saved(files, tmp_path / "a", 7)
    found = node(files, tmp_path / "lead").newest()
    assert found is not None
    assert node(files, tmp_path / "lead").local(found.path) == found.path
    here = node(files, tmp_path / "host").local(found.path)
    assert here == tmp_path / "host" / found.path.name
    assert here.read_bytes() == found.path.read_bytes()


def test_only_the_newest_two_are_kept_and_no_copy_stays(
    files: FakeRemoteFiles, tmp_path: Path
) -> None:
    saved(files, tmp_path / "a", 1, 2)
    assert node(files, tmp_path / "a").newest() is not None
    saved(files, tmp_path / "a", 3)
    assert files.names() == ["step-000000002.ckpt", "step-000000003.ckpt"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["slot-0.img"]


def test_a_damaged_one_is_passed_over_and_removed_with_the_next_save(
    files: FakeRemoteFiles, tmp_path: Path
) -> None:
    saved(files, tmp_path / "a", 1, 2)
    files.files["step-000000002.ckpt"] = files.files["step-000000002.ckpt"][:-100]
    kept = node(files, tmp_path / "b", 2)
    found = kept.newest()
    assert found is not None
    assert found.step == 1
    assert "step-000000002.ckpt is cut short" in found.skipped[0]
    assert kept.save(image_at(tmp_path / "slot-0.img", 3)) is not None
    assert files.names() == ["step-000000001.ckpt", "step-000000003.ckpt"]


def test_without_a_whole_one_the_job_does_not_start_over_silently(
    files: FakeRemoteFiles, tmp_path: Path
) -> None:
    files.files["step-000000002.ckpt"] = b"not an image"
    with pytest.raises(TrainingError, match="no checkpoint in fake://jobs can be read"):
        node(files, tmp_path / "b").newest()


def test_an_attempt_that_was_replaced_can_not_write(files: FakeRemoteFiles, tmp_path: Path) -> None:
    node(files, tmp_path / "a", 1).lead()
    saved(files, tmp_path / "a", 1)
    node(files, tmp_path / "b", 2).lead()
    before = files.names()
    with pytest.raises(TrainingError, match="attempt 1 cannot write"):
        node(files, tmp_path / "a", 1).save(image_at(tmp_path / "slot-0.img", 9))
    with pytest.raises(TrainingError, match="attempt 1 cannot write"):
        node(files, tmp_path / "a", 1).lead()
    assert files.names() == before
    saved(files, tmp_path / "b", 2, attempt=2)
    node(files, tmp_path / "b", 2).lead()  # again does no harm
    assert [name for name in files.names() if name.startswith("attempt")] == ["attempt-000002"]


def test_an_attempt_that_is_replaced_while_it_writes_removes_nothing_of_the_newer(
    files: FakeRemoteFiles, tmp_path: Path
) -> None:
    class Late(FakeRemoteFiles):
        """Another attempt takes over while a checkpoint is written."""

        def write(self, name: str, pieces: object) -> None:
            super().write(name, pieces)  # type: ignore[arg-type]
            self.files |= {"attempt-000002": b"", "step-000000004.ckpt": b"", "step-3": b""}

    late = Late(files=files.files)
    saved(files, tmp_path / "a", 1, 2)
    with pytest.raises(TrainingError, match="attempt 2 has replaced it"):
        node(late, tmp_path / "a", 1).save(image_at(tmp_path / "slot-0.img", 3))
    assert {"step-000000001.ckpt", "step-000000002.ckpt"} <= set(late.names())


def test_what_can_not_be_reached_may_be_tried_again(files: FakeRemoteFiles, tmp_path: Path) -> None:
    files.is_away = True
    kept, image = node(files, tmp_path / "a"), image_at(tmp_path / "slot-0.img", 3)
    for asked in (kept.lead, kept.newest, kept.newest_step, lambda: kept.save(image)):
        with pytest.raises(TrainingError, match="checkpoints can't be kept at") as refused:
            asked()
        assert isinstance(refused.value.__cause__, OSError)


def test_an_image_that_is_gone_is_not_saved(files: FakeRemoteFiles, tmp_path: Path) -> None:
    assert node(files, tmp_path / "a").save(tmp_path / "gone.img") is None
    assert files.names() == []
