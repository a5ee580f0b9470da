"""Where a job's things lie: its socket, its checkpoints, its images in memory."""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from coddl.runtime.errors import TrainingError
from coddl.runtime.imagefile import NO_LOCKS

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
ABOUT: Final = "job.json"  # in a job's folder: whose checkpoints these are
LOCK: Final = "lock"
FENCE: Final = "fence"  # locked while an attempt takes the folder over, or names a checkpoint
FENCE_S: Final = 30.0  # for which another attempt may hold it: it renames a file
CHECKPOINTS: Final = "step-*.ckpt"
MEMORY: Final = Path("/dev/shm")
MEMORY_BYTES_MIN: Final = 256 << 20  # containers often have 64 MB there, too little for any model


def check_name(name: str) -> str:
    """Give the name back, or raise if it can't name a job."""
    if not NAME.fullmatch(name):
        raise TrainingError(
            f'"{name}" can\'t name a job',
            "a name is at most 64 letters, digits, dots, dashes and underscores",
            "--name train",
        )
    return name


def socket_folder(env: Mapping[str, str] = os.environ) -> Path:
    """Make the folder of control sockets; other users may not reach into it."""
    if base := env.get("XDG_RUNTIME_DIR"):
        folder = Path(base) / "coddl"
    else:
        folder = Path(tempfile.gettempdir()) / f"coddl-{os.getuid()}"
    _make_private(folder)
    return folder


def default_folder(name: str, env: Mapping[str, str] = os.environ) -> Path:
    """Tell where a job keeps its checkpoints unless told otherwise."""
    base = env.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "coddl" / name


def stash_folder(name: str, folder: Path, script: Path, *, fresh: bool) -> Path:
    """Make the folder of a job's images: in memory, where there is room for some.

    Images that a killed supervisor has left there are this job's own only if script and folder are
    the same; so both are part of its name.
    """
    whose = hashlib.blake2b(f"{script}\0{folder.resolve()}".encode(), digest_size=4).hexdigest()
    return stash_of(f"{name}-{whose}", fresh=fresh)


def stash_of(name: str, *, fresh: bool = True) -> Path:
    """Make a folder of images; `fresh`: an empty one."""
    stash = _images() / name
    if fresh:
        shutil.rmtree(stash, ignore_errors=True)
    stash.mkdir(parents=True, exist_ok=True)
    return stash


def drop_stashes(name: str) -> None:
    """Free the memory of all images under a name: their writer is gone."""
    shutil.rmtree(_images() / name, ignore_errors=True)


def _images() -> Path:
    base = Path(tempfile.gettempdir())
    with contextlib.suppress(OSError):
        if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_BYTES_MIN:
            base = MEMORY
    private = base / f"coddl-{os.getuid()}-images"
    _make_private(private)
    return private


