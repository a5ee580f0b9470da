"""The job log of Microsoft's Philly cluster (2017), made a workload as in the AFS evaluation.

Jeon et al., ATC '19, published it as JSON: a list of jobs, each with its attempts and the GPUs of
each attempt, but not what was trained. So a model is drawn for every job. (Hwang et al., NSDI '21.)
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coddl.core.errors import UserError
from coddl.core.speed.table import Speeds
from coddl.traces.cells import shown
from coddl.traces.text_file import read_text
from coddl.traces.trace import Trace, smallest_shares, trace_of

# The models of the evaluation, in the order that its draws depend on.
AFS_MODELS = (
    "vgg16",
    "googlenet",
    "inception4",
    "resnet50",
    "deepspeech2",
    "transformer",
    "dcgan",
    "chatbot",
    "videoprediction",
)
TRY = (
    "a cluster_job_log of the Philly traces: a JSON list of jobs with vc, user, submitted_time and "
    'attempts, each attempt with start_time, end_time ("YYYY-MM-DD HH:MM:SS" or null) and detail'
)


class LoggedJob(NamedTuple):
    """What the log says of a job that ran to its end."""

    vc: str
    user: str
    submitted_s: float
    service_s: float  # summed over its attempts
    gpus: int  # of its first attempt


class JobWithModel(NamedTuple):
    """A logged job and the model that was drawn for it."""

    job: LoggedJob
    curve: int
    iterations: float


class FormatError(ValueError):
    """Something in the log that its format does not have."""


def is_philly(text: str) -> bool:
    """Return whether a file is a job log, not our own format: it is a JSON list."""
    return text.lstrip()[:1] == "["


def read_philly(path: str | Path, speeds: Speeds, seed: int = 0) -> Trace:
    """The jobs of a Philly job log; see `philly_trace`."""
    path = Path(path)
    return philly_trace(read_text(path, _what(path)), path, speeds, seed)


def philly_trace(text: str, path: Path, speeds: Speeds, seed: int = 0) -> Trace:
    """The jobs of a job log, one queue per virtual cluster, whose times start with its first job.

    A job stays if every attempt has start and end, its first had a GPU, some model of the table can
    use that many, and it makes an iteration or more of the one drawn for it.
    """
    clusters: dict[str, list[LoggedJob]] = {}
    for job in _logged(text, _what(path)):
        clusters.setdefault(job.vc, []).append(job)
    kept: list[JobWithModel] = []
    start_s: dict[str, float] = {}
    for vc, jobs in sorted(clusters.items()):
        drawn = _drawn(sorted(jobs, key=lambda job: job.submitted_s), speeds, seed)
        if drawn:
            start_s[vc] = drawn[0].job.submitted_s
            kept += drawn
    if not kept:
        raise UserError(
            _what(path),
            "no job of it has start and end of every attempt, a GPU that a model of the speed table"
            " can use, and one iteration or more",
            TRY,
        )
    return trace_of(
        path.name,
        speeds,
        submitted_s=np.array([job.submitted_s - start_s[job.vc] for job, _, _ in kept]),
        curve=np.array([curve for _, curve, _ in kept], np.int64),
        iterations=np.array([iterations for _, _, iterations in kept]),
        gpus_requested=np.array([job.gpus for job, _, _ in kept], np.int64),
        queue=[job.vc for job, _, _ in kept],
        user=[job.user for job, _, _ in kept],
    )


def _what(path: Path) -> str:
    return f"trace {path} cannot be read"


def _drawn(jobs: list[LoggedJob], speeds: Speeds, seed: int) -> list[JobWithModel]:
    """One virtual cluster's jobs, each with a model that can use the GPUs it had."""
    # The evaluation's generator, seeded anew for each cluster and asked once per job, also for the
    # jobs that turn out too short: only so do the models come out as they did there.
    chance = np.random.RandomState(seed)
    least, most = smallest_shares(speeds), speeds.gpus_max
    pools = {
        gpus: np.flatnonzero((least <= gpus) & (gpus <= most)) for gpus in {j.gpus for j in jobs}
    }
    drawn = []
    for job in jobs:
        pool = pools[job.gpus]
        if len(pool) == 0:
            continue
        curve = int(pool[chance.randint(0, len(pool))])
        iterations = job.service_s / float(speeds.step_s[curve, job.gpus])
        if iterations >= 1:
            drawn.append(JobWithModel(job, curve, iterations))
    return drawn


