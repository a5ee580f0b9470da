"""Talk to a pool's server from this machine, one request at a time.

UserError                    exit code
├── Unreachable              1     nothing answers at the server's address
├── TlsRefused               1     its certificate is not accepted, or one side speaks no TLS
└── Answered                 2     the server refuses: says what, because, try (problem+json)
    ├── of status 404        102   no such job, node or archive
    └── of status 5xx        1     the server failed
"""

import contextlib
import getpass
import itertools
import json
import math
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote, urlsplit

from coddl.api.local_process import is_locked, lives
from coddl.api.server_events import StreamEvent, events_of
from coddl.api.tls import plain_refusal, tls_refusal, trust
from coddl.api.tokens import read_token
from coddl.core.errors import UserError

if TYPE_CHECKING:
    import httpx  # takes a quarter of a second: imported when the first request is made

API: Final = "/api/v1"
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
NOT_FOUND: Final = 102  # exit code
CONNECT_S: Final = 5.0
ANSWER_S: Final = 30.0
UPLOAD_S: Final = 300.0
SETTLE_S: Final = 300.0  # a policy that was not used yet is compiled first
SILENCE_S: Final = 45.0  # a stream says something every 15 seconds
RETURN_S: Final = 120.0
# How long to retry while the server refuses connections: it may be restarting.
KEPT_S: Final = 60.0  # where `coddl up` keeps it running
UNKNOWN_S: Final = 5.0
PAUSES_S: Final = (0.1, 0.2, 0.5, 1.0)  # between tries; the last one again and again
SUBMIT_TRIES: Final = 3

Answer = Any  # what JSON can hold
Parameters = Mapping[str, str | int | float | bool | None]


class Unreachable(UserError):
    """Nothing answers at the server's address."""

    exit_code = 1
    was_asked = True  # the request may have reached it


MAY_ONLY_READ: Final = {
    "what": "the job can't be submitted",
    "because": "the token may only read",
    "try": "the content of `token` in the server's state directory, in place of `read-token`",
}


class RequestRefused(UserError):
    """The server refused a request."""

    def __init__(self, status: int, problem: Mapping[str, str]) -> None:
        super().__init__(problem["what"], problem["because"], problem["try"])
        self.status = status
        self.code = problem.get("code", "")
        self.exit_code = NOT_FOUND if status == 404 else 1 if status >= 500 else 2


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server is, and how it and we know each other."""

    url: str
    token: str = field(repr=False)
    pid: int | None = None  # of a server on this machine, as it has left it in `found`
    found: Path | None = None
    ca: str = ""  # a file with the CAs that its certificate may be of; empty: this machine's
    advertised: str = ""  # where other machines find it; empty: the same

    @property
    def for_agents(self) -> str:
        """Its address for agents: the address they give other nodes depends on the route to it."""
        return self.advertised or self.url


@dataclass(frozen=True, slots=True)
class Credentials:
    """Files that a command was given: the pool's token, and the CA of its server."""

    token_file: str = ""
    tls_ca: str = ""


def state_folder(given: str = "", env: Mapping[str, str] = os.environ) -> Path:
    """Return where a pool of this machine keeps its things."""
    if given:
        return Path(given).absolute()
    base = env.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "coddl" / "pool"


def find(
    server: str,
    state_dir: str,
    env: Mapping[str, str] = os.environ,
    given: Credentials = Credentials(),  # noqa: B008  # frozen
) -> ServerAddress:
    """Find the server: the one given, else the one named in this machine's state folder."""
    folder = state_folder(state_dir, env)
    token = token_for(folder, env, given)
    ca = given.tls_ca or env.get("CODDL_TLS_CA", "")
    if url := server or env.get("CODDL_SERVER", ""):
        return ServerAddress(_checked(url, ca), token, ca=ca)
    path = folder / "server.json"
    try:
        about = json.loads(_read(path) or "{}")
        is_here = about.get("host", socket.gethostname()) == socket.gethostname()
        return ServerAddress(
            str(about["url"] if is_here else about["advertised"]),
            token,
            int(about["pid"]) if is_here else None,
            path,
            ca=str(about.get("tls_ca", "")),
            advertised=str(about.get("advertised", "")),
        )
    except (ValueError, KeyError, TypeError):
        raise Unreachable(
            "no pool is running",
            f"{path} does not exist or names no server",
            "coddl up, or --server http://HOST:7433",
        ) from None


def token_for(folder: Path, env: Mapping[str, str], given: Credentials) -> str:
    """Return the token: of the file given, of the environment, or of the state folder; or none."""
    if file := given.token_file or env.get("CODDL_TOKEN_FILE", ""):
        return read_token(Path(file))
    if token := env.get("CODDL_TOKEN", ""):
        return token
    try:
        (folder / "token").stat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise _closed(folder, error) from None
    return read_token(folder / "token")


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise _closed(path.parent, error) from None


def _closed(folder: Path, error: OSError) -> UserError:
    """Say that a pool of this machine is another user's."""
    return UserError(
        f"the pool of {folder} can't be used from here",
        f"{error.filename}: {error.strerror}",
        "CODDL_SERVER with its address, and CODDL_TOKEN_FILE with a copy of its token",
    )


