"""How commands find the pool, and complete what a user types from what it knows."""

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coddl.core.errors import UserError

if TYPE_CHECKING:
    from coddl.api.client import Answer, Client, Credentials, ServerAddress

SECONDS_TO_COMPLETE: Final = 0.5
LISTED: Final = 200
# What `--token-file` and `--tls-ca` say; `credentials` adds them to the commands.
given_credentials: ContextVar["Credentials | None"] = ContextVar("given_credentials", default=None)

Server = Annotated[
    str,
    typer.Option(
        metavar="URL",
        envvar="CODDL_SERVER",
        help="Server of the pool (default: the one on this machine).",
    ),
]
StateDir = Annotated[
    str,
    typer.Option(
        metavar="DIR",
        envvar="CODDL_STATE_DIR",
        help="State directory of the pool on this machine.",
    ),
]


def connect(server: str, state_dir: str) -> "Client":
    """Reach for the pool's server."""
    from coddl.api.client import Client

    with needs("client"):
        return Client(find_server(server, state_dir), on_away=note)


def find_server(server: str, state_dir: str) -> "ServerAddress":
    """Find the server of the pool, with the credentials that the command was given."""
    from coddl.api.client import Credentials, find

    return find(server, state_dir, given=given_credentials.get() or Credentials())


def pool_time_s(client: "Client") -> float:
    """Return the pool's time; an emulated pool's clock is ahead of the machine's."""
    return float(client.get("/pool").get("now_s") or time.time())


@contextlib.contextmanager
def needs(extra: str) -> Iterator[None]:
    """Return which extra installs what is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UserError(
            "this command cannot run",
            f"{error.name} is not installed",
            f"pip install 'coddl[{extra}]'",
        ) from None


def note(text: str) -> None:
    """Print a note for people that is not part of the output."""
    print(f"note: {text}", file=sys.stderr)


def note_own_options(context: typer.Context, words: list[str]) -> None:
    """Say which words after the script look like options of the command: they are the script's."""
    own = {name for option in context.command.params for name in option.opts if name[0] == "-"}
    taken = [word for word in words if word.partition("=")[0] in own - {"-h", "--help"}]
    if taken:
        note(
            f"{' '.join(taken)} comes after the script and is passed to it; put options of "
            f"coddl {context.info_name} before the script"
        )


def complete_jobs(context: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """Offer the jobs of the pool that are not over; nothing where there is none."""
    with contextlib.suppress(Exception):  # a shell waits for completions: no error message
        for job in _asked(context, "/jobs", active=True, limit=LISTED)["items"]:
            for word in (job["name"], str(job["id"])):
                if word.startswith(incomplete) and (incomplete or word == job["name"]):
                    yield word, f"job {job['id']}, {job['state']}"


def complete_nodes(context: typer.Context, incomplete: str) -> Iterator[str]:
    """Offer the nodes of the pool."""
    with contextlib.suppress(Exception):
        for node in _asked(context, "/nodes")["items"]:
            if node["name"].startswith(incomplete):
                yield node["name"]


def complete_policies(incomplete: str) -> Iterator[str]:
    """Offer the policies by name."""
    with contextlib.suppress(Exception):
        from coddl.core.registry import POLICIES

        yield from (name for name in POLICIES if name.startswith(incomplete))


def check_choice(policy: str, placement: str, plugins: Sequence[str] | None = None) -> None:
    """Say what is wrong with a policy, a placement or plug-ins, and what there is; empty is fine.

    None: the plug-ins are not known here; the server checks names of theirs.
    """
    if not (policy or placement or plugins):
        return
    from coddl.core.named import is_plugin
    from coddl.core.registry import BUILT_IN

    registry = BUILT_IN
    if plugins:
        from coddl.plugins import registry_of

        registry = registry_of(plugins)
    if policy and not (plugins is None and is_plugin(policy)):
        registry.policy(policy)
    if placement and not (plugins is None and is_plugin(placement)):
        registry.placement(placement)


def complete_placements(incomplete: str) -> Iterator[str]:
    """Offer the placements by name."""
    with contextlib.suppress(Exception):
        from coddl.core.registry import PLACEMENTS

        yield from (name for name in PLACEMENTS if name.startswith(incomplete))


def _asked(context: typer.Context, path: str, **parameters: bool | int) -> "Answer":
    from coddl.api.client import Client, Credentials, find

    given = {name: value or "" for name, value in context.params.items()}
    files = Credentials(given.get("token_file", ""), given.get("tls_ca", ""))
    address = find(given.get("server", ""), given.get("state_dir", ""), given=files)
    with Client(address, within_s=SECONDS_TO_COMPLETE) as client:
        return client.get(path, **parameters)


JobName = Annotated[
    str,
    typer.Argument(metavar="JOB", help="Number or name of a job.", autocompletion=complete_jobs),
]
JobNames = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB...", help="Numbers or names of jobs.", autocompletion=complete_jobs
    ),
]
