"""`coddl trace`: show a trace, or generate one."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from coddl.cli.output import AsJson, Output, wants_json
from coddl.cli.plain_command import PlainCommand, PlainGroup

if TYPE_CHECKING:
    from coddl.traces.trace import Trace

app = typer.Typer(cls=PlainGroup, help="Show a trace, or generate one.", no_args_is_help=True)


@app.command(cls=PlainCommand, epilog="Example:  coddl trace info jobs.csv.gz")
def info(
    trace: Annotated[str, typer.Argument(metavar="FILE", help="Trace file.")],
    speeds: Annotated[str, typer.Option(metavar="PATH", help="Step times of the models.")] = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Show a summary of a trace: jobs, duration, models, requested GPUs, queues."""
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
    """The summary of a trace."""
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


@app.command(
    cls=PlainCommand,
    epilog="Example:  coddl trace make poisson --jobs 1000 --load 1.2 --out jobs.csv.gz",
)
def make(
    *,
    kind: Annotated[Literal["poisson", "poster", "tiresias"], typer.Argument(help="Generator.")],
    out: Annotated[
        str, typer.Option(metavar="FILE", help="File to write; compressed if it ends in .gz.")
    ],
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the random generator.")] = 0,
    jobs: Annotated[int, typer.Option(metavar="N", help="poisson: number of jobs.")] = 200,
    gpus: Annotated[
        int, typer.Option(metavar="N", help="poisson: GPUs that --load refers to.")
    ] = 64,
    load: Annotated[
        float, typer.Option(metavar="X", help="poisson: requested GPU time / available GPU time.")
    ] = 0.8,
    speeds: Annotated[str, typer.Option(metavar="PATH", help="Step times of the models.")] = "",
) -> None:
    """Generate a trace: poisson, the 512 jobs of poster, or the 240 of tiresias."""
    from coddl.traces.files import read_speeds, write_trace
    from coddl.traces.generators import GENERATORS

    table = read_speeds(Path(speeds)) if speeds else None
    extra = {"jobs": jobs, "gpus": gpus, "load": load} if kind == "poisson" else {}
    trace = GENERATORS[kind](table, seed=seed, **extra)
    write_trace(trace, Path(out))
    typer.echo(f"{trace.size:,} job{'' if trace.size == 1 else 's'} written to {out}")
