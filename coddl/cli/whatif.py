"""`coddl whatif`: a pool's own journal replayed under other policies, or with other GPUs."""

import datetime
import json
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from coddl.cli.connect import StateDir, complete_policies, needs
from coddl.cli.output import AsJson, Output, wants_json, without_nan
from coddl.cli.simulate import ReportFile, check_writable, watched
from coddl.core.errors import UserError

if TYPE_CHECKING:
    from coddl.core.policies.policy import Policy
    from coddl.core.pool.recording import Recording
    from coddl.sim.recorded_workload import RecordedWorkload
    from coddl.sim.simulate import Watch
    from coddl.sim.whatif import WhatIf

EXAMPLES: Final = """
Examples:

  coddl whatif                                   the local pool, under a few other policies

  coddl whatif --policy afs-l --policy tiresias-l --since 7d

  coddl whatif --gpus 32 --gpus 64               with other numbers of GPUs

  coddl whatif --since 2026-11-02T08:00 --report whatif.html

  coddl whatif --journal backup/journal.db -o json > whatif.json
"""
GPUS_MAX: Final = 100_000
SPANS_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
TEXT_COLUMNS: Final = 2  # of the table, which are never hidden
Answer = Mapping[str, Any]  # Any: JSON

Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="SPEC",
        help="Policy to try, as NAME or NAME:PARAMETER=VALUE,...; repeat for several. Default: the "
        "pool's own with --gpus, else six policies.",
        autocompletion=complete_policies,
    ),
]
Gpus = Annotated[
    list[int] | None,
    typer.Option(
        metavar="N",
        help="GPUs to try, all the time; repeat for several. Default: those that the pool had, as "
        "they came and went.",
    ),
]
Since = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        help="Replay what happened since then: 90m, 12h, 7d (by the pool's clock), or "
        "2026-11-02T08:00. Default: all.",
    ),
]
JournalAt = Annotated[
    str,
    typer.Option(
        "--journal",
        metavar="URL|PATH",
        envvar="CODDL_JOURNAL",
        help="Journal to read: a state directory, a journal.db, or the URL of a database "
        "(default: that of the pool on this machine). It is only read.",
    ),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        help="Python file with policies of the pool's operator, as for coddl up.",
    ),
]
CoolDown = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        metavar="SECONDS",
        help="The pool's cool-down (default: what its decisions show, else 10).",
    ),
]


def whatif(
    *,
    policy: Policies = None,
    gpus: Gpus = None,
    since: Since = "",
    journal: JournalAt = "",
    plugin: Plugins = None,
    cool_down: CoolDown = None,
    state_dir: StateDir = "",
    report: ReportFile = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Replay what happened in a pool: as it was, and under other policies or with other GPUs."""
    for_program = wants_json(output, as_json)
    for count in gpus or ():
        if not 1 <= count <= GPUS_MAX:
            because = f"a pool has from 1 to {GPUS_MAX:,} GPUs"
            raise UserError(f"--gpus {count} cannot be used", because, "--gpus 64")
    since_of(since or "0", time.time())  # before the journal is read, which may take long
    check_writable({"--report": report})
    with needs("server"):
        from coddl.sim.whatif import what_if

        recording = _recording(journal, state_dir)
        # The clock of an emulated pool is ahead of ours.
        now_s = max(time.time(), recording.until_s)
        since_s = since_of(since, now_s) if since else None
        workload = _workload(recording, since_s, gpus or (), cool_down)
        named = _policies_of(plugin or ())

    def replayed(watch: "Watch") -> "WhatIf":
        return what_if(
            workload, policy or (), gpus or (), named=named, watch=watch, keep_events=bool(report)
        )

    found = _reported(replayed) if for_program else watched(replayed)[0]
    if for_program:
        print(json.dumps(without_nan(found.as_data()), indent=2))
    else:
        show_found(found.as_data(), found.workload.unit)
    if report:
        from coddl.sim.report import write_report

        write_report(
            found.report_runs,
            Path(report),
            title="What if: the pool's own jobs",
            against=found.against_replay,
        )
        print(f"report written to {report}", file=sys.stderr)


def since_of(text: str, now_s: float) -> float:
    """Read `90m`, `12h`, `7d`, seconds since 1970, or a time in ISO's form; without zone, ours."""
    if (span := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)) is not None:
        return now_s - float(span[1]) * SPANS_S[span[2]]
    try:
        at_s = float(text)
    except ValueError:
        try:
            at_s = datetime.datetime.fromisoformat(text).astimezone().timestamp()
        except (ValueError, OSError, OverflowError):
            at_s = math.nan
    if not math.isfinite(at_s):
        raise UserError(
            f"--since {text} cannot be used",
            f'"{text}" is neither a time nor a span of time',
            "--since 7d, --since 12h, or --since 2026-11-02T08:00",
        )
    return at_s


