"""`coddl run` and its companions: one elastic job on this machine, without a pool."""

import contextlib
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from coddl.cli.connect import note_own_options
from coddl.cli.engines import folder_at
from coddl.cli.output import AsJson, Output, wants_json
from coddl.cli.profile import ProfileFile
from coddl.core.errors import UserError

if TYPE_CHECKING:
    from coddl.runtime.supervisor.job import Job

EXAMPLES = """
Examples:

  coddl run train.py --epochs 3             one worker per GPU

  coddl run --workers 1..8 --name bert train.py

  coddl resize bert 4                       in another terminal

  coddl run --resize 100:4,500:2 train.py   4 workers at step 100, 2 at 500

  coddl run --trace trace.json train.py     open it at ui.perfetto.dev

  coddl run --profile profile.json train.py   what one worker has measured
"""

Script = Annotated[str, typer.Argument(metavar="SCRIPT", help="Script that calls coddl.prepare.")]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="ARGS...", help="Arguments of the script.")
]
Workers = Annotated[
    str,
    typer.Option(
        metavar="N|MIN..MAX",
        help="Number of workers, or bounds (default: one per GPU; without GPUs, 1).",
    ),
]
Resizes = Annotated[
    str, typer.Option(metavar="STEP:N,…", help="Change the number of workers at these steps.")
]
Name = Annotated[
    str, typer.Option(metavar="NAME", help="Name of the job (default: the script's name).")
]
Every = Annotated[
    float,
    typer.Option("--checkpoint-every", metavar="S", min=0.1, help="Seconds between checkpoints."),
]
Folder = Annotated[
    str,
    typer.Option(
        metavar="DIR", help="Directory for checkpoints (default: ~/.local/state/coddl/NAME)."
    ),
]
Keep = Annotated[
    bool, typer.Option("--keep-checkpoints", help="Keep checkpoints after the job has succeeded.")
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Start over and remove the checkpoints of earlier runs.")
]
Port = Annotated[
    int,
    typer.Option(
        min=0,
        max=65535,
        metavar="PORT",
        help="Port of the workers' rendezvous on 127.0.0.1; 0: any free one.",
    ),
]
Python = Annotated[str, typer.Option(metavar="EXE", help="Python interpreter of the workers.")]
Watchdog = Annotated[
    float,
    typer.Option(metavar="S", min=1, help="Replace a worker whose loop is silent for S seconds."),
]
TraceFile = Annotated[
    str, typer.Option(metavar="FILE", help="Write a timeline for ui.perfetto.dev.")
]
Profile = Annotated[
    str,
    typer.Option(metavar="FILE", help="Write what one worker has measured of the training."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show only the script's output and errors.")]


def run(
    *,
    context: typer.Context,
    script: Script,
    args: Arguments = None,
    workers: Workers = "",
    resize: Resizes = "",
    name: Name = "",
    checkpoint_every_s: Every = 60.0,
    checkpoint_dir: Folder = "",
    keep_checkpoints: Keep = False,
    fresh: Fresh = False,
    port: Port = 0,
    python: Python = "",
    watchdog: Watchdog = 1800.0,
    trace: TraceFile = "",
    profile: Profile = "",
    quiet: Quiet = False,
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Run a training script on this machine with a resizable number of workers and checkpoints."""
    from coddl.runtime.supervisor.environment import without_launcher
    from coddl.runtime.supervisor.job import Job
    from coddl.runtime.supervisor.jobdir import check_name, default_folder

    path = _script(script)
    note_own_options(context, args or [])
    with user_errors():
        name = check_name(name or re.sub(r"[^A-Za-z0-9._-]+|^[._-]+", "-", path.stem).strip("-"))
        job = Job(
            name=name,
            script=path,
            argv=(script, *(args or ())),
            cwd=Path.cwd(),
            env=without_launcher(os.environ),
            folder=folder_at("--checkpoint-dir", checkpoint_dir)
            if checkpoint_dir
            else default_folder(name),
            python=_interpreter(python),
            resizes=_resizes(resize),
            checkpoint_every_s=checkpoint_every_s,
            keep_checkpoints=keep_checkpoints,
            fresh=fresh,
            port=port,
            watchdog_s=watchdog,
            trace=Path(trace).absolute() if trace else None,
            **_sizes(workers),
        )
        for _, size in job.resizes:
            job.check_size(size, None)
        kept = ProfileFile(profile) if profile else None
        code = _supervise(job, kept, for_program=wants_json(output, as_json), quiet=quiet)
        if kept is not None:
            kept.write()
    raise typer.Exit(code)


def _supervise(job: "Job", kept: ProfileFile | None, *, for_program: bool, quiet: bool) -> int:
    from coddl.cli.runview import JsonRunView, TextRunView
    from coddl.runtime.supervisor.supervisor import Supervisor

    view = JsonRunView() if for_program else TextRunView(quiet=quiet)

    def tell(event: dict[str, Any]) -> None:
        view.tell(event)
        if kept is not None:
            kept.hear(event)

    supervisor = Supervisor(job, tell)

    def interrupt(_signal: int, _frame: object) -> None:
        supervisor.interrupt()

    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) != signal.SIG_IGN:  # as under nohup
            signal.signal(each, interrupt)
    try:
        with contextlib.closing(view):
            return supervisor.run()
    except BrokenPipeError:  # its reader is gone, as in `coddl run ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def resize_local(name: str, workers: int, *, wait: bool, for_program: bool) -> None:
    """Change how many workers a job of this machine has."""
    _ask(name, {"do": "resize", "workers": workers, "wait": wait}, for_program)


def suspend_local(name: str, *, wait: bool, for_program: bool) -> None:
    """Have a job of this machine save its state and free its GPUs; its supervisor stays."""
    _ask(name, {"do": "suspend", "wait": wait}, for_program)


def resume_local(name: str, workers: int | None, *, wait: bool, for_program: bool) -> None:
    """Let a suspended job of this machine go on, at any size."""
    _ask(name, {"do": "resume", "workers": workers, "wait": wait}, for_program)


def list_local(*, for_program: bool) -> None:
    """List the jobs of `coddl run` on this machine."""
    from coddl.cli.runview import jobs_table
    from coddl.runtime.errors import TrainingError
    from coddl.runtime.supervisor.control_socket import asked, running

    jobs = []
    with user_errors():
        for name in running():
            with contextlib.suppress(TrainingError):  # it ended just now
                jobs.append(asked(name, {"do": "status"}))
    print(json.dumps(jobs, indent=2) if for_program else jobs_table(jobs))


def running_here() -> list[str]:
    """Name the jobs of `coddl run` on this machine."""
    from coddl.runtime.supervisor.control_socket import running

    with user_errors():
        return running()


def _ask(name: str, request: dict[str, Any], for_program: bool) -> None:
    from coddl.cli.runview import change_sentence, counted
    from coddl.runtime.supervisor.control_socket import asked

    with user_errors():
        answer = asked(name, request)
    if for_program:
        print(json.dumps(answer, indent=2))
    elif "change" not in answer:
        print(f"{name}: asked for {counted(answer['target'], 'worker')}")
    elif answer["change"] is None:
        print(f"{name}: already has {counted(answer['target'], 'worker')}")
    else:
        print(f"{name}: {change_sentence(answer['change'])}")


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Show what the runtime refuses as any other error of the command line."""
    from coddl.runtime.errors import TrainingError

    try:
        yield
    except TrainingError as error:
        raise UserError(error.what, error.because, error.try_) from None


def _script(script: str) -> Path:
    path = Path(script).absolute()
    if not path.is_file():
        because = "it is a directory" if path.is_dir() else "there is no such file"
        raise UserError(f"{script} can't be run", because, "coddl run train.py")
    return path


def _interpreter(python: str) -> str:
    if not python:
        return sys.executable
    if (found := shutil.which(python)) is None:
        raise UserError(
            f"--python {python} can't be used", "there is no such program", "--python python3"
        )
    return found


WORKERS_MAX: Final = 1024


def _sizes(text: str) -> dict[str, Any]:
    """Read `4` or `2..8` into fields of a job."""
    if not text:
        return {}
    least, dots, most = text.partition("..")
    if max([0, *(int(part) for part in (least, most) if part.isdecimal())]) > WORKERS_MAX:
        raise UserError(
            f"--workers {text} can't be used",
            f"one machine runs at most {WORKERS_MAX} workers of a job",
            f"--workers {WORKERS_MAX}",
        )
    if least.isdecimal() and not dots and int(least) >= 1:
        return {"workers": int(least)}
    if least.isdecimal() and most.isdecimal() and 1 <= int(least) <= int(most):
        return {"workers_min": int(least), "workers_max": int(most)}
    raise UserError(
        f"--workers {text} can't be used",
        f'"{text}" is neither a number above 0 nor a range MIN..MAX',
        "--workers 4 or --workers 1..8",
    )


def _resizes(text: str) -> tuple[tuple[int, int], ...]:
    """Read `100:4,200:2`."""
    found = []
    for part in text.split(",") if text else ():
        step, _, workers = part.strip().partition(":")
        if not (step.isdecimal() and workers.isdecimal() and int(workers) >= 1):
            raise UserError(
                f"--resize {text} can't be used",
                f'"{part}" is not STEP:N with a whole number of workers above 0',
                "--resize 100:4,200:2",
            )
        found.append((int(step), int(workers)))
    return tuple(sorted(found))
