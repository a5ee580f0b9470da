"""Follow what happens in the pool: logs, events, wait."""

import json
import time
from typing import TYPE_CHECKING, Annotated, Final, NoReturn, get_args

import typer

from coddl.cli.connect import (
    JobName,
    Server,
    StateDir,
    complete_jobs,
    connect,
    note,
    pool_time_s,
)
from coddl.cli.output import AsJson, Output, wants_json
from coddl.cli.spans import read_span
from coddl.core.errors import UserError
from coddl.core.lifecycle import Phase

if TYPE_CHECKING:
    from coddl.api.client import Answer, Client

LOGS_EXAMPLES = """
Examples:

  coddl logs bert                        all output of the job

  coddl logs -f bert                     follow it until the job ends

  coddl logs --rank 0 --since 10m bert   one worker, last 10 minutes
"""
EVENTS_EXAMPLES = """
Examples:

  coddl events                 latest events of the pool

  coddl events bert            events of one job

  coddl events -w -o json      follow, one JSON object per line
"""
WAIT_EXAMPLES = """
Examples:

  coddl wait bert                          until it has ended

  coddl wait 12 --for RUNNING --timeout 60
"""
STATES: Final = tuple(phase.upper() for phase in get_args(Phase))
SHOWN: Final = 50
SHOWN_MAX: Final = 1000

Follow = Annotated[
    bool, typer.Option("-f", "--follow", help="Follow the output until the job ends.")
]
Tail = Annotated[int | None, typer.Option(min=0, metavar="N", help="Only the last N lines.")]
Rank = Annotated[int | None, typer.Option(min=0, metavar="R", help="Only lines of this worker.")]
Since = Annotated[
    str, typer.Option(metavar="TIME", help="Only lines since then: 30s, 10m, 2h or 1d ago.")
]
Watch = Annotated[bool, typer.Option("-w", "--watch", help="Follow new events.")]
Last = Annotated[
    int,
    typer.Option(
        "--tail", min=0, max=SHOWN_MAX, metavar="N", help="Number of past events to show."
    ),
]
OptionalJob = Annotated[
    str,
    typer.Argument(metavar="JOB", help="Only events of this job.", autocompletion=complete_jobs),
]
ForState = Annotated[
    str,
    typer.Option("--for", metavar="STATE", help="Wait for this state (default: any final state)."),
]
Timeout = Annotated[float | None, typer.Option(min=0, metavar="S", help="Give up after S seconds.")]


def logs(
    *,
    job: JobName,
    follow: Follow = False,
    tail: Tail = None,
    rank: Rank = None,
    since: Since = "",
    server: Server = "",
    state_dir: StateDir = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Show the output of a job, each line with the rank of its worker.

    With -f, the exit code tells how the job ended: 0 SUCCEEDED, 100 FAILED, 103 CANCELLED.
    """
    from coddl.api.client import in_path
    from coddl.cli.poolview import log_line

    since_s = time.time() - read_span("--since", since) if since else None
    path = f"/jobs/{in_path(job)}/logs"
    for_program = wants_json(output, as_json)
    wants_all = tail is rank is since_s is None

    def tell(line: "Answer", *, is_first: bool) -> None:
        if wants_all and is_first and (earlier := line["number"] - 1):
            lines = "line was" if earlier == 1 else "lines were"
            note(f"{earlier:,} earlier {lines} removed: the pool keeps only a job's last lines")
        print(json.dumps(line) if for_program else log_line(line), flush=True)

    with connect(server, state_dir) as client:
        if not follow:
            found = client.get(path, tail=tail, rank=rank, since_s=since_s)
            for place, line in enumerate(found["items"]):
                tell(line, is_first=not place)
            if found.get("removed"):
                note(found["removed"])
            return
        try:
            said = client.watch(path, tail=tail, rank=rank, since_s=since_s, follow=True)
            for place, each in enumerate(said):
                if each.kind != "end":
                    tell(each.data, is_first=not place)
        except KeyboardInterrupt:
            detached(job)
        from coddl.cli.waiting import exit_code_of

        raise typer.Exit(exit_code_of(client.get(f"/jobs/{in_path(job)}")))


def detached(job: str) -> NoReturn:
    """Exit at Ctrl-C; the job is not affected."""
    note(f"{job} keeps running; stop it: coddl cancel {job}, wait for it: coddl wait {job}")
    raise typer.Exit(130)


def events(
    *,
    job: OptionalJob = "",
    watch: Watch = False,
    tail: Last = SHOWN,
    server: Server = "",
    state_dir: StateDir = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Show the events of the pool: all changes, and every decision with its reason."""
    from coddl.api.client import in_path
    from coddl.cli.poolview import event_line, show

    for_program = wants_json(output, as_json)

    def tell(event: "Answer", now_s: float) -> None:
        if for_program:
            print(json.dumps(event), flush=True)
        else:
            show([event_line(event, max(now_s, event["at_s"]))])

    with connect(server, state_dir) as client:
        now_s = 0.0 if for_program else pool_time_s(client)
        number = client.get(f"/jobs/{in_path(job)}")["id"] if job else None
        found, after = last_events(client, number, tail)
        for event in found:
            tell(event, now_s)
        if watch:
            for said in client.watch("/events", after=after, watch=True):
                if number is None or _concerns(said.data, number):
                    tell(said.data, now_s)


def last_events(client: "Client", job: int | None, count: int) -> "tuple[list[Answer], int]":
    """Return the newest events, of one job or of all, and the number after which more will come."""
    page = client.get("/events" if job is None else f"/jobs/{job}/events", limit=max(count, 1))
    return page["items"][-count:] if count else [], int(page["next"])


def _concerns(event: "Answer", job: int) -> bool:
    """Return whether an event is about a job; a decision may be about many."""
    detail = event["detail"]
    others = (*detail.get("targets", ()), *detail.get("waiting", ()))
    return event["job"] == job or str(job) in map(str, others)


def wait(
    job: JobName,
    state: ForState = "",
    timeout: Timeout = None,
    server: Server = "",
    state_dir: StateDir = "",
    *,
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Wait until a job has ended or is in a given state.

    The exit code tells how it ended: 0 SUCCEEDED, 100 FAILED, 103 CANCELLED; 124 is a timeout.
    """
    from coddl.cli.poolview import change_line, end_sentence
    from coddl.cli.waiting import OVER, exit_code_of, has_come, wait_for

    state = state.upper()
    if state and state not in STATES:
        raise UserError(
            f"--for {state} can't be used",
            f'"{state}" is not a state of a job',
            f"one of {', '.join(STATES)}",
        )
    with connect(server, state_dir) as client:
        try:
            found = wait_for(client, job, state, within_s=timeout)
        except KeyboardInterrupt:
            detached(job)
    if wants_json(output, as_json):
        print(json.dumps(found, indent=2))
    else:
        print(end_sentence(found) if found["state"] in OVER else change_line(found))
    if state and has_come(found, state):
        raise typer.Exit(0)
    raise typer.Exit(exit_code_of(found) or (1 if state else 0))