def _recording(journal: str, state_dir: str) -> "Recording":
    """Read what happened in the pool."""
    from coddl.api.client import state_folder
    from coddl.server.journal_reading import read_recording

    return read_recording(journal or str(state_folder(state_dir)))


def _workload(
    recording: "Recording", since_s: float | None, gpus: Sequence[int], cool_down_s: float | None
) -> "RecordedWorkload":
    from coddl.sim.recorded_workload import recorded_workload

    if since_s is not None and since_s >= recording.until_s:
        last = f"the last record is of {_moment(recording.until_s)}"
        raise UserError("there is nothing to replay", last, "an earlier --since")
    return recorded_workload(recording, since_s, gpus=gpus, cool_down_s=cool_down_s)


def _policies_of(plugins: Sequence[Path]) -> Callable[[str], "Policy"]:
    """Know the policies of plug-ins by the names that they have in the pool."""
    from coddl.core.named import is_plugin
    from coddl.plugins import policy_named, registry_of

    registry = registry_of(plugins)

    def named(spec: str) -> "Policy":
        own = plugins and is_plugin(spec) and not Path(spec.partition(".py:")[0] + ".py").exists()
        return registry.policy(spec) if own else policy_named(spec)

    return named


def _reported(replayed: Callable[["Watch"], "WhatIf"]) -> "WhatIf":
    """Run it, and write how far it is to stderr, for programs."""
    from coddl.sim.simulate import Watch

    lock = threading.Lock()  # runs report from threads of their own
    jobs, done, told = 1, 0, -1

    def begin(count: int) -> None:
        nonlocal jobs
        jobs = max(1, count)
        tell(0)

    def tell(more: int) -> None:
        nonlocal done, told
        with lock:
            done += more
            percent = 100 * done // jobs
            if percent > told:
                told = percent
                print(json.dumps({"progress": percent / 100}), file=sys.stderr, flush=True)

    return replayed(Watch(planned=begin, progress=tell))


def show_found(found: Answer, unit: str) -> None:
    """Print the table, and what it rests on."""
    from rich.markup import escape
    from rich.text import Text

    from coddl.cli.poolview import show
    from coddl.cli.table import plain_table, print_widest

    was, runs = found["recorded"], found["runs"]
    rows = [_row("recorded", was, "", unit)]
    for run in runs:
        against = run["mean_against_replay"]
        ratio = "" if run["is_replay"] or against is None else f"{against:.2f}x"
        rows.append(_row("replayed" if run["is_replay"] else "what if", run, ratio, unit))
    span = f"{_moment(found['since_s'])} to {_moment(found['until_s'])}"
    title = escape(f"{_counted(found['jobs'], 'job')}, {span}")
    first, columns = [*rows[0]][:TEXT_COLUMNS], [*rows[0]][TEXT_COLUMNS:]
    print_widest(lambda count: plain_table(title, rows, first, columns[:count]), len(columns))
    left = [
        f"Left out: {_counted(each['count'], 'job')} ({each['why']})." for each in found["left_out"]
    ]
    show([Text(each) for each in [found["sentence"], *left]])


def _row(kind: str, run: Answer, against: str, unit: str) -> dict[str, str]:
    from coddl.cli.table import short_duration as seconds

    jct_s = run["jct_s"]
    return {
        "": kind,
        "policy": run["policy"],
        f"{unit}s".replace(" ", "\n"): str(run["gpus"]),
        "mean\nJCT": seconds(jct_s["mean"]),
        "against\nreplay": against,
        "median": seconds(jct_s["median"]),
        "p95": seconds(jct_s["p95"]),
        "p99": seconds(jct_s["p99"]),
        "makespan": seconds(run["makespan_s"]),
        "in use": "" if run["utilisation"] is None else f"{run['utilisation']:.0%}",
        "resizes": str(run["resizes"]),
    }


def _moment(at_s: float) -> str:
    return datetime.datetime.fromtimestamp(at_s).astimezone().strftime("%Y-%m-%d %H:%M")


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
