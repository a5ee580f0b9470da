"""Timelines as REST shows them: which job held how many GPUs, and when."""

from collections.abc import Iterable, Sequence
from typing import Final

from coddl.api import rest_history as rest
from coddl.core.errors import UserError
from coddl.core.pool.job import JobState
from coddl.core.pool.timeline import SPANS_MAX, Capacity, GpuSpan, capacity_between

SPANS_SHOWN: Final = 5_000  # the newest


def timeline_view(
    jobs: Iterable[JobState], capacities: Sequence[Capacity], since_s: float, until_s: float
) -> rest.TimelineView:
    """Show the spans of jobs that overlap an interval; raises UserError if it is none."""
    if since_s > until_s:
        raise UserError(
            "the timeline cannot be shown",
            f"since_s {since_s:.0f} is after until_s {until_s:.0f}",
            f"since_s={until_s - 3600:.0f}",
        )
    found, truncated = list[tuple[GpuSpan, JobState]](), False
    for job in jobs:
        spans = job.spans
        if not spans or (spans[-1].to_s or until_s) < since_s:
            continue
        truncated |= len(spans) == SPANS_MAX and spans[0].from_s > since_s
        found += [
            (span, job)
            for span in spans
            if span.from_s <= until_s and (span.to_s is None or span.to_s >= since_s)
        ]
    found.sort(key=lambda each: (each[0].from_s, each[1].id))
    return rest.TimelineView(
        since_s=since_s,
        until_s=until_s,
        gpus=[
            rest.CapacityView(**step._asdict())
            for step in capacity_between(capacities, since_s, until_s)
        ],
        spans=[
            rest.SpanView(job=job.id, name=job.spec.name, **span._asdict())
            for span, job in found[-SPANS_SHOWN:]
        ],
        truncated=truncated or len(found) > SPANS_SHOWN,
    )
