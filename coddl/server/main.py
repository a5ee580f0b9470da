"""`coddl server`: sets everything up, serves until it is stopped, and cleans up."""

import asyncio
import contextlib
import json
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

import structlog

from coddl import __version__
from coddl.api import jobsfolder
from coddl.api.checkpoint_uri import check_uri
from coddl.api.emulation import emulation_in
from coddl.api.tls import TlsFiles
from coddl.api.tokens import read_token
from coddl.core.errors import UserError
from coddl.core.pool.decision import POOL_STABILITY
from coddl.core.scheduler import Stability
from coddl.plugins import registry_of_usable
from coddl.server.addresses import Endpoint, endpoint_of
from coddl.server.auth import Tokens
from coddl.server.clock import ScaledClock, SystemClock
from coddl.server.collector import keep_from_collector
from coddl.server.decision_thread import INTERPRETER_SWITCH_S
from coddl.server.errors import BadFolder
from coddl.server.http import create_app
from coddl.server.http_server import HttpServer, listen
from coddl.server.journal import Journal
from coddl.server.locking import ServerLock
from coddl.server.logging import set_up_logging
from coddl.server.retention import Retention
from coddl.server.server import Server
from coddl.server.store_sql import SqlStore, sqlite_url
from coddl.server.tls import certificate_of
from coddl.traces.clusters import cluster_from

PORT: Final = 7433
JOURNAL: Final = "journal.db"  # in the state folder
TOKEN: Final = "token"  # its file in the state folder
READ_TOKEN: Final = "read-token"  # the same, of the one that may only read

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """How a server is started."""

    state_dir: Path
    host: str = "127.0.0.1"
    port: int = PORT  # 0: any
    advertise: str = ""  # how other machines name this one; empty: a name is chosen
    tls: TlsFiles | None = None  # None: plain HTTP
    token: str = field(default="", repr=False)  # empty: the state folder's, made if need be
    read_token_file: str = ""  # of a token that may only read; empty: one in the state folder
    policy: str = ""  # empty: as it was
    placement: str = ""  # the same
    plugins: tuple[str, ...] = ()  # files with policies and placements of the operator
    checkpoints: str = ""  # the URI where jobs keep them; empty: in the jobs folders of agents
    cluster: str = ""  # what nodes there are and how they are wired; empty: as agents come
    cool_down_s: float | None = None  # how long a share stays after it has changed
    lease_s: float = 120.0
    retention: Retention = field(default_factory=Retention)  # what is kept of what is over
    log_format: Literal["console", "json"] = "console"


def serve(options: ServeOptions) -> int:
    """Serve a pool until SIGTERM or SIGINT, and return the exit code; raises if it can't start."""
    set_up_logging(options.log_format)
    os.umask(0o077)  # a job's environment may hold secrets
    folder = options.state_dir.absolute()
    certificate = certificate_of(options.tls) if options.tls else None
    lock = _locked(folder)
    try:
        with contextlib.closing(listen(options.host, options.port)) as listener:
            port = listener.getsockname()[1]
            endpoint = endpoint_of(options.host, port, options.advertise, certificate)
            ca = certificate.ca if certificate else ""
            asyncio.run(_serve(options, folder, listener, endpoint, ca))
    finally:
        lock.release()
    return 0


