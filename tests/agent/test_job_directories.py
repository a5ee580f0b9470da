"""Where a job runs: code that was submitted, and archives that mean ill."""

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from coddl.agent import archives
from coddl.agent.job_directories import BadCode, ForeignFolder, JobDirectories, note_attempt
from coddl.api.code import pack
from coddl.core.pool.spec import JobSpec, Launch
from coddl.runtime.supervisor.slots import JobEnvironment


class Server:
    """Has archives, and counts how often they are asked for."""

    def __init__(self) -> None:
        self.archives: dict[str, bytes] = {}
        self.asked: list[str] = []

    def add(self, data: bytes) -> str:
        code = hashlib.sha256(data).hexdigest()
        self.archives[code] = data
        return code

    def fetch(self, code: str, to: IO[bytes]) -> None:
        self.asked.append(code)
        if code not in self.archives:
            raise OSError("not found")
        to.write(self.archives[code])


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def directories(tmp_path: Path, server: Server) -> JobDirectories:
    return homes_of("pool-1", tmp_path, server)


def homes_of(pool: str, tmp_path: Path, server: Server) -> JobDirectories:
    directories = JobDirectories(tmp_path / "jobs", tmp_path / "code", server.fetch)
    directories.pool = pool
    return directories


def packed(tmp_path: Path, **files: str) -> bytes:
    folder = tmp_path / "submitted"
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return pack(folder, tmp_path / "a.tar.gz").path.read_bytes()


def spec(code: str, folder: str = ".", uid: str = "a1") -> JobSpec:
    return JobSpec(name="job", launch=Launch(argv=("train.py",), code=code, folder=folder), uid=uid)


def test_a_job_finds_its_code_and_starts_in_its_folder(
    tmp_path: Path, directories: JobDirectories, server: Server
) -> None:
    code = server.add(packed(tmp_path, train_py="1", sub__more_py="2"))
    assert (directories.prepare(1, spec(code)) / "train.py").read_text() == "1"
    assert (directories.prepare(1, spec(code, "sub")) / "more.py").read_text() == "2"
    directories.prepare(2, spec(code))
    assert server.asked == [code]  # once for all


def test_jobs_of_one_code_have_folders_of_their_own(
    tmp_path: Path, directories: JobDirectories, server: Server
) -> None:
    code = server.add(packed(tmp_path, train_py="1"))
    first, second = directories.prepare(1, spec(code)), directories.prepare(2, spec(code))
    (first / "train.py").write_text("changed")
    assert (second / "train.py").read_text() == "1"
    assert (directories.prepare(1, spec(code)) / "train.py").read_text() == "changed"  # and stay


def test_a_job_without_code_has_a_folder(directories: JobDirectories, tmp_path: Path) -> None:
    assert directories.prepare(1, spec("")).is_dir()
    assert directories.prepare(1, spec("", str(tmp_path))) == tmp_path


def test_what_a_job_has_written_outlives_it_and_its_code_does_not(
    tmp_path: Path, directories: JobDirectories, server: Server
) -> None:
    code = server.add(packed(tmp_path, train_py="1", sub__more_py="2"))
    folder = directories.prepare(1, spec(code))
    (folder / "sub" / "model.pt").write_text("weights")
    (folder / "__pycache__").mkdir()
    directories.checkpoints(1).mkdir()
    directories.tidy(1, spec(code), 1, forget=True)
    left = [str(p.relative_to(tmp_path / "jobs")) for p in sorted((tmp_path / "jobs").rglob("*"))]
    assert left == ["1", "1/folder", "1/folder/sub", "1/folder/sub/model.pt", "1/owner.json"]
    directories.tidy(1, spec(code), 1, forget=True)  # a repeat
    assert (directories.prepare(1, spec(code)) / "train.py").exists()  # it is tried again


