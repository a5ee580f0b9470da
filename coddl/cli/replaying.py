"""How a trace is replayed: its jobs as requests, submitted when it is time."""

import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from coddl.api.client import Client
from coddl.api.emulation import INTERPRETER, SCRIPT, EmulatedJob
from coddl.cli.waiting import OVER
from coddl.core.errors import UserError
from coddl.traces.files import packaged_speeds, read_speeds, read_trace, small_trace
from coddl.traces.generators import GENERATORS

if TYPE_CHECKING:
    from coddl.traces.trace import Trace

LOOK_EVERY_S: Final = 0.5
PAGE: Final = 500
SAMPLE: Final = {"model": "resnet50", "iterations": "1000", "gpus": "4"}  # to try a script with

Answer = dict[str, Any]  # Any: JSON


def jobs_of_trace(source: str, speeds: str, load: float, first: int | None) -> "Trace":
    """Read a trace, or generate it."""
    table = read_speeds(speeds) if speeds else None
    if source in GENERATORS and not Path(source).exists():
        trace = GENERATORS[source](table or packaged_speeds())
    else:
        trace = read_trace(source, table) if source else small_trace(table)
    trace = trace.at_load(load)
    return trace if first is None else trace.rows(np.arange(trace.size) < first)


def requests_for(
    client: Client,
    trace: "Trace",
    *,
    gpus: Literal["range", "request"],
    curves: bool,
    script: str,
) -> list[Answer]:
    """Return the jobs of a trace as a pool is asked for them; uploads what they run."""
    what = _script(client, script)
    return [_request(trace, row, what, gpus, curves=curves) for row in range(trace.size)]


Program = Callable[[Mapping[str, str]], Answer]


def _script(client: Client, script: str) -> Program:
    """Return what a job runs, given its model, iterations and GPUs."""
    emulated = [node["python"] == INTERPRETER for node in client.get("/nodes")["items"]]
    if script and any(emulated):
        because = "the nodes of the pool are emulated, and run no scripts"
        raise UserError(f"--script {script} can't be used", because, "coddl replay without it")
    if script:
        return _program(client, script)
    if not (emulated and all(emulated)):
        what = "is not emulated" if emulated else "has no nodes that are known to be emulated"
        raise UserError(
            "the trace can't be replayed",
            f"the pool {what}, and what its jobs are to run is not given",
            '--script "train.py --steps {iterations}"; or coddl up --emulate 16x4',
        )
    return lambda job: {
        "script": SCRIPT,
        "args": EmulatedJob(job["model"], float(job["iterations"])).args,
        "tier": "elastic",
    }


def _program(client: Client, script: str) -> Program:
    """Upload the working directory; give what jobs run there."""
    from coddl.cli.submit import checked, uploaded

    try:
        name, *words = shlex.split(script)
        [word.format_map(SAMPLE) for word in words]
    except (ValueError, KeyError, IndexError) as error:
        because = f"{error} stands for nothing" if isinstance(error, KeyError) else f"{error}"
        names = ", ".join(f"{{{name}}}" for name in SAMPLE)
        raise UserError(
            f"--script {script} can't be used", because, f"words with {names}"
        ) from None
    folder = Path.cwd()
    request = checked({"script": name}, folder)
    request["code"] = uploaded(client, request, folder)
    return lambda job: {**request, "args": [word.format_map(job) for word in words]}


def _request(
    trace: "Trace", row: int, what: Program, gpus: Literal["range", "request"], *, curves: bool
) -> Answer:
    model = trace.speeds.names[trace.curve[row]]
    least, most = int(trace.gpus_min[row]), int(trace.gpus_max[row])
    requested = int(trace.gpus_requested[row])
    if gpus == "request":
        least = most = requested
    bounds: str | dict[str, int] = f"{least}..{most}"
    if least < most:
        bounds = {"min": least, "max": most, "requested": min(max(requested, least), most)}
    iterations = f"{trace.iterations[row]:.17g}"
    words = {"model": model, "iterations": iterations, "gpus": f"{requested}"}
    request = {"name": _name(model, row), "gpus": bounds, **what(words)}
    if curves:
        step_s = trace.speeds.step_s[trace.curve[row]]
        sizes = range(1, min(most, len(step_s) - 1) + 1)
        known = {str(n): float(step_s[n]) for n in sizes if np.isfinite(step_s[n])}
        request["step_s"] = known
    if trace.users != ("",):
        request["user"] = trace.users[trace.user[row]]
    if trace.group is not None and trace.group[row] >= 0:
        request["group"] = trace.groups[trace.group[row]]
    if trace.weight is not None:
        request["weight"] = float(trace.weight[row])
    return request


