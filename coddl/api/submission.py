"""Hand a job in: check it as far as that can be done here, and upload its folder."""

import shlex
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from coddl.api.client import Client, user
from coddl.api.code import pack
from coddl.api.spec import read_request
from coddl.core.errors import UserError


def checked_request(data: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a job as the server takes it; raises UserError if that is known to refuse it."""
    request = read_request(dict(data))
    checked = request.model_dump(mode="json", exclude_unset=True)
    if request.script:
        path = folder / request.folder / request.script
        if not path.is_file():
            because = "it is a directory" if path.is_dir() else "there is no such file"
            raise UserError(
                f"{request.script} can't be submitted", because, "coddl submit train.py"
            )
        path, start = path.resolve(), (folder / request.folder).resolve()
        if not path.is_relative_to(start):  # the folder where it lies may hold anything, as /tmp
            raise UserError(
                f"{request.script} can't be submitted",
                f"it is in {path.parent}, but only {start} is uploaded",
                f"cd {shlex.quote(str(path.parent))} && coddl submit {path.name}",
            )
        checked["script"] = str(path.relative_to(start))
    return {"user": user(), **checked}


def uploaded_folder(
    client: Client,
    request: Mapping[str, Any],
    folder: Path,
    *,
    on_left_out: Callable[[str], None],
) -> str:
    """Upload the folder of a job, unless the server has it; give its hash."""
    with tempfile.TemporaryDirectory(prefix="coddl-") as scratch:
        archive = pack(folder, Path(scratch) / "code.tar.gz")
        for why in archive.left_out:
            on_left_out(f"not uploaded: {why}")
        _check_taken(request, archive.names, folder)
        if not client.has_code(archive.hash):
            with archive.path.open("rb") as file:
                client.send_code(archive.hash, file)
    return archive.hash


def _check_taken(request: Mapping[str, Any], names: frozenset[str], folder: Path) -> None:
    if not (script := request.get("script")):
        return
    inside = Path(request.get("folder", ".")) / script
    if inside.as_posix() not in names and not (folder / inside).is_symlink():
        raise UserError(
            f"{script} can't be submitted",
            "it is excluded from the upload, by .coddlignore or as part of .git or .venv",
            "change .coddlignore, or move the script",
        )
