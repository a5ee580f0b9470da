"""TLS to a pool's server: which certificates are trusted, and in words what is wrong with one.

Certificates and host names are always verified: by the CAs of this machine or, where a file of CAs
is given (`--tls-ca`, CODDL_TLS_CA), by these alone.
"""

import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from coddl.core.errors import UserError

PROBE_S: Final = 2.0
# What OpenSSL says to an answer that is no TLS; the words depend on its version.
NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"})


class TlsRefused(UserError):
    """No TLS with the server: its certificate is not accepted, or one side does not speak TLS."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What `--tls-cert`, `--tls-key` and `--tls-ca` name."""

    cert: Path  # with the certificates between it and its CA, if there are such
    key: Path
    ca: str = ""  # empty: this machine's CAs, or the certificate itself if it is self-signed

    @property
    def words(self) -> list[str]:
        """Return the options that name them."""
        words = ["--tls-cert", str(self.cert), "--tls-key", str(self.key)]
        return words + (["--tls-ca", self.ca] if self.ca else [])


def trust(url: str, ca: str = "") -> ssl.SSLContext | None:
    """Return what verifies the server at an address; None: no TLS is spoken there.

    Raises UserError if the file of CAs can't be used.
    """
    return trusted(ca) if urlsplit(url).scheme == "https" else None


def trusted(ca: str = "") -> ssl.SSLContext:
    """Return what verifies servers: by the CAs of a file, or else those of this machine."""
    try:
        return ssl.create_default_context(cafile=ca or None)
    except OSError as error:
        told = "it holds no certificate" if isinstance(error, ssl.SSLError) else error.strerror
        raise UserError(
            f"--tls-ca {ca} can't be used", f"{ca}: {told}", "a PEM file with the CA's certificate"
        ) from None


def tls_refusal(error: BaseException, url: str) -> TlsRefused | None:
    """Say what is wrong between TLS and a server, if that is why an attempt to reach it failed."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return TlsRefused(f"the server at {url} is not trusted", *_words_of(cause))
        if isinstance(cause, ssl.SSLError) and cause.reason in NO_TLS:
            http = url.replace("https://", "http://", 1)
            because = "it does not speak TLS, and the address begins with https"
            return TlsRefused(f"{url} can't be reached", because, f"--server {http}")
    return None


def plain_refusal(url: str) -> TlsRefused | None:
    """Say that a server which hung up on plain HTTP speaks TLS, if it does."""
    if urlsplit(url).scheme != "http" or not _speaks_tls(url):
        return None
    https = url.replace("http://", "https://", 1)
    because = "it speaks TLS, and the address begins with http"
    return TlsRefused(f"{url} can't be reached", because, f"--server {https}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _words_of(error: ssl.SSLCertVerificationError) -> tuple[str, str]:
    """Return why a certificate was not accepted, and what to try."""
    match error.verify_code:
        case 9:
            return "its certificate is not valid yet", "check the clocks of both machines"
        case 10:
            return "its certificate has expired", "a new certificate; the server reads it at start"
        case 62 | 64:
            return (
                f"its certificate is for another name ({error.verify_message.rstrip('.')})",
                "--server with a name that is in the certificate",
            )
        case _:
            return (
                f"its certificate is of no CA that is trusted here ({error.verify_message})",
                "--tls-ca FILE, or CODDL_TLS_CA, with the certificate of the pool's CA",
            )


def _speaks_tls(url: str) -> bool:
    """Return whether TLS is spoken at an address. Nothing but a handshake is sent."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        with (
            socket.create_connection((host, parts.port or 80), PROBE_S) as line,
            ssl.create_default_context().wrap_socket(line, server_hostname=host),
        ):
            return True
    except ssl.SSLCertVerificationError:
        return True
    except (OSError, ValueError):
        return False