def test_the_end_of_an_older_attempt_removes_nothing(
    tmp_path: Path, directories: JobDirectories, server: Server
) -> None:
    code = server.add(packed(tmp_path, train_py="1"))
    folder, state = directories.prepare(1, spec(code)), directories.checkpoints(1)
    state.mkdir()
    for attempt in (1, 2):
        note_attempt(JobEnvironment(python="", cwd=folder, env={}, folder=state), attempt)
    directories.tidy(1, spec(code), 1, forget=True)
    assert (folder / "train.py").exists()
    assert state.exists()
    directories.tidy(1, spec(code), 2, forget=True)
    assert not list((tmp_path / "jobs").iterdir())


def test_a_job_that_has_written_nothing_leaves_nothing(
    tmp_path: Path, directories: JobDirectories, server: Server
) -> None:
    code = server.add(packed(tmp_path, train_py="1", sub__more_py="2"))
    directories.prepare(1, spec(code))
    directories.tidy(1, spec(code), 1, forget=False)
    assert not list((tmp_path / "jobs").iterdir())


def test_code_that_another_agent_has_unpacked_is_removed(
    tmp_path: Path, directories: JobDirectories, server: Server
) -> None:
    code = server.add(packed(tmp_path, train_py="1"))
    directories.prepare(1, spec(code))
    lead = JobDirectories(tmp_path / "jobs", tmp_path / "code of the lead", server.fetch)
    lead.pool = directories.pool
    lead.prepare(1, spec(code))
    lead.tidy(1, spec(code), 1, forget=True)
    assert not list((tmp_path / "jobs").iterdir())


def test_a_server_that_does_not_answer_keeps_no_state_of_a_job_that_is_over(
    tmp_path: Path, directories: JobDirectories, server: Server
) -> None:
    code = server.add(packed(tmp_path, train_py="1"))
    folder, state = directories.prepare(1, spec(code)), directories.checkpoints(1)
    state.mkdir()
    del server.archives[code]
    (tmp_path / "code" / code).unlink()
    directories.tidy(1, spec(code), 1, forget=True)
    assert (folder / "train.py").exists(), "nobody knows whether the job has written it"
    assert not state.exists()


def test_the_state_of_a_job_that_failed_is_kept(directories: JobDirectories) -> None:
    directories.prepare(1, spec(""))
    directories.checkpoints(1).mkdir()
    directories.tidy(1, spec(""), 1, forget=False)
    assert directories.checkpoints(1).exists()


