"""The results of each job of each run, as a CSV file."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from coddl.sim.run import Run
from coddl.traces.atomic_write import write_atomically

RUN = ("policy", "placement", "vc", "cluster", "gpus", "load", "seed")
JOB = ("job", "model", "submitted_s", "gpus_requested", "first_start_s", "finish_s")
HEADER = (*RUN, *JOB, "jct_s", "wait_s", "gpu_s", "rho")


def write_jobs(runs: Sequence[Run], path: Path) -> None:
    """Write one line per run and job; the file appears whole or not at all. A job that did not
    finish has empty times.
    """
    out = io.StringIO(newline="")
    lines = csv.writer(out)
    lines.writerow(HEADER)
    for run in runs:
        lines.writerows(_lines(run))
    write_atomically(path, out.getvalue().encode(), "file of jobs")


def _lines(run: Run) -> list[list[object]]:
    trace = run.trace
    names = [trace.speeds.names[curve] for curve in trace.curve.tolist()]
    queues = [trace.queues[queue] for queue in trace.queue.tolist()]
    columns = zip(
        queues,
        names,
        trace.submitted_s.tolist(),
        trace.gpus_requested.tolist(),
        run.first_start_s.tolist(),
        run.finish_s.tolist(),
        run.jct_s.tolist(),
        (run.jct_s - run.executed_s).tolist(),
        run.attained_gpu_s.tolist(),
        run.rho.tolist(),
        strict=True,
    )
    return [
        [*(run.key.columns | {"vc": queue}).values(), job, name]
        + [
            "" if value != value or value in (float("inf"), -float("inf")) else value
            for value in rest
        ]
        for job, (queue, name, *rest) in enumerate(columns)
    ]
