"""Look at the pool's jobs and change them: ls, describe, explain, cancel, suspend, resume, resize.

Some also serve the jobs of `coddl run` on this machine, which have names only.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from coddl.cli.connect import (
    JobName,
    JobNames,
    Server,
    StateDir,
    complete_jobs,
    connect,
    find_server,
    note,
    pool_time_s,
)
from coddl.cli.output import AsJson, Output, wants_json
from coddl.core.errors import CoddlError, UserError

if TYPE_CHECKING:
    from coddl.api.client import Client

LS_EXAMPLES = """
Examples:

  coddl ls                     active jobs

  coddl ls --all -w            also jobs that have ended, updated as they change

  coddl ls --all --limit 5000  more of them than the newest 500

  coddl ls -o json             for programs

  coddl ls --local             jobs of coddl run on this machine
"""
DESCRIBE_EXAMPLES = "Examples:  coddl describe bert   coddl describe 12 -o json"
EXPLAIN_EXAMPLES = "Examples:  coddl explain bert   coddl explain 12 -o json"
CANCEL_EXAMPLES = "Examples:  coddl cancel bert   coddl cancel --wait 12 13 14"
SUSPEND_EXAMPLES = "Examples:  coddl suspend bert   coddl suspend 12 --no-wait"
RESUME_EXAMPLES = """
Examples:

  coddl resume 12              a job of the pool

  coddl resume bert 2          a job of coddl run, with 2 workers
"""
RESIZE_EXAMPLES = """
Examples:

  coddl resize 12 2..4         the pool gives job 12 between 2 and 4 GPUs

  coddl resize 12 2            exactly 2 GPUs

  coddl resize bert 4          a job of coddl run on this machine: 4 workers
"""
PRIORITY_EXAMPLES = "Examples:  coddl priority bert 10   coddl priority 12 -5"
PAGE: Final = 200
SHOWN: Final = 500  # jobs that have ended, unless more are asked for
LAST_EVENTS: Final = 10
LOOK_EVERY_S: Final = 1.0

NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Return at once; do not wait until it is done.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the jobs have ended.")]
All = Annotated[bool, typer.Option("--all", "-a", help="Include jobs that have ended.")]
Limit = Annotated[
    int, typer.Option(min=1, metavar="N", help="With --all: the newest N jobs, and active ones.")
]
Watch = Annotated[bool, typer.Option("-w", "--watch", help="Update the list as it changes.")]
Local = Annotated[bool, typer.Option("--local", help="List jobs of `coddl run` on this machine.")]
Size = Annotated[str, typer.Argument(metavar="N|MIN..MAX", help="Number of GPUs, or bounds.")]
Priority = Annotated[int, typer.Argument(metavar="N", help="Any whole number; jobs start with 0.")]
LocalOrPool = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="Number or name of a job of the pool, or name of a job of `coddl run`.",
        autocompletion=complete_jobs,
    ),
]


def ls(
    *,
    all_: All = False,
    limit: Limit = SHOWN,
    watch: Watch = False,
    local: Local = False,
    server: Server = "",
    state_dir: StateDir = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """List the jobs of the pool: state, GPUs (held/bounds), progress, and the reason."""
    if local:
        from coddl.cli.run import list_local

        list_local(for_program=wants_json(output, as_json))
        return
    with connect(server, state_dir) as client:
        if watch:
            _watch(client, limit if all_ else 0, wants_json(output, as_json))
            return
        jobs = jobs_of(client, limit if all_ else 0)
        if all_ and len(jobs) >= limit:
            note(f"only the newest {limit:,} jobs are listed; --limit lists more")
        if wants_json(output, as_json):
            print(json.dumps(jobs, indent=2))
        else:
            from rich.console import Console

            from coddl.cli.poolview import jobs_lines, show

            console = Console(highlight=False)
            width = console.width if console.is_terminal else None
            show(jobs_lines(jobs, time.time(), width), console, one_line_each=True)


def jobs_of(client: "Client", ended: int = 0) -> list[dict[str, Any]]:
    """Return the active jobs of the pool, and the newest of all; in the order of their numbers."""
    found = {job["id"]: job for job in _pages(client, True, None)}
    found |= {job["id"]: job for job in _pages(client, None, ended)}
    return [found[number] for number in sorted(found)]


def _pages(client: "Client", active: bool | None, most: int | None) -> Iterator[dict[str, Any]]:
    """Yield jobs, the newest first; no more than `most`, if that is given."""
    left, cursor = most, None
    while left is None or left > 0:
        limit = PAGE if left is None else min(PAGE, left)
        page = client.get("/jobs", active=active, limit=limit, cursor=cursor)
        yield from page["items"]
        left = None if left is None else left - len(page["items"])
        if (cursor := page["next"]) is None:
            return


def cancel_all(client: "Client") -> list[dict[str, Any]]:
    """Cancel all jobs, and give them. One that has ended meanwhile needs no word."""
    from coddl.api.client import RequestRefused

    jobs = jobs_of(client)
    for job in jobs:
        try:
            client.post(f"/jobs/{job['id']}:cancel")
        except RequestRefused as refused:
            if refused.status != HTTPStatus.CONFLICT:
                raise
    return jobs


def _watch(client: "Client", ended: int, for_program: bool) -> None:
    """Show the jobs again and again, until Ctrl-C."""
    from rich.console import Console, Group
    from rich.live import Live

    from coddl.cli.poolview import jobs_lines, show

    console = Console(highlight=False)
    if for_program or not console.is_terminal:
        last: object = None
        while True:
            jobs = jobs_of(client, ended)
            if last != (last := jobs):
                if for_program:
                    print(json.dumps(jobs), flush=True)
                else:
                    show([*jobs_lines(jobs, time.time())], console, one_line_each=True)
            time.sleep(LOOK_EVERY_S)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            lines = jobs_lines(jobs_of(client, ended), time.time(), console.width)
            for line in lines:
                line.truncate(console.width, overflow="ellipsis")
            live.update(Group(*lines), refresh=True)
            time.sleep(LOOK_EVERY_S)


def describe(
    job: JobName,
    server: Server = "",
    state_dir: StateDir = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Show the details of a job and its latest events."""
    from coddl.api.client import in_path

    with connect(server, state_dir) as client:
        found = client.get(f"/jobs/{in_path(job)}")
        if wants_json(output, as_json):
            print(json.dumps(found, indent=2))
            return
        from coddl.cli.following import last_events

        events, _ = last_events(client, int(found["id"]), LAST_EVENTS)
        now_s = pool_time_s(client)
    from coddl.cli.poolview import describe_lines, show

    show(describe_lines(found, events, now_s))


