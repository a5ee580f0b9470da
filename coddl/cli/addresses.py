"""Options that say where a server is, how others find it, and how both sides are known."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coddl.core.errors import UserError

if TYPE_CHECKING:
    from coddl.api.tls import TlsFiles

PORT: Final = 7433
LOOPBACK: Final = "127.0.0.1"

Host = Annotated[
    str,
    typer.Option(
        metavar="HOST",
        help="Address to listen on (default: 127.0.0.1; with --engine slurm: 0.0.0.0, all).",
    ),
]
Port = Annotated[
    int, typer.Option(min=0, max=65535, metavar="PORT", help="Port of the server; 0: any free one.")
]
Advertise = Annotated[
    str,
    typer.Option(
        metavar="HOST",
        help="Name or address of this machine for others (default: of the certificate, or found).",
    ),
]
AgentHost = Annotated[
    str,
    typer.Option(
        metavar="HOST",
        help="Address at which other nodes reach this one (default: the one the server sees).",
    ),
]
TlsCert = Annotated[
    str,
    typer.Option(metavar="FILE", help="Certificate (PEM, with its chain): serve HTTPS alone."),
]
TlsKey = Annotated[str, typer.Option(metavar="FILE", help="Key of the certificate (PEM).")]
TlsCa = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        envvar="CODDL_TLS_CA",
        help="CA that the server's certificate is verified by (default: this machine's CAs).",
    ),
]
TokenFile = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        envvar="CODDL_TOKEN_FILE",
        help="File with the pool's token (default: in the state directory).",
    ),
]


def tls_files(cert: str, key: str, ca: str) -> "TlsFiles | None":
    """Read what a server was given for TLS; None: nothing."""
    from coddl.api.tls import TlsFiles

    if bool(cert) != bool(key):
        given, missing = ("--tls-cert", "--tls-key") if cert else ("--tls-key", "--tls-cert")
        raise UserError(
            f"{given} can't be used by itself",
            f"TLS needs a certificate and its key, and {missing} is not given",
            "--tls-cert FILE --tls-key FILE",
        )
    if not cert:
        return None
    return TlsFiles(
        Path(cert).absolute(), Path(key).absolute(), str(Path(ca).absolute()) if ca else ""
    )
