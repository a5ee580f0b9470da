"""`coddl submit`: hand a job in to the pool."""

import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from coddl.cli.connect import Server, StateDir, connect, needs, note, note_own_options
from coddl.cli.output import AsJson, Output, wants_json
from coddl.cli.plain_command import PlainCommand
from coddl.core.errors import UserError

if TYPE_CHECKING:
    from coddl.api.client import Client

EXAMPLES = """
Examples:

  coddl submit train.py --epochs 3                 any number of GPUs

  coddl submit --gpus 2..8 --name bert train.py    between 2 and 8

  coddl submit --gpus 4 --precheck "python check.py" -- torchrun train.py

  coddl submit -f job.yaml --priority 5            options override the file

  coddl submit --dry-run train.py                  only show the effect

  JOB=$(coddl submit --parsable train.py) && coddl wait $JOB
"""
SEPARATED: Final = "separated"  # by "--": what follows is a command

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SCRIPT [ARGS]... | -- CMD...",
        help="Script with its arguments, or any command after --.",
    ),
]
SpecFile = Annotated[
    str,
    typer.Option(
        "-f", "--file", metavar="FILE", help="Job description in YAML or JSON; - reads stdin."
    ),
]
Gpus = Annotated[
    str,
    typer.Option(
        metavar="N|MIN..MAX",
        help="Number of GPUs, or bounds (default: 1; any number for an elastic script).",
    ),
]
Name = Annotated[
    str, typer.Option(metavar="NAME", help="Name of the job (default: the script's name).")
]
Priority = Annotated[
    int | None,
    typer.Option(metavar="N", help="Jobs with a higher priority get GPUs first (default: 0)."),
]
Group = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Group of jobs (e.g. a sweep) that fair policies treat as one."
    ),
]
Weight = Annotated[
    float | None,
    typer.Option(metavar="X", help="Relative length of its time slices, for gandiva (default: 1)."),
]
Env = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="K=V", help="Environment variable; repeat for several."),
]
Python = Annotated[
    str, typer.Option(metavar="EXE", help="Python interpreter on the nodes (default: the agent's).")
]
TierOption = Annotated[
    Literal["elastic", "restartable", "opaque"] | None,
    typer.Option(
        metavar="TIER",
        help="elastic: calls coddl.prepare (default for a .py script); restartable: saves its own "
        "state at SIGTERM; opaque: any command (default after --).",
    ),
]
Precheck = Annotated[
    str,
    typer.Option(metavar="CMD", help="Command that must succeed on 1 GPU before the job starts."),
]
Wait = Annotated[
    bool, typer.Option("--wait", help="Wait until the job ends; exit with 100 if it fails.")
]
Parsable = Annotated[bool, typer.Option("--parsable", help="Print only the job number.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the effect on all jobs; submit nothing.")
]
Schema = Annotated[
    bool, typer.Option("--schema", help="Print the JSON Schema of a job file and exit.")
]


class SubmitCommand(PlainCommand):
    """Remembers whether `--` stood before what is to be run: then it is a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # Any: typer's own click
        given = list(args)
        rest = super().parse_args(ctx, args)
        count = len(ctx.params.get("words") or ())
        ctx.meta[SEPARATED] = 0 < count < len(given) and given[-count - 1] == "--"
        return rest


def submit(
    *,
    context: typer.Context,
    words: Words = None,
    file: SpecFile = "",
    gpus: Gpus = "",
    name: Name = "",
    priority: Priority = None,
    group: Group = "",
    weight: Weight = None,
    env: Env = None,
    python: Python = "",
    tier: TierOption = None,
    precheck: Precheck = "",
    wait: Wait = False,
    parsable: Parsable = False,
    dry_run: DryRun = False,
    schema: Schema = False,
    server: Server = "",
    state_dir: StateDir = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Submit a training job; the pool decides how many GPUs it gets, and resizes it as it runs.

    The working directory is uploaded as it is now, except what .coddlignore lists. The job runs in
    a copy on its node, jobs/NUMBER/folder in the jobs directory; files it writes stay there.

    Arguments after the script are passed to it.
    """
    if schema:
        from coddl.api.spec import schema as published

        print(json.dumps(published(), indent=2))
        return
    is_command = bool(context.meta.get(SEPARATED))
    if words and not is_command:
        note_own_options(context, words[1:])
    data = read_file(file) if file else {}
    data |= _what(words or [], is_command=is_command)
    given: dict[str, object] = {
        "gpus": gpus,
        "name": name,
        "priority": priority,
        "group": group,
        "weight": weight,
        "python": interpreter(python),
        "tier": tier,
        "precheck": precheck,
    }
    data |= {key: value for key, value in given.items() if value not in ("", None)}
    if env:
        data["env"] = {**_mapping(data.get("env")), **dict(map(read_variable, env))}
    folder = Path.cwd()
    request = checked(data, folder)
    how = "number" if parsable else "json" if wants_json(output, as_json) else "words"
    with connect(server, state_dir) as client:
        _note_plain_script(request, folder)
        if dry_run:
            _preview(client, request, how)
            return
        job = _handed_in(client, request, folder)
        _tell(job, how, is_last=not wait)
        if wait:
            raise typer.Exit(_waited(client, job, how))


