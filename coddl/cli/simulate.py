"""`coddl simulate`: compare policies on a workload."""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar

import typer

from coddl.cli.connect import complete_placements, complete_policies
from coddl.cli.output import AsJson, Output, wants_json, without_nan
from coddl.core.errors import UserError
from coddl.core.node_count import IDLE_S, START_S

if TYPE_CHECKING:
    from coddl.core.reconfigure import Reconfigure
    from coddl.core.scheduler import Stability
    from coddl.sim.profiled import ProfiledModels
    from coddl.sim.simulate import Watch
    from coddl.sim.study import NodeSpec, Study, StudySpec

Result = TypeVar("Result")
COMPILING: Final = "compiling code that runs here for the first time (up to 20 s) …"

EXAMPLES = """
Examples:

  coddl simulate

  coddl simulate jobs.csv --policy afs-l --policy srtf --report report.html

  coddl simulate jobs.csv.gz --vc all --gpus 64

  coddl simulate poisson --load 0.6,0.9,1.2 --seeds 5

  coddl simulate --policy tiresias-l:promote=8 --reconfigure stall:30 -o json

  coddl simulate --cluster 16x4 --placement spread --placement philly

  coddl simulate --nodes 32 --nodes 2..32 --gpus-per-node 8 --node-start-s 60

  coddl simulate jobs.csv --profile bert=profile.json --links inspection.json

  coddl simulate --servers sync --policy optimus-ps --policy drf
"""


Workload = Annotated[
    str,
    typer.Argument(
        metavar="TRACE",
        help="Trace file (CSV, .gz, or Philly's cluster_job_log), or a generator: poisson, poster, "
        "tiresias. Default: a small trace that is part of the package.",
    ),
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="SPEC",
        help="Policy, as NAME or NAME:PARAMETER=VALUE,...; repeat to compare several. "
        "Default: eight policies. See coddl policies.",
        autocompletion=complete_policies,
    ),
]
Gpus = Annotated[
    str,
    typer.Option(metavar="N[,N...]", help="GPUs of the cluster. Default: 64, or 512 for poster."),
]
Clusters = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster",
        metavar="SPEC",
        help="Nodes of the cluster, instead of --gpus: 16x4, 8x4:v100+8x8:k80, or a YAML file; "
        "repeat for several.",
    ),
]
NodeRanges = Annotated[
    list[str] | None,
    typer.Option(
        "--nodes",
        metavar="MIN..MAX",
        help="Nodes that come and go with the work, instead of --gpus: 2..32, or 32 for a fixed "
        "number; repeat to compare several.",
    ),
]
GpusPerNode = Annotated[
    int | None, typer.Option(metavar="N", help="GPUs of each node of --nodes (default: 8).")
]
NodeStart = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Time from asking for a node of --nodes until jobs can use it "
        f"(default: {START_S:g}).",
    ),
]
NodeIdle = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help=f"How long a node of --nodes that no job needs is kept (default: {IDLE_S:g}).",
    ),
]
Placements = Annotated[
    list[str] | None,
    typer.Option(
        "--placement",
        metavar="NAME",
        help="How jobs are placed on the nodes of --cluster or --nodes; repeat for several. "
        "Default: consolidate. The policy gandiva has its own.",
        autocompletion=complete_placements,
    ),
]
First = Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the first N jobs.")]
Quotas = Annotated[
    str,
    typer.Option(
        metavar="SPEC", help="GPUs guaranteed to each queue: none, equal, demand, or a=32,b=16."
    ),
]
ErrorSpec = Annotated[
    str,
    typer.Option(
        "--error",
        metavar="SPEC",
        help="Prediction error: length=0.3,speed=0.1 lets predictions be off by up to 30 % and "
        "10 %.",
    ),
]
Known = Annotated[
    Literal["true", "estimated", "adjusted", "visited"],
    typer.Option(
        help="What the scheduler knows of speeds, while jobs run at the true ones: true, the speed "
        "table; estimated, replays from each model's step on one GPU, with links calibrated on the "
        "other models; adjusted, the same, adjusted by what is measured as jobs run; visited, a "
        "job scales perfectly until it was measured at a second size."
    ),
]
Failures = Annotated[
    str,
    typer.Option(
        metavar="SPEC", help="Job failures: none, or philly (as in that cluster), philly:retries=3."
    ),
]
Queue = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Only the jobs of this queue; all: each queue on its own cluster."
    ),
]
Load = Annotated[
    str, typer.Option(metavar="X[,X...]", help="Arrival rate, as a multiple of the trace's.")
]
Seeds = Annotated[int, typer.Option(metavar="N", help="Number of seeds; results are their means.")]
SpeedTable = Annotated[
    str,
    typer.Option(
        metavar="PATH",
        help="Step times of the models: a file, a folder, or gandiva. Default: step_times.csv "
        "next to the trace, or the table in the package.",
    ),
]
Profiles = Annotated[
    list[str] | None,
    typer.Option(
        "--profile",
        metavar="NAME=FILE",
        help="Model whose speeds are replayed from a profile, as coddl run --profile or coddl "
        "profile JOB -o json writes it; repeat for several. With --links.",
    ),
]
LinksFile = Annotated[
    str,
    typer.Option(
        "--links",
        metavar="FILE",
        help="Links that profiles and estimates are replayed on: a file of coddl inspect --save.",
    ),
]
Servers = Annotated[
    Literal["sync", "async"] | None,
    typer.Option(
        help="Train with parameter servers. optimus-ps, drf and tetris allocate them; under other "
        "policies a job has one per worker, at no cost."
    ),
]
ResizeCost = Annotated[
    str,
    typer.Option(
        metavar="SPEC",
        help="Cost of a resize in seconds: none, stall:PAUSE, stall:PAUSE,MOVE_1,MOVE_8 "
        "(migrating a job with 1 and with 8 GPUs), serial:PAUSE, concurrent:PREPARE,PAUSE, "
        "uncancelled:PREPARE,PAUSE; or what a pool has measured: a file of coddl costs -o json.",
    ),
]
CoolDown = Annotated[
    float,
    typer.Option(
        metavar="SECONDS", help="Minimum time between two changes of a job's number of GPUs."
    ),
]
MinRuntime = Annotated[
    float,
    typer.Option(metavar="SECONDS", help="Minimum time a started job runs before preemption."),
]
Reserve = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        help="Time for which GPUs that were freed for a job are kept for it (in a pool: 10).",
    ),
]
Prerun = Annotated[
    bool,
    typer.Option(
        "--prerun",
        help="Give a job its minimum until it has made its first step, as a pool does.",
    ),
]
TooLarge = Annotated[
    Literal["error", "skip", "clamp"],
    typer.Option(help="What to do with a job that requests more GPUs than the cluster has."),
]
ReportFile = Annotated[
    str, typer.Option(metavar="FILE", help="Write an HTML report with plots to this file.")
]
JobsFile = Annotated[
    str, typer.Option(metavar="FILE", help="Write the results of each job to this file, as CSV.")
]


