"""Whether the server of a pool answers, and agrees with this machine."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from coddl import __version__
from coddl.api.client import Client, ServerAddress
from coddl.core.errors import UserError
from coddl.engines.doctor.results import CheckResult, failure_of, fine

ASK_S: Final = 10.0
CLOCK_S: Final = 5.0  # by which clocks may differ; the server reports whole seconds


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server has answered."""

    url: str
    trouble: UserError | None = None
    version: str = ""
    clock_ahead_s: float | None = None  # of ours; None: not reported
    problems: tuple[str, ...] = ()
    nodes_down: tuple[str, ...] = ()
    engine: str = ""
    engine_trouble: str = ""


def gather_server(address: ServerAddress) -> ServerFacts:
    """Ask a server."""
    try:
        with Client(address, within_s=ASK_S) as client:
            found = client.get("/nodes")
            engine = found.get("engine") or {}
            down = [node["name"] for node in found["items"] if not node["is_up"]]
            return ServerFacts(
                address.url,
                version=client.get("/pool")["version"],
                clock_ahead_s=client.clock_ahead_s(),
                problems=tuple(client.problems()),
                nodes_down=tuple(down),
                engine=engine.get("engine", ""),
                engine_trouble=engine.get("trouble", ""),
            )
    except UserError as error:
        return ServerFacts(address.url, error)


def server_results(facts: ServerFacts | None) -> Iterator[CheckResult]:
    """Judge a server; None: there is no pool yet."""
    if facts is None:
        yield fine("server", "no pool is running")
        return
    if facts.trouble is not None:
        yield failure_of("server", facts.trouble)
        return
    yield fine("server", facts.url)
    yield _version(facts)
    if facts.clock_ahead_s is not None:
        yield _clock(facts.clock_ahead_s)
    for problem in facts.problems:
        yield CheckResult("server", "WARN", "the server has a problem", problem, "coddl events")
    if facts.nodes_down:
        what, because = f"nodes are down: {', '.join(facts.nodes_down)}", "their agents are silent"
        try_ = "coddl nodes; coddl forget NODE, if it will not come back"
        yield CheckResult("nodes", "WARN", what, because, try_)
    if facts.engine_trouble:
        what = f"the pool's engine {facts.engine} does not answer"
        try_ = "coddl doctor --engine, with its name and --address"
        yield CheckResult("engine", "WARN", what, facts.engine_trouble, try_)


def _version(facts: ServerFacts) -> CheckResult:
    if facts.version == __version__:
        return fine("version", f"coddl {__version__}, here and on the server")
    what = f"coddl {__version__} here, {facts.version} on the server"
    because = "commands and agents of another version may be refused"
    return CheckResult("version", "WARN", what, because, f"pip install coddl=={facts.version}")


def _clock(ahead_s: float) -> CheckResult:
    if abs(ahead_s) <= CLOCK_S:
        return fine("clock", "the server's and ours agree")
    what = f"the server's clock is {abs(ahead_s):.0f} s {'ahead' if ahead_s > 0 else 'behind'}"
    because = "deadlines of nodes are given in wall-clock time"
    return CheckResult("clock", "WARN", what, because, "NTP on both machines (timedatectl)")