def content(folder: Path) -> dict[str, bytes]:
    """Give every file below a folder, with what it holds."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


STRANGERS = {
    "another pool's job of the same number": ("pool-2", "b1"),
    "a job of the same pool, whose journal was put back": ("pool-1", "b1"),
    "another pool's job of a version that gave no ids": ("pool-2", ""),
}


@pytest.mark.parametrize(("pool", "uid"), STRANGERS.values(), ids=STRANGERS.keys())
def test_what_another_job_of_that_number_has_left_is_neither_used_nor_removed(
    pool: str, uid: str, tmp_path: Path, directories: JobDirectories, server: Server
) -> None:
    code, other = (server.add(packed(tmp_path, train_py=text)) for text in "12")
    directories.prepare(1, spec(code))
    directories.checkpoints(1).mkdir()
    (directories.checkpoints(1) / "step-000000001.ckpt").write_text("state")
    before = content(tmp_path / "jobs")
    stranger = homes_of(pool, tmp_path, server)
    with pytest.raises(ForeignFolder, match="belongs to job a1 of pool pool-1"):
        stranger.prepare(1, spec(other, uid=uid))
    stranger.tidy(1, spec(other, uid=uid), 9, forget=True)
    assert content(tmp_path / "jobs") == before


def older_version(tmp_path: Path, code: str) -> Path:
    """Lay out the folder of job 1 as the version did that left no marks."""
    base = tmp_path / "jobs" / "1"
    (base / "folder").mkdir(parents=True)
    (base / "folder" / "train.py").write_text("changed by the job")
    (base / "unpacked").write_text(code)
    (base / "unpacking").touch()
    (base / "attempt-1").touch()
    (base / "checkpoints").mkdir()
    (base / "checkpoints" / "step-000000007.ckpt").write_text("state")
    return base


def test_a_job_of_a_version_that_left_no_mark_finds_its_folder(
    tmp_path: Path, directories: JobDirectories, server: Server
) -> None:
    code = server.add(packed(tmp_path, train_py="1"))
    base = older_version(tmp_path, code)
    folder = directories.prepare(1, spec(code, uid=""))
    assert (folder / "train.py").read_text() == "changed by the job"
    assert (directories.checkpoints(1) / "step-000000007.ckpt").exists()
    with pytest.raises(ForeignFolder):  # it has a mark from here on
        homes_of("pool-2", tmp_path, server).prepare(1, spec(code, uid=""))
    directories.tidy(1, spec(code, uid=""), 1, forget=True)
    assert sorted(each.name for each in base.iterdir()) == ["folder", "owner.json"]


@pytest.mark.parametrize(("uid", "is_same"), [("a1", True), ("", False)])
def test_a_folder_without_a_mark_is_not_a_new_jobs_nor_one_with_other_code(
    uid: str, *, is_same: bool, tmp_path: Path, directories: JobDirectories, server: Server
) -> None:
    code = server.add(packed(tmp_path, train_py="1"))
    older_version(tmp_path, code if is_same else "0" * 64)
    before = content(tmp_path / "jobs")
    with pytest.raises(ForeignFolder, match="of an unknown owner"):
        directories.prepare(1, spec(code, uid=uid))
    directories.tidy(1, spec(code, uid=uid), 1, forget=True)
    assert content(tmp_path / "jobs") == before


def test_a_mark_that_can_not_be_read_keeps_everybody_out(
    directories: JobDirectories, tmp_path: Path
) -> None:
    directories.prepare(1, spec(""))
    (tmp_path / "jobs" / "1" / "owner.json").write_text("{")
    with pytest.raises(ForeignFolder, match="can't be read"):
        directories.prepare(1, spec(""))


def archive(*members: tarfile.TarInfo) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return out.getvalue()


def member(
    name: str, type_: bytes = tarfile.REGTYPE, link: str = "", size: int = 0
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = type_, link, size
    return info


EVIL: dict[str, Callable[[], bytes]] = {
    "a way up": lambda: archive(member("../evil", size=1)),
    "a way up from within": lambda: archive(member("a/../../evil", size=1)),
    "a link out": lambda: archive(member("a", tarfile.SYMTYPE, "../..")),
    "an absolute link": lambda: archive(member("a", tarfile.SYMTYPE, "/etc/passwd")),
    "a hard link out": lambda: archive(member("a", tarfile.LNKTYPE, "../../secret")),
    "a file through a link": lambda: archive(
        member("a", tarfile.SYMTYPE, ".."), member("a/evil", size=1)
    ),
    "a device": lambda: archive(member("a", tarfile.CHRTYPE)),
    "no archive": lambda: b"hello",
    "half an archive": lambda: archive(member("a", size=1000))[:60],
    "a bomb": lambda: gzip.compress(member("a", size=1 << 40).tobuf() + b"\0" * 1024),
}


@pytest.fixture(params=[True, False], ids=["", "before 3.11.4"])
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pythons that have filters for archives, and those that have none."""
    if not request.param:
        monkeypatch.setattr(archives, "HAS_FILTERS", False)


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize("evil", EVIL.values(), ids=EVIL.keys())
def test_an_archive_that_means_ill_is_refused(
    evil: Callable[[], bytes], tmp_path: Path, directories: JobDirectories, server: Server
) -> None:
    with pytest.raises(BadCode):
        directories.prepare(1, spec(server.add(evil())))
    outside = [p for p in tmp_path.rglob("*") if p.name in ("evil", "passwd") or p.is_symlink()]
    assert not outside


@pytest.mark.usefixtures("python")
def test_an_absolute_name_stays_inside(
    tmp_path: Path, directories: JobDirectories, server: Server
) -> None:
    code = server.add(archive(member(f"{tmp_path}/evil", size=1)))
    folder = directories.prepare(1, spec(code))
    assert not (tmp_path / "evil").exists()
    assert list(folder.rglob("evil"))