def explain(
    job: JobName,
    server: Server = "",
    state_dir: StateDir = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Explain why a job waits or has its number of GPUs: reason, measured speeds, history."""
    from coddl.api.client import in_path

    with connect(server, state_dir) as client:
        told = client.get(f"/jobs/{in_path(job)}/explain")
        if wants_json(output, as_json):
            print(json.dumps(told, indent=2))
            return
        now_s = pool_time_s(client)
    from coddl.cli.poolview import explain_lines, show

    show(explain_lines(told, now_s))


def cancel(
    jobs: JobNames,
    wait: Wait = False,
    server: Server = "",
    state_dir: StateDir = "",
    *,
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Stop jobs of the pool permanently, without saving their state."""
    from coddl.api.client import in_path
    from coddl.cli.waiting import wait_for

    done, code = list[Mapping[str, Any]](), 0
    with connect(server, state_dir) as client:
        for job in jobs:
            try:
                done.append(client.post(f"/jobs/{in_path(job)}:cancel"))
            except CoddlError as error:  # the others are cancelled all the same
                print(f"error: {error}", file=sys.stderr)
                code = code or error.exit_code
        if wait:  # after all requests are sent, so that the jobs stop at the same time
            done = [wait_for(client, str(job["id"])) for job in done]
    if wants_json(output, as_json):
        print(json.dumps(done, indent=2))
    else:
        for each in done:
            print(f"{each['name']} (job {each['id']}): {each['state']}")
    raise typer.Exit(code)


def suspend(
    job: LocalOrPool,
    no_wait: NoWait = False,
    server: Server = "",
    state_dir: StateDir = "",
    *,
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Make a job save its state and release its GPUs until `coddl resume`."""
    for_program = wants_json(output, as_json)
    if is_local(job, server, state_dir):
        from coddl.cli.run import suspend_local

        suspend_local(job, wait=not no_wait, for_program=for_program)
        return
    from coddl.api.client import in_path

    with connect(server, state_dir) as client:
        found = client.post(f"/jobs/{in_path(job)}:suspend")
        if not no_wait:
            from coddl.cli.poolview import change_line
            from coddl.cli.waiting import check_saved, wait_for

            name = str(found["id"])
            slow = None if for_program else lambda job: note(change_line(job))
            found = wait_for(client, name, "SUSPENDED", tell_slow=slow, check=check_saved)
    is_saved = found["state"] == "SUSPENDED" and found["tier"] == "elastic"
    saved = f" at step {found['step']:,}; its state is saved" if is_saved else ""
    if parked := found.get("parked"):
        saved += f", and its workers are parked on {parked['node']}"
    _tell(found, f"{found['state']}{saved}", for_program)


def resume(
    job: LocalOrPool,
    workers: Annotated[
        int | None,
        typer.Argument(metavar="N", help="Number of workers; for jobs of `coddl run` only."),
    ] = None,
    no_wait: NoWait = False,
    server: Server = "",
    state_dir: StateDir = "",
    *,
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Continue a suspended job; in a pool, as soon as the policy gives it GPUs."""
    for_program = wants_json(output, as_json)
    if is_local(job, server, state_dir):
        from coddl.cli.run import resume_local

        resume_local(job, workers, wait=not no_wait, for_program=for_program)
        return
    if workers is not None:
        raise UserError(
            f"{job} can't be resumed with {workers} worker{'' if workers == 1 else 's'}",
            "in a pool, the policy decides how many GPUs a job gets",
            f"coddl resize {job} {workers}, then coddl resume {job}",
        )
    from coddl.api.client import in_path

    with connect(server, state_dir) as client:
        found = client.post(f"/jobs/{in_path(job)}:resume")
    _tell(found, f"{found['state']}, {found['reason']}".rstrip(", "), for_program)


def resize(
    job: LocalOrPool,
    size: Size,
    no_wait: NoWait = False,
    server: Server = "",
    state_dir: StateDir = "",
    *,
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Set the bounds on a job's GPUs; for jobs of `coddl run`, its number of workers."""
    for_program = wants_json(output, as_json)
    least, most = read_size(size)
    if is_local(job, server, state_dir):
        if least != most:
            raise UserError(
                f"{job} can't be resized to {size}",
                "a job of coddl run has a number of workers, not bounds",
                f"coddl resize {job} {most}",
            )
        from coddl.cli.run import resize_local

        resize_local(job, least, wait=not no_wait, for_program=for_program)
        return
    from coddl.api.client import in_path

    with connect(server, state_dir) as client:
        before = client.get(f"/jobs/{in_path(job)}")
        found = client.patch(f"/jobs/{before['id']}", {"gpus_min": least, "gpus_max": most})
    from coddl.cli.poolview import bounds

    was, now = (bounds(each["gpus_min"], each["gpus_max"]) for each in (before, found))
    _tell(found, f"bounds {was} → {now}; it has {found['gpus']} now", for_program)


def priority(
    job: JobName,
    value: Priority,
    server: Server = "",
    state_dir: StateDir = "",
    *,
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Set the priority of a job; jobs with a higher priority get GPUs first."""
    from coddl.api.client import in_path

    with connect(server, state_dir) as client:
        before = client.get(f"/jobs/{in_path(job)}")
        found = client.patch(f"/jobs/{before['id']}", {"priority": value})
    words = f"priority {before['priority']} → {found['priority']}"
    _tell(found, words, wants_json(output, as_json))


def read_size(text: str) -> tuple[int, int]:
    """Read `4` or `2..8`."""
    least, dots, most = text.partition("..")
    most = most if dots else least
    if not (least.isdecimal() and most.isdecimal() and 1 <= int(least) <= int(most)):
        raise UserError(
            f"{text} can't be used as a size",
            f'"{text}" is neither a number above 0 nor a range MIN..MAX',
            "4, or 1..8",
        )
    return int(least), int(most)


def is_local(name: str, server: str, state_dir: str) -> bool:
    """Return whether a name means a job of `coddl run` here; print a note if the pool has one, too.

    A number is the pool's. A name is that of a job which runs here, else the pool's. Where there is
    no pool, all names are of here.
    """
    from coddl.cli.run import running_here

    if server:
        return False
    runs_here, is_pool = name in running_here(), _has_pool(state_dir)
    if not (runs_here and is_pool):
        return runs_here or not is_pool
    if name.isdecimal():
        note(f"using job {name} of the pool; a job of coddl run here is also named {name}")
        return False
    if (number := _number_in_pool(name, state_dir)) is not None:
        note(f"using {name} of coddl run on this machine; in the pool, {name} is job {number}")
    return True


def _has_pool(state_dir: str) -> bool:
    from coddl.api.client import Unreachable

    try:
        find_server("", state_dir)
    except Unreachable:
        return False
    return True


def _number_in_pool(name: str, state_dir: str) -> int | None:
    from coddl.api.client import Client, in_path
    from coddl.cli.waiting import OVER

    try:
        with Client(find_server("", state_dir), within_s=5.0) as client:
            job = client.get(f"/jobs/{in_path(name)}")
    except UserError:
        return None
    return None if job["state"] in OVER else int(job["id"])


def _tell(job: dict[str, Any], text: str, for_program: bool) -> None:
    print(json.dumps(job, indent=2) if for_program else f"{job['name']} (job {job['id']}): {text}")
