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

from coddl.agent.home import BadCode, Homes, note_attempt
from coddl.api.code import pack
from coddl.core.pool.spec import Launch
from coddl.runtime.supervisor.seats import Home


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
def homes(tmp_path: Path, server: Server) -> Homes:
    return Homes(tmp_path / "jobs", tmp_path / "code", server.fetch)


def packed(tmp_path: Path, **files: str) -> bytes:
    folder = tmp_path / "submitted"
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return pack(folder, tmp_path / "a.tar.gz").path.read_bytes()


def launch(code: str, folder: str = ".") -> Launch:
    return Launch(argv=("train.py",), code=code, folder=folder)


def test_a_job_finds_its_code_and_starts_in_its_folder(
    tmp_path: Path, homes: Homes, server: Server
) -> None:
    code = server.add(packed(tmp_path, train_py="1", sub__more_py="2"))
    assert (homes.prepare(1, launch(code)) / "train.py").read_text() == "1"
    assert (homes.prepare(1, launch(code, "sub")) / "more.py").read_text() == "2"
    homes.prepare(2, launch(code))
    assert server.asked == [code]  # once for all


def test_jobs_of_one_code_have_folders_of_their_own(
    tmp_path: Path, homes: Homes, server: Server
) -> None:
    code = server.add(packed(tmp_path, train_py="1"))
    first, second = homes.prepare(1, launch(code)), homes.prepare(2, launch(code))
    (first / "train.py").write_text("changed")
    assert (second / "train.py").read_text() == "1"
    assert (homes.prepare(1, launch(code)) / "train.py").read_text() == "changed"  # and stay


def test_a_job_without_code_has_a_folder(homes: Homes, tmp_path: Path) -> None:
    assert homes.prepare(1, launch("")).is_dir()
    assert homes.prepare(1, launch("", str(tmp_path))) == tmp_path


def test_what_a_job_has_written_outlives_it_and_its_code_does_not(
    tmp_path: Path, homes: Homes, server: Server
) -> None:
    code = server.add(packed(tmp_path, train_py="1", sub__more_py="2"))
    folder = homes.prepare(1, launch(code))
    (folder / "sub" / "model.pt").write_text("weights")
    (folder / "__pycache__").mkdir()
    homes.checkpoints(1).mkdir()
    homes.tidy(1, launch(code), 1, forget=True)
    left = [str(p.relative_to(tmp_path / "jobs")) for p in sorted((tmp_path / "jobs").rglob("*"))]
    assert left == ["1", "1/folder", "1/folder/sub", "1/folder/sub/model.pt"]
    homes.tidy(1, launch(code), 1, forget=True)  # a repeat
    assert (homes.prepare(1, launch(code)) / "train.py").exists()  # it is tried again


def test_the_end_of_an_older_attempt_removes_nothing(
    tmp_path: Path, homes: Homes, server: Server
) -> None:
    code = server.add(packed(tmp_path, train_py="1"))
    folder, state = homes.prepare(1, launch(code)), homes.checkpoints(1)
    state.mkdir()
    for attempt in (1, 2):
        note_attempt(Home(python="", cwd=folder, env={}, folder=state), attempt)
    homes.tidy(1, launch(code), 1, forget=True)
    assert (folder / "train.py").exists()
    assert state.exists()
    homes.tidy(1, launch(code), 2, forget=True)
    assert not list((tmp_path / "jobs").iterdir())


def test_a_job_that_has_written_nothing_leaves_nothing(
    tmp_path: Path, homes: Homes, server: Server
) -> None:
    code = server.add(packed(tmp_path, train_py="1", sub__more_py="2"))
    homes.prepare(1, launch(code))
    homes.tidy(1, launch(code), 1, forget=False)
    assert not list((tmp_path / "jobs").iterdir())


def test_the_state_of_a_job_that_failed_is_kept(homes: Homes) -> None:
    homes.prepare(1, launch(""))
    homes.checkpoints(1).mkdir()
    homes.tidy(1, launch(""), 1, forget=False)
    assert homes.checkpoints(1).exists()


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


@pytest.mark.parametrize("evil", EVIL.values(), ids=EVIL.keys())
def test_an_archive_that_means_ill_is_refused(
    evil: Callable[[], bytes], tmp_path: Path, homes: Homes, server: Server
) -> None:
    with pytest.raises(BadCode):
        homes.prepare(1, launch(server.add(evil())))
    outside = [p for p in tmp_path.rglob("*") if p.name in ("evil", "passwd") or p.is_symlink()]
    assert not outside


def test_an_absolute_name_stays_inside(tmp_path: Path, homes: Homes, server: Server) -> None:
    code = server.add(archive(member(f"{tmp_path}/evil", size=1)))
    folder = homes.prepare(1, launch(code))
    assert not (tmp_path / "evil").exists()
    assert list(folder.rglob("evil"))


def test_rights_that_others_should_not_have_are_taken_away(homes: Homes, server: Server) -> None:
    info = member("run", size=1)
    info.mode = 0o6777
    path = homes.prepare(1, launch(server.add(archive(info)))) / "run"
    assert path.stat().st_mode & 0o7777 == 0o755
    assert path.stat().st_uid == os.getuid()


@pytest.mark.parametrize("code", ["../../etc", "a/b", ""])
def test_a_name_that_is_no_hash_is_not_fetched(code: str, homes: Homes, server: Server) -> None:
    if code:
        with pytest.raises(BadCode, match="can't be fetched"):
            homes.prepare(1, launch(code))
    assert not server.asked


def test_an_archive_that_is_another_is_refused(homes: Homes, server: Server) -> None:
    code = server.add(archive(member("a", size=1)))
    server.archives[code] = archive(member("b", size=1))
    with pytest.raises(BadCode, match="was to have the hash"):
        homes.prepare(1, launch(code))


def test_a_server_that_does_not_answer_is_no_fault_of_the_job(homes: Homes) -> None:
    with pytest.raises(OSError, match="not found"):
        homes.prepare(1, launch("0" * 64))


def test_archives_that_nobody_uses_make_room(tmp_path: Path, server: Server) -> None:
    homes = Homes(tmp_path / "jobs", tmp_path / "code", server.fetch, archives_max=2)
    codes = [server.add(archive(member(name, size=1))) for name in "abc"]
    for job, code in enumerate(codes):
        homes.prepare(job, launch(code))
        os.utime(tmp_path / "code" / code, (job, job))
    assert {path.name for path in (tmp_path / "code").iterdir()} == set(codes[1:])
