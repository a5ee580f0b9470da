"""Jobs of the history: what is kept of a job that has left memory, as a row and back.

The columns are for lists. The body is the whole `RecordedJob`, less what is as it is by default,
and less its environment, which may hold secrets. A later version reads it as it reads snapshots.
"""

import zlib
from dataclasses import MISSING, fields, replace
from typing import Any, Final

import msgspec

from coddl.core.pool.job import JobState
from coddl.core.pool.recording import RecordedJob
from coddl.server.store import HistoryRow

QUEUE: Final = "default"  # there is one

Data = dict[str, Any]  # Any: JSON


def _defaults(kind: type) -> Data:
    """Return the fields of a dataclass as they are if nothing is said."""
    told: Data = {}
    for each in fields(kind):
        if each.default is not MISSING:
            told[each.name] = each.default
        elif each.default_factory is not MISSING:
            told[each.name] = each.default_factory()
    found: Data = msgspec.to_builtins(told, str_keys=True)
    return found


_JOB: Final = _defaults(JobState)
_RECORDED: Final = _defaults(RecordedJob)
_decoder: Final = msgspec.json.Decoder(RecordedJob)


def history_row(known: RecordedJob) -> HistoryRow:
    """Return the row of a job that has ended."""
    job = known.job
    assert job.ended_s is not None, f"job {job.id} has not ended"
    launch = replace(job.spec.launch, env={})
    bare = replace(known, job=replace(job, spec=replace(job.spec, launch=launch)))
    told: Data = msgspec.to_builtins(bare, str_keys=True)
    told["job"] = _without(told["job"], _JOB)
    return HistoryRow(
        job=job.id,
        name=job.spec.name,
        user=job.spec.user,
        queue=QUEUE,
        program=launch.argv[0],
        signature=job.training,
        phase=job.phase,
        submitted_s=job.submitted_s,
        started_s=job.first_start_s,
        ended_s=job.ended_s,
        iterations=job.step,
        gpu_s=job.attained_gpu_s,
        body=zlib.compress(msgspec.json.encode(_without(told, _RECORDED))),
    )


def recorded_job(row: HistoryRow) -> RecordedJob:
    """Return the job of a row; raises msgspec.DecodeError or zlib.error at what can't be read."""
    return _decoder.decode(zlib.decompress(row.body))


def _without(told: Data, defaults: Data) -> Data:
    return {
        name: value
        for name, value in told.items()
        if name not in defaults or value != defaults[name]
    }
