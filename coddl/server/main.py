"""`coddl server`: everything set up, served until told to stop, and put away."""

import asyncio
import contextlib
import json
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Literal

import structlog

from coddl import __version__
from coddl.api import jobsfolder
from coddl.api.checkpoint_uri import check_uri
from coddl.core.pool.decision import POOL_STABILITY
from coddl.core.scheduler import Stability
from coddl.plugins import registry_of_usable
from coddl.server.clock import SystemClock
from coddl.server.errors import BadFolder
from coddl.server.http import LOOPBACK, create_app
from coddl.server.http_server import HttpServer, listen
from coddl.server.journal import Journal
from coddl.server.locking import ServerLock
from coddl.server.logging import set_up_logging
from coddl.server.server import Server
from coddl.server.store_sql import SqlStore, sqlite_url
from coddl.traces.clusters import cluster_from

PORT: Final = 7433

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """How a server is started."""

    state_dir: Path
    host: str = "127.0.0.1"
    port: int = PORT  # 0: any
    token: str = field(default="", repr=False)  # empty: the state folder's, made if need be
    policy: str = ""  # empty: as it was
    placement: str = ""  # the same
    plugins: tuple[str, ...] = ()  # files with policies and placements of the operator
    checkpoints: str = ""  # the URI where jobs keep them; empty: in the jobs folders of agents
    cluster: str = ""  # what nodes there are and how they are wired; empty: as agents come
    cool_down_s: float | None = None  # how long a share stays after it has changed
    lease_s: float = 120.0
    log_format: Literal["console", "json"] = "console"


def serve(options: ServeOptions) -> int:
    """Serve a pool until SIGTERM or SIGINT, and give the exit code; raises if it can't start."""
    set_up_logging(options.log_format)
    os.umask(0o077)  # what jobs are given in their environment is nobody else's business
    folder = options.state_dir.absolute()
    lock = _locked(folder)
    try:
        with contextlib.closing(listen(options.host, options.port)) as listener:
            asyncio.run(_serve(options, folder, listener))
    finally:
        lock.release()
    return 0


async def _serve(options: ServeOptions, folder: Path, listener: socket.socket) -> None:
    journal = Journal(SqlStore(sqlite_url(folder / "journal.db")))
    clock = SystemClock()
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
    )
    _check_plugins(server)
    left = jobsfolder.look(folder / "jobs")  # where agents of this machine keep jobs
    jobsfolder.check(left, journal.pool_id, has_had_jobs=bool(server.pool.jobs))
    if options.policy or options.placement:
        server.follow(options.policy, options.placement)
    token = options.token or token_of(folder)
    host, port = listener.getsockname()[:2]
    app = create_app(server, token, _names_of(options.host))
    http_server = HttpServer(server, app)
    server.on_failure = http_server.stop
    url = f"http://{_reachable(host)}:{port}"
    # It can be found once it can be told to stop.
    with http_server.capture_signals(), _announced(folder / "server.json", url):
        log.info(
            "server_started",
            url=url,
            version=__version__,
            state=str(folder),
            lease_s=server.lease_s,
        )
        await http_server.serve(sockets=[listener])
    log.info("server_stopped")
    if server.failure is not None:
        raise server.failure


def _check_plugins(server: Server) -> None:
    """Refuse a plug-in that can't be used, unless there are jobs: they must not lose the server."""
    for error in server.registry.unusable.values():
        if not server.pool.active:
            raise error
        log.error("plugin_not_loaded", what=error.what, because=error.because)


def token_of(folder: Path) -> str:
    """Give the token of a state folder; it is made when it is first wanted, for its owner only."""
    path = folder / "token"
    with contextlib.suppress(FileNotFoundError):
        if token := path.read_text().strip():
            return token  # an empty one, left by a full disk, would let everybody in
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


def _names_of(host: str) -> frozenset[str]:
    """Name the hosts that a server on this address answers to; none: any."""
    if host in LOOPBACK or (_is_address(host) and ip_address(host).is_loopback):
        return LOOPBACK | {host}
    return frozenset()


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _reachable(host: str) -> str:
    """Give the host by which this machine reaches an address it listens on."""
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{here}]" if ":" in here else here


@contextlib.contextmanager
def _announced(path: Path, url: str) -> Iterator[None]:
    """Let the command line find the server, from when it listens until it ends."""
    handle, draft = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        json.dump({"url": url, "pid": os.getpid(), "version": __version__}, file)
    os.replace(draft, path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
