"""A checkpoint is all there or not at all, and a broken one never stands in the way."""

import errno
import fcntl
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coddl.runtime import imagefile
from coddl.runtime.errors import TrainingError
from coddl.runtime.imagefile import HEADER_BYTES, ImageHeader, UnreadableImage
from coddl.runtime.supervisor import checkpoint_store, jobdir
from coddl.runtime.supervisor.checkpoint_store import CHUNK_BYTES, CheckpointStore
from coddl.runtime.worker.image import Stash, opened
from tests.runtime.images import load

PAYLOAD_AT = 4096


def image_at(path: Path, step: int, payload: bytes = b"tensors " * 100) -> Path:
    """Write an image by hand, with room to spare behind it as in shared memory."""
    manifest = json.dumps({"meta": {"step": step}, "tree": [], "tensors": []}).encode()
    header = replace(ImageHeader.of(len(manifest), len(payload)), stamp=step + 1, complete=True)
    head = (header.packed() + manifest).ljust(header.payload_offset, b"\0")
    path.write_bytes(head + payload + b"spare" * 1000)
    return path


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return image_at(tmp_path / "slot-0.img", 123)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "job" / "checkpoints"


def saved(folder: Path, *steps: int, keep: int = 9) -> CheckpointStore:
    """Give the checkpoints of a job that has saved after these steps."""
    kept = CheckpointStore(folder, keep)
    for step in steps:
        assert kept.save(image_at(folder.parent / "slot-0.img", step)) is not None
    return kept


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- saving ------------------------------------------------------------------------------------


def test_a_checkpoint_is_the_image_and_a_footer(image: Path, folder: Path) -> None:
    done = CheckpointStore(folder).save(image)
    assert done is not None
    assert (Path(done.path), done.step) == (folder / "step-000000123.ckpt", 123)
    assert done.bytes_ == Path(done.path).stat().st_size == PAYLOAD_AT + 800 + 8
    assert image.read_bytes().startswith(Path(done.path).read_bytes()[:-8])
    assert done.seconds >= 0
    assert imagefile.step_of(Path(done.path)) == 123
    found = CheckpointStore(folder).newest()
    assert found is not None
    assert (found.path, found.step, found.skipped) == (Path(done.path), 123, ())


def test_a_checkpoint_of_many_chunks_is_whole(tmp_path: Path, folder: Path) -> None:
    payload = os.urandom(2 * CHUNK_BYTES + 12345)
    kept = CheckpointStore(folder)
    done = kept.save(image_at(tmp_path / "slot-0.img", 1, payload))
    assert done is not None
    assert Path(done.path).read_bytes()[PAYLOAD_AT:-8] == payload
    assert kept.newest() is not None


def test_a_worker_reads_a_checkpoint_as_it_reads_an_image(tmp_path: Path, folder: Path) -> None:
    tree = {"x": torch.arange(5000.0), "y": [1, None]}
    with closing(Stash(tmp_path)) as stash:
        done = CheckpointStore(folder).save(stash.write({"step": 7, "epoch": 2}, tree))
    assert done is not None
    for path in (Path(done.path), tmp_path / "slot-0.img"):
        meta, back = load(path)
        assert meta == {"step": 7, "epoch": 2}
        assert back["y"] == tree["y"]
        assert torch.equal(back["x"], torch.arange(5000.0))
    with opened(Path(done.path)) as (_, seen, _):
        assert torch.equal(seen["x"], torch.arange(5000.0))


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_only_the_newest_are_kept(folder: Path, keep: int) -> None:
    saved(folder, 5, 1000000000, 7, keep=9)
    saved(folder, 1000000001, keep=keep)
    steps = [1000000001, 1000000000, 7, 5][:keep]
    assert names(folder) == sorted(f"step-{step:09}.ckpt" for step in steps)


def test_the_one_just_saved_is_kept_whatever_lies_there(folder: Path) -> None:
    saved(folder, 300, 200)
    saved(folder, 110, keep=2)
    assert names(folder) == ["step-000000110.ckpt", "step-000000300.ckpt"]


def test_saving_a_step_again_replaces_it(folder: Path) -> None:
    kept = saved(folder, 5, 5)
    assert names(folder) == ["step-000000005.ckpt"]
    assert kept.newest() is not None


def test_what_a_killed_save_left_is_ignored_and_removed(folder: Path) -> None:
    kept = saved(folder, 5)
    (folder / "step-000000009.tmp").write_bytes((folder / "step-000000005.ckpt").read_bytes()[:99])
    found = kept.newest()
    assert found is not None
    assert (found.step, found.skipped) == (5, ())
    saved(folder, 6)
    assert names(folder) == ["step-000000005.ckpt", "step-000000006.ckpt"]


