"""The folder that goes along with a job."""

import os
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from coddl.api import code
from coddl.api.code import CodeArchive, digest_of, pack
from coddl.core.errors import UserError

Fill = Callable[[Path], None]


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    write(folder, {"train.py": "import net\n", "lib/net.py": "x = 1\n"})
    return folder


def packed(folder: Path) -> CodeArchive:
    return pack(folder, folder.parent / f"{folder.name}.tar.gz")


def members(archive: CodeArchive) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(archive.path) as tar:
        return {member.name: member for member in tar}


def test_an_archive_holds_the_folder_and_is_named_after_its_bytes(project: Path) -> None:
    archive = packed(project)
    assert list(members(archive)) == ["lib", "lib/net.py", "train.py"]
    assert archive.names == {"lib/net.py", "train.py"}
    assert archive.left_out == ()
    with archive.path.open("rb") as file:
        assert digest_of(file) == archive.hash
    assert re.fullmatch("[0-9a-f]{64}", archive.hash)
    assert archive.bytes_ == archive.path.stat().st_size


def test_the_same_content_has_the_same_name_whenever_and_in_which_order_it_was_written(
    project: Path, tmp_path: Path
) -> None:
    twin = tmp_path / "twin"
    twin.mkdir()
    write(twin, {"lib/net.py": "x = 1\n", "train.py": "import net\n"})
    os.utime(twin / "train.py", (1, 1))
    os.utime(project / "lib", (9, 9))
    assert packed(twin).hash == packed(project).hash


def change_text(folder: Path) -> None:
    (folder / "train.py").write_text("import net \n")


def rename(folder: Path) -> None:
    (folder / "train.py").rename(folder / "main.py")


def change_mode(folder: Path) -> None:
    (folder / "train.py").chmod(0o755)


def add_an_empty_folder(folder: Path) -> None:
    (folder / "out").mkdir()


@pytest.mark.parametrize("change", [change_text, rename, change_mode, add_an_empty_folder])
def test_what_a_job_could_notice_gives_another_name(project: Path, change: Fill) -> None:
    before = packed(project).hash
    change(project)
    assert packed(project).hash != before


def test_owners_and_times_stay_here_and_modes_go_along(project: Path) -> None:
    (project / "train.py").chmod(0o4750)
    member = members(packed(project))["train.py"]
    assert (member.mode, member.mtime, member.uid, member.uname) == (0o750, 0, 0, "")


IGNORED = {
    "what nobody wants": (
        "",
        [".git/config", "lib/__pycache__/x.pyc", ".venv/a", "node_modules/b/c"],
    ),
    "a pattern": ("*.ckpt\n", ["a.ckpt", "lib/b.ckpt"]),
    "a folder": ("data/\n", ["data/a", "data/b/c"]),
    "a path from the top": ("/lib/big\n", ["lib/big"]),
    "comments and blanks": ("# a word\n\n  *.log  \n", ["x.log"]),
}


@pytest.mark.parametrize(("rules", "names"), IGNORED.values(), ids=IGNORED.keys())
def test_what_is_ignored_stays_and_does_not_count(
    project: Path, rules: str, names: list[str]
) -> None:
    if rules:
        (project / code.IGNORE_FILE).write_text(rules)
    before = packed(project).hash
    for name in names:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("x")
    assert packed(project).hash == before
    (project / "kept").write_text("x")
    assert packed(project).hash != before


def test_links_that_stay_inside_are_kept_and_others_are_told_of(project: Path) -> None:
    (project / "alias.py").symlink_to("train.py")
    (project / "lib" / "up.py").symlink_to("../train.py")
    (project / "data").symlink_to("/usr/share")
    (project / "out").symlink_to("../elsewhere")
    os.mkfifo(project / "pipe")
    archive = packed(project)
    assert members(archive)["alias.py"].linkname == "train.py"
    assert members(archive)["lib/up.py"].linkname == "../train.py"
    assert archive.left_out == (
        "data (a link to /usr/share, outside of the directory)",
        "out (a link to ../elsewhere, outside of the directory)",
        "pipe (neither a file nor a directory)",
    )
    with tarfile.open(archive.path) as tar:  # as an agent unpacks it
        tar.extractall(project.parent / "copy", filter="data")
    assert (project.parent / "copy" / "alias.py").read_text() == "import net\n"


def test_a_folder_that_is_too_large_is_refused_with_what_is_large(project: Path) -> None:
    (project / "data").mkdir()
    for name in ("data/a", "data/b", "weights.pt"):
        with (project / name).open("wb") as file:
            file.truncate(100 << 20)  # takes no room on disk
    with pytest.raises(UserError) as refused:
        packed(project)
    assert str(refused.value) == (
        f"{project} can't be submitted\n"
        "  because its files take 300 MB, more than 256 MB: data/ 200 MB, weights.pt 100 MB\n"
        "  try     add data/ to .coddlignore, and keep data where every node can read it"
    )
    assert not (project.parent / "project.tar.gz").exists()
    (project / code.IGNORE_FILE).write_text("data/\n*.pt\n")
    assert packed(project).names == {code.IGNORE_FILE, "lib/net.py", "train.py"}


def test_a_link_in_a_circle_is_refused_unless_it_is_ignored(project: Path) -> None:
    (project / "lib" / "circle").symlink_to("../round")
    (project / "round").symlink_to("lib/circle")
    with pytest.raises(UserError, match="circle: Too many levels of symbolic links"):
        packed(project)
    (project / code.IGNORE_FILE).write_text("circle\nround\n")
    assert "lib/circle" not in members(packed(project))


def test_a_folder_that_is_not_there_is_named(project: Path) -> None:
    with pytest.raises(UserError) as refused:
        pack(project / "nosuch", project.parent / "x.tar.gz")
    assert refused.value.because == f"{project}/nosuch: No such file or directory"