def simulate(
    *,
    trace: Workload = "",
    policy: Policies = None,
    gpus: Gpus = "",
    cluster: Clusters = None,
    nodes: NodeRanges = None,
    gpus_per_node: GpusPerNode = None,
    node_start_s: NodeStart = None,
    node_idle_s: NodeIdle = None,
    placement: Placements = None,
    first: First = None,
    vc: Queue = "",
    load: Load = "1",
    seeds: Seeds = 1,
    speeds: SpeedTable = "",
    profile: Profiles = None,
    links: LinksFile = "",
    servers: Servers = None,
    reconfigure: ResizeCost = "none",
    cool_down: CoolDown = 0.0,
    min_runtime: MinRuntime = 0.0,
    reserve: Reserve = 0.0,
    prerun: Prerun = False,
    quotas: Quotas = "none",
    error: ErrorSpec = "",
    known_speeds: Known = "true",
    failures: Failures = "none",
    oversize: TooLarge = "error",
    report: ReportFile = "",
    jobs_csv: JobsFile = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Compare scheduling policies on a workload, in simulated time."""
    from coddl.sim.study import DEFAULT_POLICIES, StudySpec

    spec = StudySpec(
        workload=trace or None,
        policies=policy or DEFAULT_POLICIES,
        gpus=[int(number) for number in _numbers("--gpus", gpus, whole=True)] if gpus else [],
        clusters=cluster or (),
        nodes=_node_spec(nodes, gpus_per_node, node_start_s, node_idle_s),
        placements=placement or (),
        first=first,
        loads=_numbers("--load", load, whole=False),
        seeds=seeds,
        queue=vc or None,
        speeds=speeds or None,
        profiled=_profiled(profile or (), links),
        servers=servers,
        oversize=oversize,
        reconfigure=_resize_cost(reconfigure),
        stability=_stability(cool_down, min_runtime, reserve),
        quotas=quotas,
        error=error,
        known_speeds=known_speeds,
        failures=failures,
        prerun=prerun,
    )
    _run(spec, report, jobs_csv, wants_json(output, as_json))


def _resize_cost(spec: str) -> "Reconfigure":
    """Read what a resize costs."""
    from coddl.sim.api import reconfigure_from

    return reconfigure_from(spec)


def _stability(cool_down_s: float, min_runtime_s: float, reserve_s: float) -> "Stability":
    """Return how calmly to schedule."""
    from coddl.core.scheduler import Stability

    return Stability(cool_down_s, min_runtime_s, reserve_s)


def _run(spec: "StudySpec", report: str, jobs_csv: str, for_program: bool) -> None:
    """Run a study, print its results, and write the files that were asked for."""
    check_writable({"--report": report, "--jobs-csv": jobs_csv})
    from coddl.sim.study import study as run_study

    spec = replace(spec, keep_events=bool(report))
    study, stopped = watched(lambda watch: run_study(spec, watch))
    _show(study, stopped, for_program)
    _write(study, report, jobs_csv)
    _end(study, stopped)


def _profiled(profiles: Sequence[str], links: str) -> "ProfiledModels":
    """Read the profiles, and the links that they are replayed on."""
    from coddl.sim.profiled import named_files, profiled_from

    return profiled_from(named_files(profiles), links or None)


def _node_spec(
    nodes: list[str] | None, gpus: int | None, start_s: float | None, idle_s: float | None
) -> "NodeSpec":
    """Return the nodes that come and go; raise UserError if only their properties are given."""
    from coddl.sim.study import GPUS_PER_NODE, NodeSpec

    about = {"--gpus-per-node": gpus, "--node-start-s": start_s, "--node-idle-s": idle_s}
    given = " ".join(f"{option} {value:g}" for option, value in about.items() if value is not None)
    if given and not nodes:
        raise UserError(
            f"{given} can't be used",
            "there are no nodes that come and go, as --nodes is not given",
            f"--nodes 2..32 {given}",
        )
    return NodeSpec(
        nodes or (),
        GPUS_PER_NODE if gpus is None else gpus,
        START_S if start_s is None else start_s,
        IDLE_S if idle_s is None else idle_s,
    )


def _end(study: "Study", stopped: bool) -> None:
    """Say so where the results do not cover all jobs; exit with 130 if the user stopped them."""
    if study.finished < study.planned:
        told = "stopped" if stopped else "note"
        done = f"{study.finished:,} of {study.planned:,} jobs finished"
        print(f"{told}: {done}; results cover only those", file=sys.stderr)
    if stopped:
        raise typer.Exit(130)


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


def watched(simulated: Callable[["Watch"], Result]) -> tuple[Result, bool]:
    """Simulate with a progress bar; return the result, and whether the user stopped it."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from coddl.core.compiling import tell_compiling
    from coddl.sim.simulate import Watch

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
            bar.update(task, total=jobs)

        watch = Watch(
            partial=True,
            planned=begin,
            progress=lambda jobs: bar.advance(task, jobs),
        )
        tell_compiling(lambda: console.print(COMPILING, soft_wrap=True, highlight=False))
        signal.signal(signal.SIGINT, _interrupt)
        return simulated(watch), watch.stop.is_set()


def _interrupt(_signal: int, _frame: object) -> None:
    """Stop after the current events; the second time, exit at once."""
    signal.signal(signal.SIGINT, lambda _signal, _frame: os._exit(130))
    print("stopping … (press Ctrl-C again to exit now)", file=sys.stderr)
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
        results = {"trace": about, "stopped": stopped, "results": without_nan(study.rows)}
        if changes := _node_changes(study):
            results["node_changes"] = changes
        print(json.dumps(results, indent=2))
        return
    from coddl.cli.table import print_table

    print_table(study)


def _node_changes(study: "Study") -> list[dict[str, object]]:
    """How many nodes each run held from when on, and why."""
    return [
        run.key.columns | change._asdict()
        for run in study.runs
        if run.nodes is not None
        for change in run.nodes.changes
    ]


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


def check_writable(files: Mapping[str, str]) -> None:
    """Fail before a long run if its results could not be written."""
    for option, path in files.items():
        folder = Path(path).resolve().parent
        if path and (Path(path).is_dir() or not os.access(folder, os.W_OK)):
            no_folder = f"{folder} is not a writable folder"
            because = "it is a folder" if Path(path).is_dir() else no_folder
            name = "report.html" if option == "--report" else "jobs.csv"
            raise UserError(f"{option} {path} cannot be written", because, f"{option} {name}")
