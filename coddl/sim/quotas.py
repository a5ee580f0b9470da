"""Quotas: the GPUs guaranteed to each queue of a trace."""

import numpy as np

from coddl.core.columns import FloatColumn, IntColumn
from coddl.core.errors import UserError
from coddl.traces.trace import Trace


def quotas_from(spec: str, trace: Trace, gpus: int) -> IntColumn:
    """The quota of each queue, by its index in the trace.

    none      no quotas (an empty column)
    equal     the same for each queue
    demand    in proportion to the GPU time that each queue's jobs request
    a=32,b=16 by name; other queues have none and use what is idle
    """
    if spec in ("", "none"):
        return np.zeros(0, np.int64)
    if spec == "equal":
        return _divided(gpus, np.ones(len(trace.queues)))
    if spec == "demand":
        claims = np.zeros(len(trace.queues))
        np.add.at(claims, trace.queue, trace.length_s * trace.gpus_requested)
        return _divided(gpus, claims)
    return _named(spec, trace, gpus)


def _divided(gpus: int, claims: FloatColumn) -> IntColumn:
    """Whole GPUs in proportion to claims: rounded down, the rest to the largest remainders."""
    exact = gpus * claims / claims.sum()
    out: IntColumn = np.floor(exact).astype(np.int64)
    largest = np.lexsort((np.arange(len(claims)), out - exact))
    out[largest[: gpus - int(out.sum())]] += 1
    return out


def _named(spec: str, trace: Trace, gpus: int) -> IntColumn:
    what = f'quotas "{spec}" cannot be used'
    out, known = np.zeros(len(trace.queues), np.int64), list(filter(None, trace.queues))
    some = ",".join(f"{name}={gpus // len(known)}" for name in known[:2]) or "equal"
    given: set[str] = set()
    for entry in spec.split(","):
        name, equals, number = entry.rpartition("=")
        if not equals or not (number.isascii() and number.isdigit()):
            raise UserError(
                what, f'"{entry}" is not QUEUE=GPUS', f"equal, demand, or for example {some}"
            )
        if name not in trace.queues or name in given:
            twice = "is given twice" if name in given else f"is not a queue of {trace.name}"
            columns = "a trace with a column vc or queue; this one has none"
            raise UserError(
                what, f'"{name}" {twice}', f"one of {', '.join(known)}" if known else columns
            )
        given.add(name)
        out[trace.queues.index(name)] = int(number[:10])
    if out.sum() > gpus:
        raise UserError(
            what, f"they add up to {out.sum()}, and the cluster has {gpus} GPUs", f"{some}"
        )
    return out