def _name(model: str, row: int) -> str:
    """Name a job after its model and its place in the trace."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", model).strip("-._")[:48]
    return f"{plain or 'job'}-{row}"


class TraceReplay:
    """Submits the jobs of a trace when it is time, and waits for them."""

    def __init__(
        self, client: Client, trace: "Trace", requests: Sequence[Answer], *, pace: float
    ) -> None:
        """`pace`: how many times as fast as in the trace, by the pool's time."""
        self._client = client
        self._trace = trace
        self._requests = requests
        self._pace = pace
        self._due_s: dict[int, float] = {}  # by job: when, by the pool's time
        self._row: dict[int, int] = {}  # by job

    def run(self, skip: int = 0, *, wait: bool = True) -> Answer:
        """Submit all jobs but the first ones; Ctrl-C ends that, and the jobs go on."""
        stopped = False
        with _bar(len(self._requests) - skip) as tell:
            try:
                self._submit(skip, tell)
                if wait:
                    self._wait(tell)
            except KeyboardInterrupt:
                stopped = True
        if stopped and len(self._row) < len(self._requests) - skip:
            at = skip + len(self._row)
            print(
                f"stopped: {at} of {len(self._requests)} jobs are submitted, and go on; "
                f"the rest: the same command with --from {at}",
                file=sys.stderr,
            )
        return self._found(stopped=stopped)

    def _submit(self, skip: int, tell: Callable[[int, int], None]) -> None:
        submitted_s = self._trace.submitted_s
        pool = self._client.get("/pool")
        began_s, pool_s = time.monotonic(), pool["now_s"]
        scale = pool["time_scale"]
        for row in range(skip, len(self._requests)):
            after_s = float(submitted_s[row] - submitted_s[skip]) / self._pace  # of the pool's time
            while (left_s := began_s + after_s / scale - time.monotonic()) > 0:
                time.sleep(min(left_s, LOOK_EVERY_S))
                if left_s > LOOK_EVERY_S:
                    tell(len(self._row), 0)
            job = self._client.submit(self._requests[row])
            self._row[job["id"]], self._due_s[job["id"]] = row, pool_s + after_s
            tell(len(self._row), 0)

    def _wait(self, tell: Callable[[int, int], None]) -> None:
        while left := {job["id"] for job in self._jobs(active=True)}:
            tell(len(self._row), len(self._row) - len(left))
            time.sleep(LOOK_EVERY_S)

    def _jobs(self, *, active: bool | None) -> Iterator[Answer]:
        """Yield the jobs of this replay, as they are now."""
        cursor = None
        while True:
            page = self._client.get("/jobs", active=active, limit=PAGE, cursor=cursor)
            yield from (job for job in page["items"] if job["id"] in self._row)
            if (cursor := page["next"]) is None:
                return

    def _found(self, *, stopped: bool) -> Answer:
        jobs = sorted(
            (self._told(job) for job in self._jobs(active=None)), key=lambda job: job["row"]
        )
        jct_s = [job["jct_s"] for job in jobs if job["state"] == "SUCCEEDED"]
        return {
            "trace": self._trace.name,
            "stopped": stopped,
            "submitted": len(jobs),
            "succeeded": len(jct_s),
            "over": sum(job["state"] in OVER for job in jobs),
            "avg_jct_s": sum(jct_s) / len(jct_s) if jct_s else None,
            "late_s": max((job["late_s"] for job in jobs), default=None),
            "jobs": jobs,
        }

    def _told(self, job: Answer) -> Answer:
        keys = ("id", "name", "state", "submitted_s", "started_s", "ended_s", "jct_s")
        kept = {key: job[key] for key in (*keys, "resizes", "restarts")}
        late_s = job["submitted_s"] - self._due_s[job["id"]]
        return {"row": self._row[job["id"]], **kept, "late_s": late_s}


@contextmanager
def _bar(jobs: int) -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal how many jobs were submitted, and have ended."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        submitted, ended = (bar.add_task(each, total=jobs) for each in ("submitted", "ended"))

        def tell(done: int, over: int) -> None:
            bar.update(submitted, completed=done)
            if over:
                bar.update(ended, completed=over)

        yield tell


def sentence_of(found: Answer) -> str:
    """Return a sentence with the numbers of submitted, finished and failed jobs."""
    count = found["submitted"]
    said = f"{count} job{'' if count == 1 else 's'} submitted, {found['succeeded']} finished"
    if failed := found["over"] - found["succeeded"]:
        said += f", {failed} failed or cancelled"
    if found["avg_jct_s"] is not None:
        said += f"; average JCT {found['avg_jct_s']:,.0f} s"
    return said
