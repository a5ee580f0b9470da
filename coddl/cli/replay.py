"""`coddl replay`: submit the jobs of a trace to a pool, at the times of the trace."""

import json
from typing import Annotated, Final, Literal

import typer

from coddl.cli.connect import Server, StateDir, complete_policies, connect
from coddl.cli.output import AsJson, Output, wants_json, without_nan
from coddl.cli.simulate import SpeedTable, Workload
from coddl.core.errors import UserError

EXAMPLES: Final = """
Examples:

  coddl up --emulate 16x4 --time-scale 100 && coddl replay jobs.csv

  coddl replay poisson --first 50 --policy tiresias-l --gpus request

  coddl replay jobs.csv --script "train.py --model {model} --steps {iterations}" --time-scale 60

  coddl replay jobs.csv --from 120               the rest, after an interruption

  coddl replay jobs.csv -o json > replayed.json
"""

ReplayPolicy = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="SPEC",
        help="Have the pool follow this policy first (default: the policy it has).",
        autocompletion=complete_policies,
    ),
]
First = Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the first N jobs.")]
From = Annotated[
    int,
    typer.Option(
        "--from", min=0, metavar="N", help="Leave out the first N jobs, which were submitted."
    ),
]
Load = Annotated[
    float,
    typer.Option(
        min=1e-6, max=1e6, metavar="X", help="Arrival rate, as a multiple of the trace's."
    ),
]
Pace = Annotated[
    float,
    typer.Option(
        "--time-scale",
        min=1e-3,
        max=1e6,
        metavar="X",
        help="Submit X times as fast as in the trace, by the pool's time. An emulated pool has a "
        "time scale of its own, to which the trace is kept.",
    ),
]
Script = Annotated[
    str,
    typer.Option(
        metavar="CMD",
        help="What each job runs in a pool that is not emulated: an elastic script with arguments, "
        "where {model}, {iterations} and {gpus} stand for those of the trace. The working "
        "directory is uploaded.",
    ),
]
Bounds = Annotated[
    Literal["range", "request"],
    typer.Option(
        help="GPUs that a job may have: range, from gpus_min to gpus_max; or request, exactly "
        "those that it asks for, as policies that do not resize jobs expect."
    ),
]
Curves = Annotated[
    bool,
    typer.Option(
        "--curves/--no-curves",
        help="Submit the speeds of each job's model with it; else the pool measures them.",
    ),
]
WaitOption = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait until all jobs have ended.")
]


def replay(
    *,
    trace: Workload = "",
    policy: ReplayPolicy = "",
    first: First = None,
    skip: From = 0,
    load: Load = 1.0,
    speeds: SpeedTable = "",
    gpus: Bounds = "range",
    curves: Curves = True,
    script: Script = "",
    time_scale: Pace = 1.0,
    wait: WaitOption = True,
    server: Server = "",
    state_dir: StateDir = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Submit the jobs of a trace to a pool, at the times of the trace; wait until they have ended.

    In an emulated pool (coddl up --emulate) each job advances at the speed of its model. In any
    other pool each job runs the --script.
    """
    from coddl.cli.replaying import TraceReplay, jobs_of_trace, requests_for, sentence_of

    jobs = jobs_of_trace(trace, speeds, load, first)
    with connect(server, state_dir) as client:
        requests = requests_for(client, jobs, gpus=gpus, curves=curves, script=script)
        if skip >= jobs.size:
            last = f"--from {jobs.size - 1} submits the last one"
            raise UserError(f"--from {skip} leaves no jobs", f"there are {jobs.size} jobs", last)
        if policy:
            client.put("/policy", {"policy": policy})
        found = TraceReplay(client, jobs, requests, pace=time_scale).run(skip, wait=wait)
    if wants_json(output, as_json):
        print(json.dumps(without_nan(found), indent=2))
    else:
        print(sentence_of(found))
    raise typer.Exit(130 if found["stopped"] else 0)
