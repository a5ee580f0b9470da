"""`coddl simulate`: compare policies on a workload."""

import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from coddl.cli.connect import complete_placements
from coddl.cli.output import AsJson, Output, wants_json
from coddl.core.errors import UserError

if TYPE_CHECKING:
    from coddl.sim.study import Study, StudySpec

EXAMPLES = """
Examples:

  coddl simulate                                     the small trace that comes with the package

  coddl simulate jobs.csv.gz --vc all --gpus 64      each virtual cluster on 64 GPUs of its own

  coddl simulate jobs.csv --policy afs-l --policy srtf --report report.html

  coddl simulate poisson --load 0.6,0.9,1.2 --seeds 5 --policy afs-p --policy tiresias-l:promote=8

  coddl simulate jobs.csv --policy afs-p --reconfigure concurrent:20,1 -o json

  coddl simulate --cluster 16x4 --placement consolidate --placement spread --policy afs-l

  coddl simulate --servers sync --policy optimus-ps --policy drf --policy tetris
"""


Workload = Annotated[
    str,
    typer.Argument(
        metavar="[TRACE]",
        help="A trace (CSV, .gz or Philly's cluster_job_log), or poisson, poster or tiresias. "
        "Default: a small trace that comes with the package.",
    ),
]
Policies = Annotated[
    list[str] | None,
    typer.Option("--policy", help="A policy, parameters after a colon; repeat it for several."),
]
Gpus = Annotated[
    str,
    typer.Option(help="GPUs of the cluster; several, as in 32,64. Default: 64; 512 for poster."),
]
Clusters = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster",
        metavar="SPEC",
        help="Nodes, where it matters which GPUs jobs get: 16x4, 8x4:v100+8x8:k80, or a YAML file. "
        "Repeat it for several.",
    ),
]
Placements = Annotated[
    list[str] | None,
    typer.Option(
        "--placement",
        metavar="NAME",
        help="Which GPUs of the cluster jobs get; repeat it for several. Default: consolidate. "
        "gandiva places jobs itself.",
        autocompletion=complete_placements,
    ),
]
First = Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the first N jobs.")]
Quotas = Annotated[
    str,
    typer.Option(
        metavar="SPEC", help="GPUs that queues are entitled to: equal, demand, or a=32,b=16."
    ),
]
ErrorSpec = Annotated[
    str,
    typer.Option(
        "--error",
        metavar="SPEC",
        help="How wrong schedulers are about jobs: length=0.3,speed=0.1 is up to 30 % and 10 %.",
    ),
]
Failures = Annotated[
    str,
    typer.Option(
        metavar="SPEC", help="Have jobs fail as in a real cluster: philly, philly:retries=3."
    ),
]
Queue = Annotated[str, typer.Option(help="Only this virtual cluster, or each by itself: all.")]
Load = Annotated[str, typer.Option(help="How many times as fast jobs arrive; several, as in 1,2.")]
Seeds = Annotated[int, typer.Option(help="Repeat with this many seeds, and show means.")]
SpeedTable = Annotated[
    str,
    typer.Option(
        help="Step times of the models: a file, a folder, or gandiva. Default: step_times.csv "
        "beside the trace, or the table that comes with the package."
    ),
]
Servers = Annotated[
    Literal["sync", "async"] | None,
    typer.Option(
        help="Train with parameter servers, which optimus-ps, drf and tetris hand out; with other "
        "policies a job has as many as workers, for free. Costs follow from the step times."
    ),
]
ResizeCost = Annotated[
    str,
    typer.Option(
        help="What a resize costs: none, stall:S, stall:S,MOVE_1_S,MOVE_8_S (a move with 1 GPU and "
        "with 8), serial:S, concurrent:PREPARE_S,PAUSE_S, uncancelled:PREPARE_S,PAUSE_S."
    ),
]
CoolDown = Annotated[
    float, typer.Option(help="Seconds for which a share stays after it has changed.")
]
MinRuntime = Annotated[
    float, typer.Option(help="Seconds that a job which was started runs at least.")
]
TooLarge = Annotated[
    Literal["error", "skip", "clamp"],
    typer.Option(help="What becomes of a job that asks for more GPUs than there are."),
]
ReportFile = Annotated[str, typer.Option(help="Write a page with plots to this file.")]
JobsFile = Annotated[str, typer.Option(help="Write how each job fared to this file, as CSV.")]


