"""`coddl trace`: look at a workload, or make one."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from coddl.cli.output import AsJson, Output, wants_json

if TYPE_CHECKING:
    from coddl.traces.trace import Trace

app = typer.Typer(help="Look at a workload, or make one.", no_args_is_help=True)


@app.command(epilog="Example:  coddl trace info jobs.csv.gz")
def info(
    trace: Annotated[str, typer.Argument(metavar="FILE", help="A trace.")],
    speeds: Annotated[str, typer.Option(help="Step times of its models.")] = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Show what a trace holds: jobs, span, models, requests, queues."""
    from coddl.traces.files import read_speeds, read_trace

    table = read_speeds(Path(speeds)) if speeds else None
    about = _about(read_trace(Path(trace), table))
    if wants_json(output, as_json):
        typer.echo(json.dumps(about, indent=2))
        return
    for name, value in about.items():
        shown = (
            ", ".join(f"{k}: {v:,}" for k, v in value.items()) if isinstance(value, dict) else value
        )
        typer.echo(f"{name:22} {shown:,}" if isinstance(shown, int) else f"{name:22} {shown}")


def _about(trace: "Trace") -> dict[str, object]:
    """The facts of a trace."""
    import numpy as np

    step_s = trace.speeds.step_s
    widest = step_s.shape[1] - 1
    at_request_s = trace.iterations * step_s[trace.curve, np.minimum(trace.gpus_requested, widest)]
    span_s = float(trace.submitted_s[-1] - trace.submitted_s[0])
    requests = dict(zip(*np.unique(trace.gpus_requested, return_counts=True), strict=True))
    models = np.bincount(trace.curve, minlength=len(trace.speeds.names))
    queues = np.bincount(trace.queue, minlength=len(trace.queues))
    return {
        "name": trace.name,
        "jobs": trace.size,
        "span_days": round(span_s / 86400, 2),
        "gpu_hours_at_request": round(float((at_request_s * trace.gpus_requested).sum()) / 3600),
        "median_minutes": round(float(np.median(at_request_s)) / 60, 1),
        "gpus_requested": {str(gpus): int(jobs) for gpus, jobs in requests.items()},
        "models": {
            name: int(jobs) for name, jobs in zip(trace.speeds.names, models, strict=True) if jobs
        },
        "queues": {
            name: int(jobs) for name, jobs in zip(trace.queues, queues, strict=True) if name
        },
    }


@app.command(epilog="Example:  coddl trace make poisson --jobs 1000 --load 1.2 --out jobs.csv.gz")
def make(
    *,
    kind: Annotated[
        Literal["poisson", "poster", "tiresias"], typer.Argument(help="Which workload.")
    ],
    out: Annotated[str, typer.Option(help="The file to write; .gz compresses it.")],
    seed: Annotated[int, typer.Option(help="Another seed, another trace.")] = 0,
    jobs: Annotated[int, typer.Option(help="poisson: how many jobs.")] = 200,
    gpus: Annotated[int, typer.Option(help="poisson: the cluster that the load refers to.")] = 64,
    load: Annotated[
        float, typer.Option(help="poisson: GPU-time asked for over what there is.")
    ] = 0.8,
    speeds: Annotated[str, typer.Option(help="Step times of the models to draw from.")] = "",
) -> None:
    """Make a workload: Poisson arrivals over a model mix, the poster's 512 jobs, Tiresias' 240."""
    from coddl.traces.files import read_speeds, write_trace
    from coddl.traces.generators import GENERATORS

    table = read_speeds(Path(speeds)) if speeds else None
    extra = {"jobs": jobs, "gpus": gpus, "load": load} if kind == "poisson" else {}
    trace = GENERATORS[kind](table, seed=seed, **extra)
    write_trace(trace, Path(out))
    typer.echo(f"{trace.size} jobs written to {out}")