def _logged(text: str, what: str) -> Iterator[LoggedJob]:
    """The jobs of the log whose every attempt has a start and an end, and that had a GPU."""
    try:
        log = json.loads(text)
    except json.JSONDecodeError as error:
        because = f"line {error.lineno}: it is not JSON: {error.msg} at column {error.colno}"
        raise UserError(what, because, TRY) from None
    except (ValueError, RecursionError) as error:  # a number too long, lists too deep
        raise UserError(what, f"it is not JSON that can be read: {error}", TRY) from None
    for at, entry in enumerate(log):
        try:
            job = _job(entry)
        except FormatError as odd:
            because = f"line {_line_of(text, at)}: in job {at + 1} of the list, {odd}"
            raise UserError(what, because, TRY) from None
        if job is not None:
            yield job


def _job(entry: object) -> LoggedJob | None:
    attempts = _field(entry, "attempts", list)
    vc, user = _name(entry, "vc"), _name(entry, "user")
    submitted_s = _time_s(entry, "submitted_time")
    times_s = [(_time_s(a, "start_time"), _time_s(a, "end_time")) for a in attempts]
    detail = _field(attempts[0], "detail", list) if attempts else []
    gpus = sum(len(_field(node, "gpus", list)) for node in detail)
    service_s = 0.0
    for start_s, end_s in times_s:
        if start_s is None or end_s is None:
            return None
        service_s += end_s - start_s
    if gpus == 0:
        return None
    if submitted_s is None:
        raise FormatError("submitted_time is missing although the job ran")
    return LoggedJob(vc, user, submitted_s, service_s, gpus)


def _field(entry: object, name: str, kind: type) -> Any:  # Any: of the kind asked for
    if not isinstance(entry, dict):
        raise FormatError(f"{_shown(entry)} is not an object with {name}")
    if name not in entry:
        raise FormatError(f"there is no {name}")
    value = entry[name]
    if not isinstance(value, kind):
        raise FormatError(
            f"{name} is {_shown(value)}, not a {'list' if kind is list else 'string'}"
        )
    return value


def _name(entry: object, name: str) -> str:
    value: str = _field(entry, name, str)
    if not value.isprintable():
        raise FormatError(f"{name} is {_shown(value)}, not a printable name")
    return value


def _time_s(entry: object, name: str) -> float | None:
    """Seconds since 1970 as if the log's clock were UTC: only differences are used."""
    if isinstance(entry, dict) and entry.get(name, "") in (None, "None"):
        return None
    text: str = _field(entry, name, str)
    if text == "":
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise FormatError(f"{name} is {_shown(text)}, not a time") from None
    if len(text) != 19 or time.tzinfo is not None:
        raise FormatError(f"{name} is {_shown(text)}, not YYYY-MM-DD HH:MM:SS")
    return time.replace(tzinfo=UTC).timestamp()


def _shown(value: object) -> str:
    return shown(value if isinstance(value, str) else json.dumps(value))


def _line_of(text: str, at: int) -> int:
    """The line on which the list's item begins."""
    decode = json.JSONDecoder().raw_decode
    start = _skip(text, text.index("[") + 1, "")
    for _ in range(at):
        start = _skip(text, decode(text, start)[1], ",")
    return text.count("\n", 0, start) + 1


def _skip(text: str, start: int, mark: str) -> int:
    while start < len(text) and text[start] in " \t\r\n" + mark:
        start += 1
    return start
