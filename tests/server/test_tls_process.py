"""A server with TLS as a process, with an agent and clients of its own machine and of others."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import CertificateAuthority, make_ca
from tests.server.harness import DEADLINE_S, eventually

ROOT = Path(__file__).parents[2]


def coddl(folder: Path, *words: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "coddl", *map(str, words)],
        cwd=folder,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CODDL_")}
    return {**kept, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **more}


@dataclass
class Started:
    """A command that goes on."""

    process: subprocess.Popen[bytes]
    log: Path

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(DEADLINE_S) == 0, self.log.read_text()


def start(folder: Path, name: str, *words: object) -> Started:
    log = folder / f"{name}.log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "coddl", *map(str, words)],
            cwd=folder,
            env=environment(),
            stderr=out,
        )
    return Started(process, log)


@dataclass(frozen=True)
class TlsServer:
    """A server that listens on loopback, with a certificate for it."""

    folder: Path
    ca: CertificateAuthority
    port: int
    plain: int  # the port of another server, without TLS

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def token_file(self) -> Path:
        return self.state / "token"


@pytest.fixture(scope="module")
def plain() -> Iterator[int]:
    """Give the port of something that answers plain HTTP."""
    words = [sys.executable, "-m", "http.server", "0", "--bind", "127.0.0.1"]
    with subprocess.Popen(
        [words[0], "-u", *words[1:]], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline().split(" port ")[1].split()[0])
        process.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, plain: int) -> Iterator[TlsServer]:
    folder = tmp_path_factory.mktemp("tls")
    ca = make_ca(folder)
    leaf = ca.sign("head", "DNS:localhost")
    tls = ("--tls-cert", leaf.cert, "--tls-key", leaf.key, "--tls-ca", ca.file)
    words = ("server", "--state-dir", folder / "state", "--port", 0, *tls)
    started = start(folder, "server", *words)
    about: dict[str, Any] = {}

    def listens() -> bool:
        assert started.process.poll() is None, started.log.read_text()
        file = folder / "state" / "server.json"
        about.update(json.loads(file.read_text()) if file.exists() else {})
        return bool(about)

    eventually(listens, "the server to listen")
    assert about["url"].startswith("https://localhost:")
    yield TlsServer(folder, ca, int(about["url"].rpartition(":")[2]), plain)
    started.end()
    assert "Traceback" not in started.log.read_text()
    assert (folder / "state" / "token").is_file()


def test_an_agent_joins_and_clients_of_both_kinds_see_it(server: TlsServer) -> None:
    url, elsewhere = f"https://localhost:{server.port}", server.folder / "elsewhere"
    files = ("--token-file", server.token_file, "--tls-ca", server.ca.file)
    words = ("--state-dir", elsewhere, "--name", "n1", "--slots", 1, "--no-warm")
    agent = start(server.folder, "agent", "agent", "--server", url, *files, *words)

    def nodes(*words: object, **env: str) -> list[dict[str, Any]]:
        done = coddl(server.folder, "nodes", "-o", "json", *words, **env)
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    eventually(lambda: nodes("--state-dir", server.state), "the agent")  # by server.json alone
    (node,) = nodes("--server", url, "--state-dir", elsewhere, *files)
    assert (node["name"], node["state"]) == ("n1", "UP")
    assert node["python"] == ".".join(map(str, sys.version_info[:3]))
    by_variables = {
        "CODDL_SERVER": url,
        "CODDL_TOKEN_FILE": str(server.token_file),
        "CODDL_TLS_CA": str(server.ca.file),
        "CODDL_STATE_DIR": str(elsewhere),
    }
    assert nodes(**by_variables)[0]["name"] == "n1"
    agent.end()
    token = server.token_file.read_text().strip()
    assert token not in agent.log.read_text()
    assert token not in " ".join(agent.process.args)  # type: ignore[arg-type] # a list


REFUSED = {
    "a CA that is not named": (
        ("--server", "https://localhost:{port}"),
        "error: the server at https://localhost:{port} is not trusted\n"
        "  because its certificate is of no CA that is trusted here",
        "--tls-ca FILE, or CODDL_TLS_CA, with the certificate of the pool's CA",
    ),
    "a name that is not in the certificate": (
        ("--server", "https://127.0.0.1:{port}", "--tls-ca", "ca.pem"),
        "  because its certificate is for another name",
        "--server with a name that is in the certificate",
    ),
    "no TLS where the server speaks it": (
        ("--server", "http://127.0.0.1:{port}"),
        "error: http://127.0.0.1:{port} can't be reached\n"
        "  because it speaks TLS, and the address begins with http\n",
        "--server https://127.0.0.1:{port}",
    ),
    "TLS where the server does not speak it": (
        ("--server", "https://127.0.0.1:{plain}", "--tls-ca", "ca.pem"),
        "  because it does not speak TLS, and the address begins with https\n",
        "--server http://127.0.0.1:{plain}",
    ),
    "a CA that is none": (
        ("--server", "https://127.0.0.1:{port}", "--tls-ca", "head.key"),
        "error: --tls-ca head.key can't be used\n  because head.key: it holds no certificate\n",
        "a PEM file with the CA's certificate",
    ),
    "a CA beside an address without TLS": (
        ("--server", "http://head:1", "--tls-ca", "ca.pem"),
        "  because it has no TLS, and a CA is given for it: ca.pem\n",
        "--server https://head:1",
    ),
    "a token that others can read": (
        ("--server", "https://127.0.0.1:{port}", "--tls-ca", "ca.pem", "--token-file", "open"),
        "error: the token can't be used\n  because others can read open: its mode is 644\n",
        "chmod 600 open",
    ),
}


@pytest.mark.parametrize("command", ["nodes", "agent"])
@pytest.mark.parametrize(("words", "said", "try_"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_wrong_is_told_and_what_to_try(
    words: tuple[str, ...], said: str, try_: str, command: str, server: TlsServer
) -> None:
    (server.folder / "open").write_text(server.token_file.read_text())
    (server.folder / "open").chmod(0o644)
    parts = {"port": server.port, "plain": server.plain}
    told = [word.format(**parts) for word in words]
    more = ("--slots", "1", "--no-warm", "--name", "x") if command == "agent" else ()
    token = () if "--token-file" in told else ("--token-file", server.token_file)
    state = ("--state-dir", server.folder / "other")
    done = coddl(server.folder, command, *told, *token, *more, *state)
    assert done.returncode in (1, 2)
    assert said.format(**parts) in done.stderr
    assert f"  try     {try_.format(**parts)}" in done.stderr
    assert "Traceback" not in done.stderr
