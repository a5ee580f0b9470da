"""What one worker has measured of a training, for people and for estimates."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from coddl.cli.connect import JobName, Server, StateDir, connect, note
from coddl.cli.output import AsJson, Output, wants_json
from coddl.core.errors import UserError

if TYPE_CHECKING:
    from rich.text import Text

    from coddl.core.speed.profile import TrainingProfile

EXAMPLES: Final = """
Examples:

  coddl profile bert                          times, gradients and memory of one worker

  coddl profile bert -o json > profile.json

  coddl run --profile profile.json train.py   the same without a pool
"""
PROFILE_FILE: Final = "--profile profile.json"
Answer = Mapping[str, Any]  # Any: JSON


def profile(
    job: JobName,
    server: Server = "",
    state_dir: StateDir = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Show what a job's training costs one worker, as measured in its first steps."""
    found = asked_for(job, server, state_dir)
    if wants_json(output, as_json):
        print(json.dumps(found, indent=2))
        return
    from coddl.cli.poolview import show

    show(lines_of(found))


def asked_for(job: str, server: str, state_dir: str) -> Answer:
    """Ask the pool for the profile of a job."""
    from coddl.api.client import in_path

    with connect(server, state_dir) as client:
        found: Answer = client.get(f"/jobs/{in_path(job)}/profile")
    return found


class ProfileFile:
    """A file for the profile of a job of `coddl run`, written when that has ended."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._profile: TrainingProfile | None = None
        if self._path.is_dir() or not self._path.absolute().parent.is_dir():
            raise self._refusal("it is a directory" if self._path.is_dir() else "no such directory")

    def hear(self, event: Answer) -> None:
        """Keep what a job has measured."""
        from coddl.core.pool.known_profiles import merged
        from coddl.core.speed.profile import TrainingProfile

        if event["is"] == "profile":
            with contextlib.suppress(UserError):  # of workers with another version
                self._profile = merged(self._profile, TrainingProfile.from_data(event["profile"]))

    def write(self) -> None:
        """Write the profile, or say that there is none."""
        if self._profile is None:
            note(f"{self._path} is not written: the job has ended before it was measured")
            return
        try:
            self._path.write_text(json.dumps(self._profile.as_data(), indent=2) + "\n")
        except OSError as error:
            raise self._refusal(str(error.strerror)) from None

    def _refusal(self, because: str) -> UserError:
        return UserError(f"--profile {self._path} can't be written", because, PROFILE_FILE)


def lines_of(found: Answer) -> "list[Text]":
    """Write a profile: times by samples of a pass, then the other costs of a step."""
    from rich.text import Text

    from coddl.cli.poolview import memory_size, table

    peaks = {each["samples"]: each["peak_bytes"] for each in found["memory"]}
    hosts_s = [
        each.get("forward_host_s", 0.0) + each.get("backward_host_s", 0.0)
        for each in found["slices"]
    ]
    rows = [
        {
            "SAMPLES": f"{each['samples']:,}",
            "FORWARD": _ms(each["forward_s"]),
            "BACKWARD": _ms(each["backward_s"]),
            **({"HOST": _ms(host_s)} if any(hosts_s) else {}),
            "MEMORY": memory_size(peaks[each["samples"]]) if each["samples"] in peaks else "",
        }
        for each, host_s in zip(found["slices"], hosts_s, strict=True)
    ]
    of_update = max((e["peak_bytes"] for e in found.get("update_memory", ())), default=0)
    gradient_bytes = sum(each["bytes"] for each in found["buckets"])
    nodes = found["virtual_nodes"]
    strict = f", strict with {nodes} virtual nodes" if nodes is not None else ""
    fields = [
        ("device", found["device"]),
        ("batch", f"{found['batch']:,} samples{strict}"),
        ("update", _ms(found["update_s"]) + (f", {memory_size(of_update)}" if of_update else "")),
        ("data", _ms(found["data_s"])),
        ("other", _ms(found["other_s"])),
        ("gradients", f"{_mb(gradient_bytes)}, {_sent(found['buckets'])}"),
        ("state", _mb(found["state_bytes"])),
        ("signature", found["signature"]),
    ]
    return [*table(rows), *(Text(f"{name:<10} {value}") for name, value in fields)]


def _sent(buckets: list[Answer]) -> str:
    """Say in how many parts gradients are sent, and how early."""
    if not buckets:
        return "nothing to send"
    early = sum(each["bytes"] for each in buckets if each["ready"] < 1.0)
    part = early / max(1, sum(each["bytes"] for each in buckets))
    count = f"{len(buckets)} bucket{'s' * (len(buckets) != 1)}"
    return f"{count}, {part:.0%} ready before backward has ended"


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.3g} MB" if size_bytes < 1e9 else f"{size_bytes / 1e9:,.3g} GB"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