def torn(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(12)
        file.write(bytes(4))


GONE: dict[str, Callable[[Path], object]] = {
    "it is gone": Path.unlink,
    "it is torn": torn,
    "it is no image": lambda path: path.write_bytes(b"hello" * 1000),
    "it is empty": lambda path: os.truncate(path, 0),
    "it is cut short": lambda path: os.truncate(path, PAYLOAD_AT + 5),
}


@pytest.mark.parametrize("spoil", GONE.values(), ids=GONE.keys())
def test_an_image_that_can_not_be_read_is_not_saved(
    image: Path, folder: Path, spoil: Callable[[Path], object]
) -> None:
    kept = saved(folder, 1)
    spoil(image)
    assert kept.save(image) is None
    assert names(folder) == ["step-000000001.ckpt"]


def test_an_image_being_written_is_not_saved(image: Path, folder: Path) -> None:
    kept = saved(folder, 1)
    with image.open("r+b") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        assert kept.save(image) is None
    assert names(folder) == ["step-000000001.ckpt"]
    assert kept.save(image) is not None


@pytest.mark.parametrize("change", [{"stamp": 999}, {"complete": False}], ids=str)
def test_an_image_overwritten_meanwhile_is_not_saved(
    image: Path, tmp_path: Path, change: dict[str, int]
) -> None:
    with imagefile.held(image) as (fd, header):
        with image.open("r+b") as careless:
            careless.write(replace(header, **change).packed())  # type: ignore[arg-type]
        with pytest.raises(UnreadableImage, match="overwritten meanwhile"):
            checkpoint_store._copy(fd, header, tmp_path / "copy")


# --- finding -----------------------------------------------------------------------------------


def test_without_checkpoints_there_is_none(folder: Path) -> None:
    kept = CheckpointStore(folder)
    (folder / "notes.txt").touch()
    (folder / "step-old.ckpt").touch()
    assert kept.newest() is None


CUT = {
    "to nothing": (0, "is cut short: 0 of at least 64 bytes"),
    "in the header": (63, "is cut short: 63 of at least 64 bytes"),
    "in the manifest": (70, "is cut short: 70 of 4896 bytes"),
    "in the payload": (PAYLOAD_AT + 1, "is cut short: 4097 of 4896 bytes"),
    "before the footer": (PAYLOAD_AT + 800, "is cut short: 4896 of 4904 bytes"),
    "in the footer": (PAYLOAD_AT + 807, "is cut short: 4903 of 4904 bytes"),
    "not, but followed by more": (PAYLOAD_AT + 809, "is damaged: its checksum does not match"),
}


@pytest.mark.parametrize(("length", "want"), CUT.values(), ids=CUT.keys())
def test_a_checkpoint_cut_short_is_skipped(folder: Path, length: int, want: str) -> None:
    kept = saved(folder, 99, 100, 123)
    os.truncate(folder / "step-000000123.ckpt", length)
    found = kept.newest()
    assert found is not None
    assert (found.path.name, found.step) == ("step-000000100.ckpt", 100)
    assert found.skipped == (f"step-000000123.ckpt {want}; falling back to step 100",)


FLIPPED = {
    "magic": (0, "is no image: its first bytes are wrong"),
    "version": (8, "has format 0, and this version of coddl reads 1"),
    "complete": (12, "is incomplete: its writer did not finish"),
    "stamp": (16, "is damaged: its checksum does not match"),
    "size of the manifest": (24, "is damaged: its checksum does not match"),
    "place of the payload": (32, "has a damaged header: its sizes contradict each other"),
    "size of the payload": (42, "is cut short: 4904 of 70432 bytes"),
    "rest of the header": (63, "is damaged: its checksum does not match"),
    "manifest": (HEADER_BYTES, "is damaged: its checksum does not match"),
    "padding": (PAYLOAD_AT - 1, "is damaged: its checksum does not match"),
    "payload": (PAYLOAD_AT + 799, "is damaged: its checksum does not match"),
    "footer's magic": (PAYLOAD_AT + 800, "is damaged: its checksum does not match"),
    "footer's checksum": (PAYLOAD_AT + 807, "is damaged: its checksum does not match"),
}


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(("at", "want"), FLIPPED.values(), ids=FLIPPED.keys())
def test_a_checkpoint_with_a_flipped_bit_is_skipped(folder: Path, at: int, want: str) -> None:
    kept = saved(folder, 100, 123)
    flip(folder / "step-000000123.ckpt", at)
    found = kept.newest()
    assert found is not None
    assert found.step == 100
    assert found.skipped == (f"step-000000123.ckpt {want}; falling back to step 100",)


def test_all_broken_ones_are_named_and_pushed_out_by_the_next(folder: Path) -> None:
    kept = saved(folder, 90, 100, 110, 120, keep=4)
    for step in (110, 120):
        flip(folder / f"step-000000{step}.ckpt", PAYLOAD_AT)
    found = kept.newest()
    assert found is not None
    assert found.step == 100
    assert [why.split()[0] for why in found.skipped] == [
        "step-000000120.ckpt",
        "step-000000110.ckpt",
    ]
    assert kept.save(image_at(folder.parent / "slot-0.img", 105)) is not None
    assert names(folder) == [f"step-000000{step}.ckpt" for step in ("090", 100, 105)]


def test_if_none_can_be_read_nobody_starts_from_the_beginning_unasked(folder: Path) -> None:
    kept = saved(folder, 1, 2)
    for path in folder.iterdir():
        os.truncate(path, 10)
    with pytest.raises(TrainingError, match="can be read") as caught:
        kept.newest()
    assert "step-000000002.ckpt is cut short" in caught.value.because
    assert "step-000000001.ckpt is cut short" in caught.value.because


# --- a disk that refuses -----------------------------------------------------------------------


@contextmanager
def files_up_to(bytes_: int) -> Iterator[None]:
    """Have the system refuse longer files, as a full disk would. (Python ignores SIGXFSZ.)"""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_older_ones_and_no_rubbish(image: Path, folder: Path) -> None:
    kept = saved(folder, 1, 2)
    with files_up_to(PAYLOAD_AT), pytest.raises(TrainingError, match="File too large") as caught:
        kept.save(image)
    assert str(folder) in caught.value.what
    assert names(folder) == ["step-000000001.ckpt", "step-000000002.ckpt"]
    found = kept.newest()
    assert found is not None
    assert found.step == 2
    assert kept.save(image) is not None  # there is room again


def test_a_disk_full_from_the_start_is_found_at_the_start(folder: Path) -> None:
    with files_up_to(0), pytest.raises(TrainingError, match="File too large"):
        CheckpointStore(folder)
    assert names(folder) == []


def test_an_attempt_that_a_full_disk_keeps_from_leading_may_be_tried_again(folder: Path) -> None:
    CheckpointStore(folder)
    jobdir.lead(folder, Path("train.py"), 1)
    with files_up_to(0), pytest.raises(TrainingError, match="File too large") as caught:
        jobdir.lead(folder, Path("train.py"), 2)
    assert isinstance(caught.value.__cause__, OSError), "agents tell by that"
    jobdir.lead(folder, Path("train.py"), 2)


def test_a_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match="Not a directory") as caught:
        CheckpointStore(tmp_path / "file" / "folder")
    assert str(tmp_path / "file" / "folder") in caught.value.what


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_rights_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    with pytest.raises(TrainingError, match="Permission denied"):
        CheckpointStore(folder)