def _checked(url: str, ca: str) -> str:
    """Return a whole address; a named CA means TLS, and the token must not be sent without it."""
    whole = url if "://" in url else f"{'https' if ca else 'http'}://{url}"
    try:
        parts = urlsplit(whole)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise UserError(
            f"--server {url} can't be used",
            f'"{url}" is not the address of a server',
            "--server http://127.0.0.1:7433",
        )
    if ca and parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise UserError(
            f"--server {url} can't be used",
            f"it has no TLS, and a CA is given for it: {ca}",
            f"--server https://{parts.netloc}; or no --tls-ca and no CODDL_TLS_CA",
        )
    return whole.rstrip("/")


class Client:
    """Requests to one server. Paths begin with /jobs, /nodes, …; answers are JSON."""

    def __init__(
        self,
        address: ServerAddress,
        *,
        within_s: float = ANSWER_S,
        pauses_s: tuple[float, ...] = PAUSES_S,
        on_away: Callable[[str], None] | None = None,
        return_s: float = RETURN_S,
    ) -> None:
        """`on_away` is called before the first retry; None: an unreachable server is an error.

        `return_s`: for how long a stream that broke off is asked for again.
        """
        import httpx

        self.address = address
        self._within_s = within_s
        self._pauses_s = pauses_s
        self._on_away = on_away
        self._return_s = return_s
        self._is_away = False
        is_here = address.found is not None or urlsplit(address.url).hostname in LOOPBACK
        self._http = httpx.Client(
            base_url=address.url,
            headers=_introduction(address.token),
            timeout=_timeout(within_s),
            trust_env=not is_here,  # no proxy leads to this machine
            verify=trust(address.url, address.ca) or True,
        )

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_error: object) -> None:
        self._http.close()

    def get(self, path: str, **parameters: str | int | float | bool | None) -> Answer:
        """Send a GET request."""
        return self._asked("GET", path, parameters=parameters)

    def post(self, path: str, body: Answer = None, **parameters: str | bool | None) -> Answer:
        """Send a POST request."""
        return self._asked("POST", path, body, parameters=parameters)

    def patch(self, path: str, body: Answer) -> Answer:
        """Change a part of something."""
        return self._asked("PATCH", path, body)

    def put(self, path: str, body: Answer) -> Answer:
        """Set something."""
        return self._asked("PUT", path, body, within_s=SETTLE_S)

    def delete(self, path: str) -> None:
        """Send a DELETE request."""
        self._asked("DELETE", path)

    def submit(self, request: Answer) -> Answer:
        """Hand in a job, once, even if the line breaks and it has to be said again."""
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        for pause_s in self._pauses_s[: SUBMIT_TRIES - 1]:
            with contextlib.suppress(Unreachable):
                return self._asked("POST", "/jobs", request, headers=headers)
            time.sleep(pause_s)
        return self._asked("POST", "/jobs", request, headers=headers)

    def has_code(self, hash_: str) -> bool:
        """Return whether the server has an archive already."""
        try:
            self._asked("HEAD", f"/code/{hash_}")
        except RequestRefused as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return False
            if error.status == HTTPStatus.FORBIDDEN:  # an answer to HEAD has no words of its own
                raise RequestRefused(error.status, MAY_ONLY_READ) from None
            raise
        return True

    def send_code(self, hash_: str, archive: IO[bytes]) -> None:
        """Upload an archive."""
        self._asked("PUT", f"/code/{hash_}", content=archive, within_s=UPLOAD_S)

    def is_ready(self) -> bool:
        """Return whether the server answers, and is ready to decide."""
        import httpx

        try:
            return self._http.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def problems(self, kind: Literal["problems", "unsaved"] = "problems") -> list[str]:
        """Return what an operator should see to, or which jobs' state can't be saved.

        Nothing of a server that does not answer.
        """
        import httpx

        try:
            found: list[str] = self._http.get("/readyz").json().get(kind, [])
        except (httpx.TransportError, ValueError):
            return []
        return found

    def clock_ahead_s(self) -> float | None:
        """Return by how many whole seconds the server's clock is ahead; None: it does not say."""
        with self._reached():
            said = self._http.get("/healthz").headers.get("date", "")
        now_s = time.time()
        try:
            ahead_s = parsedate_to_datetime(said).timestamp() - now_s
        except ValueError:
            return None
        return float(math.ceil(ahead_s))

    def watch(
        self, path: str, **parameters: str | int | float | bool | None
    ) -> Iterator[StreamEvent]:
        """Yield the events of a stream; if it breaks off, go on after the last one."""
        last, tries = "", itertools.count()
        until_s = 0.0  # how long to look for a server that was there; at first it must be
        while True:
            try:
                with self._stream(path, parameters, last) as events:
                    until_s = math.inf
                    for id_, said in events:
                        last, tries = id_ or last, itertools.count()
                        yield said
                        if said.kind == "end":
                            return
            except Unreachable:
                if time.monotonic() > until_s:
                    raise
            until_s = min(until_s, time.monotonic() + self._return_s)
            time.sleep(self._pauses_s[min(next(tries), len(self._pauses_s) - 1)])

    @contextlib.contextmanager
    def _stream(
        self, path: str, parameters: Parameters, last: str
    ) -> Iterator[Iterator[tuple[str, StreamEvent]]]:
        """Be answered with a stream, and give its events with their numbers."""
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
        with (
            self._reached(),
            self._http.stream(
                "GET",
                f"{API}{path}",
                params=_given(parameters),
                headers=headers,
                timeout=_timeout(SILENCE_S),
            ) as response,
        ):
            if response.status_code >= 400:
                response.read()
                raise self._refusal(response)
            yield events_of(response.iter_lines())

    def _asked(self, method: str, path: str, body: Answer = None, **how: Any) -> Answer:
        """Ask, again if the server is away meanwhile and has not done it."""
        begin_s, tries = time.monotonic(), itertools.count()
        while True:
            try:
                answer = self._asked_once(method, path, body, **how)
            except Unreachable as error:
                may_repeat = method in ("GET", "HEAD") or not error.was_asked
                if self._on_away is None or not may_repeat or not self._may_return(begin_s):
                    raise
                if not self._is_away:
                    self._on_away("the server does not answer; waiting for it")
                self._is_away = True
            else:
                self._is_away = False
                return answer
            time.sleep(self._pauses_s[min(next(tries), len(self._pauses_s) - 1)])

    def _may_return(self, since_s: float) -> bool:
        """Return whether a server that can't be reached may be starting again."""
        found = self.address.found
        is_kept = found is not None and is_locked(found.with_name("pool.lock"))
        return time.monotonic() - since_s < (KEPT_S if is_kept else UNKNOWN_S)

    def _asked_once(
        self,
        method: str,
        path: str,
        body: Answer = None,
        *,
        parameters: Parameters | None = None,
        headers: Mapping[str, str] | None = None,
        content: IO[bytes] | None = None,
        within_s: float | None = None,
    ) -> Answer:
        with self._reached():
            response = self._http.request(
                method,
                f"{API}{path}",
                json=body,
                params=_given(parameters or {}),
                headers=headers,
                content=content,
                timeout=_timeout(within_s or self._within_s),
            )
        if response.status_code >= 400:
            raise self._refusal(response)
        return response.json() if response.content else None

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        """Say in words that the server can't be reached."""
        import httpx

        try:
            yield
        except httpx.TransportError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> UserError:
        import httpx

        url = self.address.url
        if refusal := tls_refusal(error, url):
            return refusal
        if isinstance(error, httpx.ConnectTimeout | httpx.ConnectError):
            away = self._not_running() or Unreachable(
                "the server can't be reached",
                f"no answer from {url} ({str(error) or 'timeout'})",
                "coddl up, or --server URL",
            )
            away.was_asked = False
            return away
        if refusal := plain_refusal(url):
            return refusal
        because = (
            f"{url} accepted the request but did not answer ({str(error) or type(error).__name__})"
        )
        return Unreachable("the server gave no answer", because, "run the same command again")

    def _not_running(self) -> Unreachable | None:
        """Say that the server of this machine has ended, if it has."""
        pid, found = self.address.pid, self.address.found
        if pid is None or found is None or lives(pid):
            return None
        is_kept = is_locked(found.with_name("pool.lock"))
        return Unreachable(
            "the server is not running",
            f"{found} names process {pid} at {self.address.url}, which has ended",
            f"see {found.parent}/output/server.log" if is_kept else "coddl up",
        )

    def _refusal(self, response: "httpx.Response") -> RequestRefused:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            problem = response.json()
            return RequestRefused(
                response.status_code, {part: str(problem[part]) for part in _PARTS} | _code(problem)
            )
        problem = {
            "what": f"the request to {self.address.url} failed",
            "because": f"it answered {response.status_code} {response.reason_phrase}",
            "try": "--server with the address of a CoDDL server",
        }
        return RequestRefused(response.status_code, problem)


_PARTS: Final = ("what", "because", "try")


def user() -> str:
    """Return the user's name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name
        return str(os.getuid())


def _introduction(token: str) -> dict[str, str]:
    """Return headers with the user, for the journal, and the token."""
    plain = user().encode("ascii", "replace").decode()[:64]
    return {"Coddl-User": plain} | ({"Authorization": f"Bearer {token}"} if token else {})


def _code(problem: Mapping[str, object]) -> dict[str, str]:
    return {"code": str(problem["code"])} if problem.get("code") else {}


def _given(parameters: Parameters) -> dict[str, str | int | float | bool]:
    return {name: value for name, value in parameters.items() if value is not None}


def _timeout(within_s: float) -> "httpx.Timeout":
    import httpx

    return httpx.Timeout(within_s, connect=min(within_s, CONNECT_S))


def in_path(name: object) -> str:
    """Write a job's or node's name as a part of a path."""
    return quote(str(name), safe="")