def _make_private(folder: Path) -> None:
    """Make a folder that is ours alone, or raise: in /tmp another user could have made it."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or not folder.is_dir():
        raise TrainingError(
            f"{folder} can't be used",
            f"it belongs to user {found.st_uid} or others may enter it (mode {found.st_mode:o})",
            f"chmod 700 {folder}, or remove it",
        )


@contextlib.contextmanager
def claimed(folder: Path, script: Path, *, fresh: bool) -> Iterator[None]:
    """Make the folder this run's own, and leave it tidy; raise if it is another's."""
    lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        _lock(lock, folder)
        try:
            _claim(folder, script, fresh=fresh)
            yield
        finally:
            _tidy(folder)
    finally:
        os.close(lock)


def _lock(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise TrainingError(
            f"{folder} is in use", "another run writes its checkpoints there", "another --name"
        ) from None
    except OSError as error:
        raise _unlockable(folder, error) from None


def _unlockable(folder: Path, error: OSError) -> TrainingError:
    because = f"it can't be locked: {error.strerror}"
    if error.errno in NO_LOCKS:
        because = f"its file system can't lock files: {error.strerror}"
    return TrainingError(
        f"checkpoints can't be kept in {folder}",
        because,
        "another folder, or mount it with locks (NFS: with rpc.statd; Lustre: -o flock)",
    )


def _claim(folder: Path, script: Path, *, fresh: bool) -> None:
    found = sorted(folder.glob(CHECKPOINTS))
    if found and not fresh:
        about = _about(folder)
        if (owner := about.get("script", str(script))) != str(script):
            raise TrainingError(
                f"{folder} can't be used for {script}",
                f"it holds checkpoints of {owner}",
                "another --name, or --fresh to remove them and start over",
            )
        if about.get("finished"):
            raise TrainingError(
                f"{folder} can't be used again",
                "it holds the checkpoints that a finished run was told to keep",
                "another --checkpoint-dir, or --fresh to remove them and start over",
            )
    if fresh:
        for path in found:
            path.unlink()
    _write_about(folder, {"script": str(script), "finished": False})


def lead(folder: Path, script: Path, attempt: int) -> None:
    """Make the folder this attempt's own; raise if a newer one has it.

    Its lead may have been replaced without knowing. So the number in the folder is
    read before each write there.
    """
    with _alone(folder):
        newest = _about(folder).get("attempt")
        if isinstance(newest, int):
            check_newest(str(folder), newest, attempt)
        _write_about(folder, {"script": str(script), "finished": False, "attempt": attempt})


def check_attempt(folder: Path, attempt: int) -> None:
    """Raise unless this attempt, or an older one, keeps its checkpoints in the folder."""
    newest = _about(folder).get("attempt")
    if not isinstance(newest, int):
        raise TrainingError(
            f"attempt {attempt} cannot write checkpoints to {folder}",
            f"{ABOUT}, which names the current attempt, is missing or names none",
            "nothing: the job has ended, or its next attempt creates the folder again",
        )
    check_newest(str(folder), newest, attempt)


@contextlib.contextmanager
def fenced(folder: Path, attempt: int) -> Iterator[None]:
    """Keep newer attempts from the folder meanwhile; raise if one has it."""
    with _alone(folder):
        check_attempt(folder, attempt)
        yield


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep the other attempts of a job from its folder, on whatever nodes they are."""
    until_s = time.monotonic() + FENCE_S
    try:
        lock = os.open(folder / FENCE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unlockable(folder, error) from None
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                is_held = isinstance(error, BlockingIOError)
                if not is_held or time.monotonic() > until_s:
                    raise _unlockable(folder, error) from None
            time.sleep(0.02)
        yield
    finally:
        os.close(lock)


def check_newest(where: str, newest: int, attempt: int) -> None:
    """Raise if a newer attempt has taken a place over."""
    if newest > attempt:
        raise TrainingError(
            f"attempt {attempt} cannot write checkpoints to {where}",
            f"attempt {newest} has replaced it",
            "nothing: the newer attempt continues",
        )


def finish(folder: Path, script: Path, *, keep: bool) -> None:
    """Remove the checkpoints of a finished job, or mark them as kept."""
    if keep:
        _write_about(folder, {"script": str(script), "finished": True})
    else:
        for path in folder.glob(CHECKPOINTS):
            path.unlink(missing_ok=True)


def _tidy(folder: Path) -> None:
    """Remove a folder in which a job has kept nothing."""
    if not list(folder.glob(CHECKPOINTS)):
        with contextlib.suppress(OSError):  # the user's own folder, with other things in it
            (folder / ABOUT).unlink(missing_ok=True)
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()


def _about(folder: Path) -> dict[str, object]:
    """Read whose checkpoints these are; raises if that can't be known."""
    path = folder / ABOUT
    try:
        about = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _unknown(path, f"{error.strerror}") from None
    except ValueError as error:
        raise _unknown(path, f"{error}") from None
    if not isinstance(about, dict):
        raise _unknown(path, "it holds no fields")
    return about


def _unknown(path: Path, because: str) -> TrainingError:
    return TrainingError(
        f"{path} can't be read, so the owner of these checkpoints is unknown",
        because,
        f"rm {path}, if nothing else runs there",
    )


def _write_about(folder: Path, about: dict[str, object]) -> None:
    temporary = folder / f".{ABOUT}.{secrets.token_hex(4)}.tmp"  # no reader may see half of it
    try:
        with temporary.open("w") as file:
            file.write(json.dumps(about) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / ABOUT)
        sync(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise TrainingError(
            f"{folder} can't be written", f"{error.strerror}", "another --checkpoint-dir"
        ) from error  # a run that the system refuses a file may be tried again


def sync(folder: Path) -> None:
    """Bring the names in a folder to disk."""
    folder_fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(folder_fd)
    finally:
        os.close(folder_fd)