def test_a_folder_that_went_away_is_named(image: Path, folder: Path) -> None:
    kept = CheckpointStore(folder)
    folder.rmdir()
    with pytest.raises(TrainingError, match="No such file"):
        kept.save(image)


# --- attempts ----------------------------------------------------------------------------------


def lead(folder: Path, attempt: int) -> None:
    CheckpointStore(folder)
    jobdir.lead(folder, Path("train.py"), attempt)


def test_an_older_attempt_saves_nothing_once_a_newer_one_leads(image: Path, folder: Path) -> None:
    older = CheckpointStore(folder, attempt=2)
    lead(folder, 2)
    assert older.save(image) is not None
    lead(folder, 3)
    before = names(folder)
    with pytest.raises(TrainingError, match="attempt 3 has replaced it"):
        older.save(image_at(image, 124))
    assert names(folder) == before
    with pytest.raises(TrainingError, match="attempt 2 cannot write checkpoints"):
        lead(folder, 2)
    assert CheckpointStore(folder, attempt=3).save(image) is not None


def test_an_attempt_replaced_while_it_saves_leaves_nothing(
    image: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = CheckpointStore(folder, attempt=1)
    lead(folder, 1)
    copy = checkpoint_store._copy

    def slow_copy(fd: int, header: ImageHeader, to: Path) -> None:
        copy(fd, header, to)
        lead(folder, 2)

    monkeypatch.setattr(checkpoint_store, "_copy", slow_copy)
    with pytest.raises(TrainingError, match="attempt 2 has replaced it"):
        older.save(image)
    assert names(folder) == ["fence", "job.json"]


def test_an_attempt_that_was_replaced_leaves_the_newer_ones_copy_alone(
    image: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = CheckpointStore(folder, attempt=1), CheckpointStore(folder, attempt=2)
    lead(folder, 2)
    copy = checkpoint_store._copy

    def overtaking(fd: int, header: ImageHeader, to: Path) -> None:
        """Copy while the older attempt finishes its own copy of the same step."""
        copy(fd, header, to)
        monkeypatch.setattr(checkpoint_store, "_copy", copy)
        with pytest.raises(TrainingError, match="attempt 2 has replaced it"):
            older._keep_copy(fd, header, folder / "step-000000123.ckpt")

    monkeypatch.setattr(checkpoint_store, "_copy", overtaking)
    assert newer.save(image) is not None
    assert names(folder) == ["fence", "job.json", "step-000000123.ckpt"]


def no_words(about: Path) -> None:
    about.unlink()


def half_a_word(about: Path) -> None:
    about.write_text('{"script": "trai')


def no_rights(about: Path) -> None:
    about.unlink()
    about.mkdir()  # as unreadable as a file can be, to root too


@pytest.mark.parametrize("lose", [no_words, half_a_word, no_rights])
def test_nothing_is_saved_where_nobody_knows_which_attempt_may(
    lose: Callable[[Path], None], image: Path, folder: Path
) -> None:
    lead(folder, 2)
    kept = CheckpointStore(folder, attempt=2)
    assert kept.save(image) is not None
    lose(folder / "job.json")
    before = names(folder)
    with pytest.raises(TrainingError, match=r"job\.json"):
        kept.save(image_at(image, 124))
    assert names(folder) == before


def test_a_save_of_a_job_that_is_over_leaves_no_folder(image: Path, folder: Path) -> None:
    with pytest.raises(TrainingError, match="cannot write checkpoints"):
        CheckpointStore(folder, attempt=2).save(image)
    assert not folder.exists()


def test_no_attempt_takes_over_between_the_last_look_and_the_name(
    image: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead(folder, 1)
    found: list[str] = []

    def take_over(folder: Path) -> None:
        """Come when the checkpoint has its name, and is not safe yet."""
        monkeypatch.undo()
        monkeypatch.setattr(jobdir, "FENCE_S", 0.0)
        with pytest.raises(TrainingError, match="can't be locked") as caught:
            jobdir.lead(folder, Path("train.py"), 2)
        found.append(caught.value.what)

    monkeypatch.setattr(checkpoint_store, "sync", take_over)
    assert CheckpointStore(folder, attempt=1).save(image) is not None
    assert found
    jobdir.lead(folder, Path("train.py"), 2)


def test_the_attempt_is_on_disk_before_it_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    CheckpointStore(folder)
    synced: list[str] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    lead(folder, 1)
    file, names_ = synced
    assert file.startswith(".job.json.")
    assert names_ == folder.name


def no_locks(_fd: int, _how: int) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_without_locks_an_attempt_is_refused_and_checkpoints_can_be_read(
    image: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CheckpointStore(folder).save(image) is not None
    monkeypatch.setattr(fcntl, "flock", no_locks)
    found = CheckpointStore(folder).newest()
    assert found is not None
    assert found.step == 123
    with pytest.raises(TrainingError, match="can't lock files: No locks available"):
        jobdir.lead(folder, Path("train.py"), 1)
    with (
        pytest.raises(TrainingError, match="can't lock files"),
        jobdir.claimed(folder, Path("train.py"), fresh=False),
    ):
        raise AssertionError


def test_a_save_leaves_alone_what_another_process_of_its_attempt_is_saving(
    image: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = CheckpointStore(folder, attempt=2), CheckpointStore(folder, attempt=2)
    lead(folder, 2)
    (folder / "step-000000001.1.ab.tmp").touch()  # of an attempt that is over
    abandoned = folder / "step-000000002.2.ab.tmp"
    abandoned.touch()
    os.utime(abandoned, (0, 0))
    copy = checkpoint_store._copy

    def interrupted(fd: int, header: ImageHeader, to: Path) -> None:
        copy(fd, header, to)
        monkeypatch.setattr(checkpoint_store, "_copy", copy)
        assert second.save(image_at(image.with_name("slot-1.img"), 124)) is not None

    monkeypatch.setattr(checkpoint_store, "_copy", interrupted)
    assert first.save(image) is not None
    assert names(folder)[2:] == ["step-000000123.ckpt", "step-000000124.ckpt"]