def simulate(
    *,
    trace: Workload = "",
    policy: Policies = None,
    gpus: Gpus = "",
    cluster: Clusters = None,
    placement: Placements = None,
    first: First = None,
    vc: Queue = "",
    load: Load = "1",
    seeds: Seeds = 1,
    speeds: SpeedTable = "",
    servers: Servers = None,
    reconfigure: ResizeCost = "none",
    cool_down: CoolDown = 0.0,
    min_runtime: MinRuntime = 0.0,
    quotas: Quotas = "none",
    error: ErrorSpec = "",
    failures: Failures = "none",
    oversize: TooLarge = "error",
    report: ReportFile = "",
    jobs_csv: JobsFile = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Compare scheduling policies on a workload, in virtual time."""
    for name, path in (("--report", report), ("--jobs-csv", jobs_csv)):
        _check_writable(name, path)
    sizes = _numbers("--gpus", gpus, whole=True) if gpus else []
    loads = _numbers("--load", load, whole=False)
    from coddl.core.scheduler import Rules
    from coddl.sim.api import reconfigure_from
    from coddl.sim.study import DEFAULT_POLICIES, StudySpec

    spec = StudySpec(
        workload=trace or None,
        policies=policy or DEFAULT_POLICIES,
        gpus=[int(number) for number in sizes],
        clusters=cluster or (),
        placements=placement or (),
        first=first,
        loads=loads,
        seeds=seeds,
        queue=vc or None,
        speeds=speeds or None,
        servers=servers,
        oversize=oversize,
        reconfigure=reconfigure_from(reconfigure),
        rules=Rules(cool_down, min_runtime),
        quotas=quotas,
        error=error,
        failures=failures,
        keep_events=bool(report),
    )
    study, stopped = _watched(spec)
    _show(study, stopped, wants_json(output, as_json))
    _write(study, report, jobs_csv)
    _tell_of_the_rest(study, stopped)
    if stopped:
        raise typer.Exit(130)


def _tell_of_the_rest(study: "Study", stopped: bool) -> None:
    """Say so where the figures are not of all jobs."""
    if study.finished < study.planned:
        told = "stopped: only" if stopped else "note: only"
        done = f"{study.finished:,} of {study.planned:,} jobs finished"
        print(f"{told} {done}; the figures are of those", file=sys.stderr)


def _write(study: "Study", report: str, jobs_csv: str) -> None:
    """Write the files that were asked for."""
    if report:
        from coddl.sim.report import write_report

        # A page compares runs of one workload, so of several seeds it shows the first.
        runs = [run for run in study.runs if run.key.seed == 0]
        write_report(runs, Path(report), title=f"Policies on {study.trace.name}")
        print(f"report written to {report}", file=sys.stderr)
    if jobs_csv:
        from coddl.sim.jobs_csv import write_jobs

        write_jobs(study.runs, Path(jobs_csv))
        print(f"jobs written to {jobs_csv}", file=sys.stderr)


def _watched(spec: "StudySpec") -> tuple["Study", bool]:
    """Run a study with a progress bar; tell whether it was stopped."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from coddl.core.compiling import is_compiled
    from coddl.sim.simulate import Watch
    from coddl.sim.study import study

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("jobs finished", total=None)

        def begin(jobs: int) -> None:
            if not is_compiled():
                print("compiling the simulator for its first run (about 20 s) …", file=sys.stderr)
            bar.update(task, total=jobs)

        watch = Watch(
            partial=True,
            planned=begin,
            progress=lambda jobs: bar.advance(task, jobs),
        )
        signal.signal(signal.SIGINT, _interrupt)
        return study(spec, watch), watch.stop.is_set()


def _interrupt(_signal: int, _frame: object) -> None:
    """Stop at the next opportunity; a second time, at once."""
    signal.signal(signal.SIGINT, lambda _signal, _frame: os._exit(130))
    print("stopping … (Ctrl-C again leaves at once)", file=sys.stderr)
    raise KeyboardInterrupt


def _show(study: "Study", stopped: bool, for_program: bool) -> None:
    """Print the results."""
    if for_program:
        trace = study.trace
        about = {
            "name": trace.name,
            "jobs": trace.size,
            "queues": [queue for queue in trace.queues if queue],
            "models": list(trace.speeds.names),
        }
        results = {"trace": about, "stopped": stopped, "results": _plain(study.rows)}
        print(json.dumps(results, indent=2))
        return
    from coddl.cli.table import print_table

    print_table(study)


def _plain(value: object) -> object:
    """Numbers that JSON has no word for become null."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _numbers(option: str, text: str, *, whole: bool) -> list[float]:
    """Read `1,2,3`."""
    kind = "whole numbers above 0" if whole else "numbers above 0"
    try:
        values = [float(int(part)) if whole else float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(0 < value < 1e9 for value in values):
        raise UserError(
            f"{option} {text} cannot be used",
            f'"{text}" is not {kind}',
            f"{option} {64 if whole else 1}",
        )
    return values


def _check_writable(option: str, path: str) -> None:
    """Find out before a long run that its results could not be written."""
    folder = Path(path).resolve().parent
    if path and (Path(path).is_dir() or not os.access(folder, os.W_OK)):
        because = "it is a folder" if Path(path).is_dir() else f"{folder} is no folder to write to"
        name = "report.html" if option == "--report" else "jobs.csv"
        raise UserError(f"{option} {path} cannot be written", because, f"{option} {name}")
