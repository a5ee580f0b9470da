"""The server's certificate: read at the start, and verified as its clients will verify it.

What would keep every client out (a key of another certificate, one that has expired, a CA that
this machine does not know, a name that is not in it) keeps the server from starting.
"""

import contextlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coddl.api.tls import TlsFiles, tls_refusal, trusted
from coddl.core.errors import UserError

CANNOT: Final = "the server cannot start"
FLIGHTS_MAX: Final = 10  # of messages in a handshake


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that clients can verify."""

    context: ssl.SSLContext  # of the server
    names: tuple[str, ...]  # host names and addresses that it is for
    ca: str  # the file that verifies it; empty: this machine's CAs

    def is_for(self, host: str) -> bool:
        """Return whether clients accept it from a server of that name."""
        try:
            _handshake(self.context, trusted(self.ca), host)
        except ssl.SSLCertVerificationError:
            return False
        return True


def certificate_of(files: TlsFiles) -> Certificate:
    """Read and verify the server's certificate; raises UserError if no client would accept it."""
    context = _context(files)
    cas = [str(Path(files.ca).absolute())] if files.ca else ["", str(files.cert.absolute())]
    for ca in cas:
        try:
            return Certificate(context, _names(context, ca), ca)
        except ssl.SSLCertVerificationError as error:
            refused = error
    told = tls_refusal(refused, "")
    assert told is not None
    raise UserError(CANNOT, f"--tls-cert {files.cert}: {told.because}", told.try_)


def _context(files: TlsFiles) -> ssl.SSLContext:
    for option, path in (("--tls-cert", files.cert), ("--tls-key", files.key)):
        try:
            path.read_bytes()
        except OSError as error:
            raise UserError(
                CANNOT, f"{option} {path}: {error.strerror}", f"{option} with a PEM file"
            ) from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def no_password() -> str:  # OpenSSL would ask for one at the terminal
        raise UserError(
            CANNOT, f"--tls-key {files.key} is encrypted", f"openssl pkey -in {files.key}"
        )

    try:
        context.load_cert_chain(files.cert, files.key, password=no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            because = f"--tls-key {files.key} is not the key of --tls-cert {files.cert}"
        else:
            because = f"{files.cert} or {files.key} is not in PEM format"
        raise UserError(CANNOT, because, "--tls-cert FILE --tls-key FILE") from None
    return context


def _names(context: ssl.SSLContext, ca: str) -> tuple[str, ...]:
    """Verify the certificate by a CA, and name the hosts that it is for."""
    client = trusted(ca)
    client.check_hostname = False  # within this process: the names are what we want to know
    found = _handshake(context, client, "localhost")
    pairs = found.get("subjectAltName", ())
    assert isinstance(pairs, tuple)
    return tuple(str(name) for _kind, name in pairs)


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> Mapping[str, object]:
    """Run a TLS handshake in memory, and return the certificate as the client sees it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(FLIGHTS_MAX):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return ends[0].getpeercert() or {}