async def _serve(
    options: ServeOptions,
    folder: Path,
    listener: socket.socket,
    endpoint: Endpoint,
    ca: str,
) -> None:
    journal = Journal(SqlStore(sqlite_url(folder / JOURNAL)))
    emulation = emulation_in(folder)
    clock = SystemClock() if emulation is None else ScaledClock(emulation.clock)
    site = cluster_from(options.cluster) if options.cluster else None
    stability, lease_s = _stability(options), options.lease_s
    registry = registry_of_usable(options.plugins)
    server = Server(
        *(journal, folder, clock),
        stability=stability,
        site=site,
        registry=registry,
        lease_s=lease_s,
        checkpoints=check_uri(options.checkpoints) if options.checkpoints else "",
        replay=replay_command(folder / JOURNAL, options),
        retention=options.retention,
    )
    _check_plugins(server)
    left = jobsfolder.look(folder / "jobs")  # where agents of this machine keep jobs
    jobsfolder.check(left, journal.pool_id, has_had_jobs=server.pool.next_job > 1)
    if options.policy or options.placement:
        server.follow(options.policy, options.placement)
    tokens = _tokens(options, folder)
    app = create_app(server, tokens, endpoint.hosts)
    http_server = HttpServer(server, app, options.tls)
    server.on_failure = http_server.stop
    # The server is announced only after its signal handlers are in place.
    with http_server.capture_signals(), _announced(folder / "server.json", endpoint, ca):
        log.info(
            "server_started",
            url=endpoint.url,
            version=__version__,
            state=str(folder),
            lease_s=server.lease_s,
            checkpoints=server.checkpoints or "jobs folders",
        )
        read_token_file = options.read_token_file or str(folder / READ_TOKEN)
        log.info("dashboard", url=endpoint.url, read_token_file=read_token_file)
        if not endpoint.is_local:
            more = " --tls-ca FILE" if ca else ""
            agents = f"coddl agent --server {endpoint.advertised} --token-file FILE{more}"
            log.info("agents_can_join", command=agents, token_file=str(folder / TOKEN))
        keep_from_collector()
        sys.setswitchinterval(INTERPRETER_SWITCH_S)
        await http_server.serve(sockets=[listener])
    log.info("server_stopped")
    if server.failure is not None:
        raise server.failure


def replay_command(journal: Path, options: ServeOptions) -> list[str]:
    """Return the command that replays a journal as this server schedules."""
    words = [sys.executable, "-m", "coddl.cli.main", "whatif", "--journal", str(journal)]
    words += [f"--plugin={Path(path).absolute()}" for path in options.plugins]
    if options.cool_down_s is not None:
        words.append(f"--cool-down={options.cool_down_s}")
    return words


def _check_plugins(server: Server) -> None:
    """Refuse a plug-in that can't be used, unless there are jobs: they must not lose the server."""
    for error in server.registry.unusable.values():
        if not server.pool.active:
            raise error
        log.error("plugin_not_loaded", what=error.what, because=error.because)


def _tokens(options: ServeOptions, folder: Path) -> Tokens:
    """Return both tokens; raises UserError if they are the same."""
    full = options.token or token_of(folder)
    given = options.read_token_file
    read = read_token(Path(given), "--read-token-file") if given else token_of(folder, READ_TOKEN)
    if read == full:
        raise UserError(
            f"{given or folder / READ_TOKEN} can't be used",
            "its token is the one that may do everything",
            "a file with a token of its own, or no --read-token-file",
        )
    return Tokens(full, read)


def token_of(folder: Path, name: str = TOKEN) -> str:
    """Return a token of a state folder; it is made when it is first wanted, for its owner only."""
    path = folder / name
    if path.exists() and path.read_bytes().strip():  # a full disk may have left an empty one
        return read_token(path)
    handle, draft = tempfile.mkstemp(dir=folder)
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_urlsafe(32) + "\n")
    os.replace(draft, path)
    return path.read_text().strip()


def _stability(options: ServeOptions) -> Stability:
    if options.cool_down_s is None:
        return POOL_STABILITY
    return replace(POOL_STABILITY, cool_down_s=options.cool_down_s)


def _locked(folder: Path) -> ServerLock:
    """Make the state folder, and keep others out; raises BadFolder or PoolTaken."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return ServerLock(folder / "server.lock")
    except OSError as error:
        raise BadFolder(
            "the server cannot start", f"{folder}: {error.strerror}", "another --state-dir"
        ) from None


@contextlib.contextmanager
def _announced(path: Path, endpoint: Endpoint, ca: str) -> Iterator[None]:
    """Let the command line find the server, from when it listens until it ends."""
    about = {
        "url": endpoint.url,
        "advertised": endpoint.advertised,
        "tls_ca": ca,
        "pid": os.getpid(),
        "host": socket.gethostname(),  # the folder may be on a disk that machines share
        "version": __version__,
    }
    handle, draft = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        json.dump(about, file)
    os.replace(draft, path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
