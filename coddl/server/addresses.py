"""Where a server can be found: by this machine, and by others."""

import socket
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from coddl.core.errors import UserError
from coddl.server.http import LOOPBACK
from coddl.server.tls import CANNOT, Certificate

ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # and how this machine reaches such a server
ELSEWHERE: Final = ("192.0.2.1", 9)  # an address for documentation: nothing is sent there


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The addresses of a server that listens."""

    url: str  # for this machine
    advertised: str  # for others
    hosts: frozenset[str]  # names that it answers to; empty: any
    is_local: bool  # no other machine reaches it


def endpoint_of(host: str, port: int, advertise: str, certificate: Certificate | None) -> Endpoint:
    """Say where a server that listens on `host` is found; raises UserError.

    `advertise` is the name that the operator gave, if any. With TLS every client, on this machine
    too, must use a name that is in the certificate.
    """
    if advertise and ("/" in advertise or ("]" in advertise or advertise.count(":") == 1)):
        because = f'"{advertise}" is neither a host name nor an address'
        raise UserError(f"--advertise {advertise} can't be used", because, "--advertise head")
    is_local = _is_loopback(host)
    name = advertise or (
        _chosen(host) if certificate is None else _certified(host, certificate, is_local)
    )
    if certificate is not None and not certificate.is_for(name):
        raise UserError(
            CANNOT,
            f"its certificate is not for {name}: it names {_listed(certificate)}",
            f"--advertise with one of these names, or a certificate that names {name}",
        )
    scheme = "http" if certificate is None else "https"
    advertised = f"{scheme}://{_bracketed(name)}:{port}"
    here = f"http://{_bracketed(ANY.get(host, host))}:{port}"
    hosts = LOOPBACK | {host, name} if is_local else frozenset[str]()
    return Endpoint(here if certificate is None else advertised, advertised, hosts, is_local)


def _chosen(host: str) -> str:
    """Choose how other machines name this one: by the address that its traffic comes from."""
    if host not in ANY:
        return host
    family = socket.AF_INET6 if host == "::" else socket.AF_INET
    target = ("2001:db8::1", 9) if host == "::" else ELSEWHERE
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:  # no route leads out; then what its name leads to
        return _of_own_name() or ANY[host]


def _of_own_name() -> str:
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return ""
    addresses = [str(address[0]) for *_, address in found]
    return next((each for each in addresses if not _is_loopback(each)), "")


def _certified(host: str, certificate: Certificate, is_local: bool) -> str:
    """Choose a name that is in the certificate: this machine's, if it is there."""
    if is_local:
        own = [host, "localhost"]
    else:
        own = [socket.gethostname(), socket.getfqdn(), _chosen(host)]
    plain = [] if is_local else [name for name in certificate.names if "*" not in name]
    return next((name for name in (*own, *plain) if certificate.is_for(name)), own[0])


def _listed(certificate: Certificate) -> str:
    return ", ".join(certificate.names) or "no host (subjectAltName is missing)"


def _is_loopback(host: str) -> bool:
    try:
        return host in LOOPBACK or ip_address(host).is_loopback
    except ValueError:
        return False


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