@pytest.mark.usefixtures("python")
def test_what_is_unpacked_can_be_run_and_is_ours(
    directories: JobDirectories, server: Server
) -> None:
    run, link, deep = (
        member("run.sh", size=1),
        member("b", tarfile.SYMTYPE, "run.sh"),
        member("d/x"),
    )
    run.mode, run.uid, deep.mode = 0o6777, 12345, 0o444
    folder = directories.prepare(1, spec(server.add(archive(run, link, deep))))
    assert (folder / "run.sh").stat().st_mode & 0o7777 == 0o755
    assert (folder / "run.sh").stat().st_uid == os.getuid()
    assert (folder / "b").resolve() == (folder / "run.sh").resolve()
    assert (folder / "d" / "x").stat().st_mode & 0o200


def test_tidying_removes_nothing_outside_of_the_folder(
    tmp_path: Path, directories: JobDirectories, server: Server
) -> None:
    mine, elsewhere = tmp_path / "mine", tmp_path / "elsewhere"
    elsewhere.mkdir()
    mine.write_text("precious")
    link = member(str(mine), tarfile.SYMTYPE, "train.py")
    code = server.add(archive(link, member("sub", tarfile.DIRTYPE), member("sub/x", size=1)))
    folder = directories.prepare(1, spec(code))
    (folder / "sub" / "x").rename(elsewhere / "x")
    (folder / "sub").rmdir()
    (folder / "sub").symlink_to(elsewhere)  # by the job, in the place of what was unpacked
    directories.tidy(1, spec(code), 1, forget=True)
    assert mine.read_text() == "precious"
    assert (elsewhere / "x").exists()
    assert not (folder / str(mine).lstrip("/")).is_symlink()


def test_a_file_in_the_place_of_a_link_is_the_jobs(
    directories: JobDirectories, server: Server
) -> None:
    code = server.add(archive(member("train.py", size=1), member("a", tarfile.SYMTYPE, "train.py")))
    path = directories.prepare(1, spec(code)) / "a"
    path.unlink()
    path.write_text("results")
    directories.tidy(1, spec(code), 1, forget=True)
    assert path.read_text() == "results"


def test_rights_that_others_should_not_have_are_taken_away(
    directories: JobDirectories, server: Server
) -> None:
    info = member("run", size=1)
    info.mode = 0o6777
    path = directories.prepare(1, spec(server.add(archive(info)))) / "run"
    assert path.stat().st_mode & 0o7777 == 0o755
    assert path.stat().st_uid == os.getuid()


@pytest.mark.parametrize("code", ["../../etc", "a/b", ""])
def test_a_name_that_is_no_hash_is_not_fetched(
    code: str, directories: JobDirectories, server: Server
) -> None:
    if code:
        with pytest.raises(BadCode, match="can't be fetched"):
            directories.prepare(1, spec(code))
    assert not server.asked


def test_an_archive_that_is_another_is_refused(directories: JobDirectories, server: Server) -> None:
    code = server.add(archive(member("a", size=1)))
    server.archives[code] = archive(member("b", size=1))
    with pytest.raises(BadCode, match="its hash is"):
        directories.prepare(1, spec(code))


def test_a_server_that_does_not_answer_is_no_fault_of_the_job(directories: JobDirectories) -> None:
    with pytest.raises(OSError, match="not found"):
        directories.prepare(1, spec("0" * 64))


def test_archives_that_nobody_uses_make_room(tmp_path: Path, server: Server) -> None:
    directories = JobDirectories(tmp_path / "jobs", tmp_path / "code", server.fetch, archives_max=2)
    codes = [server.add(archive(member(name, size=1))) for name in "abc"]
    for job, code in enumerate(codes):
        directories.prepare(job, spec(code))
        os.utime(tmp_path / "code" / code, (job, job))
    assert {path.name for path in (tmp_path / "code").iterdir()} == set(codes[1:])