def read_file(name: str) -> dict[str, Any]:
    """Read a job's file."""
    with needs("client"):
        import yaml

    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text("utf-8")
        data = yaml.safe_load(text)
    except OSError as error:
        raise UserError(
            f"-f {name} can't be read", f"{error.strerror or error}", "-f job.yaml"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        because = " ".join(str(error).split())
        raise UserError(f"-f {name} can't be read", because, "script: train.py") from None
    if not isinstance(data, dict):
        raise UserError(
            f"-f {name} is not a job", "it is not a mapping of fields to values", "script: train.py"
        )
    return {str(key): value for key, value in data.items()}


def _what(words: list[str], *, is_command: bool) -> dict[str, object]:
    if not words:
        return {}
    if is_command:
        return {"command": words, "script": "", "args": []}
    script, *args = words
    if not script.endswith(".py") and not Path(script).is_file():
        raise UserError(
            f"{script} can't be submitted",
            "there is no such script",
            f"coddl submit train.py, or coddl submit -- {shlex.join(words)}",
        )
    return {"script": script, "args": args, "command": []}


def interpreter(python: str) -> str:
    """Return an interpreter by its whole path: a node may look for programs elsewhere."""
    if not python or Path(python).is_absolute():
        return python
    if (found := shutil.which(python)) is None:
        raise UserError(
            f"--python {python} can't be used",
            "there is no such program here",
            "its absolute path on the nodes, as in --python /opt/venv/bin/python",
        )
    return str(Path(found).absolute())


def _mapping(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


def read_variable(text: str) -> tuple[str, str]:
    """Read `K=V`."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UserError(
            f"--env {text} can't be used", f'"{text}" is not of the form NAME=VALUE', "--env SEED=1"
        )
    return key, value


def checked(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Check a job as far as that can be done here."""
    with needs("client"):
        from coddl.api.submission import checked_request

    return checked_request(data, folder)


def _note_plain_script(request: Mapping[str, Any], folder: Path) -> None:
    """Say what becomes of a script that is taken to be elastic, and does not look so."""
    script = request.get("script") or ""
    if "tier" in request or not script.endswith(".py"):
        return
    path = folder / request.get("folder", ".") / script
    if "coddl" not in path.read_text("utf-8", errors="replace"):
        note(
            f"{script} does not use coddl: unless one of its modules calls coddl.prepare, each "
            "worker trains by itself, and the job is not resized"
        )


def _handed_in(client: "Client", request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Upload the folder, unless the server has it, and the job."""
    job: dict[str, Any] = client.submit({**request, "code": uploaded(client, request, folder)})
    return job


def uploaded(client: "Client", request: dict[str, Any], folder: Path) -> str:
    """Upload the folder of a job, unless the server has it; give its hash."""
    from coddl.api.submission import uploaded_folder

    return uploaded_folder(client, request, folder, on_left_out=note)


def _preview(client: "Client", request: dict[str, Any], how: str) -> None:
    found = client.post("/jobs", request, dry_run=True)
    if how == "json":
        print(json.dumps(found, indent=2))
        return
    from coddl.cli.poolview import preview_lines, show

    show(preview_lines(found))


def _tell(job: dict[str, Any], how: str, *, is_last: bool) -> None:
    if how == "number":
        print(job["id"], flush=True)
    elif how == "words":
        print(f"submitted {job['name']} (job {job['id']})", flush=True)
    elif is_last:
        print(json.dumps(job, indent=2))


def _waited(client: "Client", job: dict[str, Any], how: str) -> int:
    """Wait for the job's end; return its exit code."""
    from coddl.cli.following import detached
    from coddl.cli.poolview import change_line, end_sentence
    from coddl.cli.waiting import OVER, exit_code_of, wait_for

    def tell(job: Any) -> None:
        if how == "words" and job["state"] not in OVER:
            print(change_line(job), file=sys.stderr)

    try:
        found = wait_for(client, str(job["id"]), tell=tell)
    except KeyboardInterrupt:
        detached(str(job["id"]))
    if how == "json":
        print(json.dumps(found, indent=2))
    elif how == "words":
        print(end_sentence(found))
        if trouble := found["trouble"]:
            told = f"error: {trouble['what']}\n  because {trouble['because']}"
            print(f"{told}\n  try     {trouble['try']}", file=sys.stderr)
    return exit_code_of(found)
