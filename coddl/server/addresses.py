"""Where a server can be found: by this machine, and by others."""

import contextlib
import fcntl
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from coddl.core.errors import UserError
from coddl.server.http import LOOPBACK
from coddl.server.tls import CANNOT, Certificate

ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # and how this machine reaches such a server
# Addresses for documentation: nothing is sent there.
ELSEWHERE: Final = {socket.AF_INET: ("192.0.2.1", 9), socket.AF_INET6: ("2001:db8::1", 9)}
SIOCGIFADDR: Final = 0x8915  # of linux/sockios.h: the address of an interface


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The addresses of a server that listens."""

    url: str  # for this machine
    advertised: str  # for others
    hosts: frozenset[str]  # names that it answers to; empty: any
    is_local: bool  # no other machine reaches it


def endpoint_of(host: str, port: int, advertise: str, certificate: Certificate | None) -> Endpoint:
    """Return where a server that listens on `host` is found; raises UserError.

    `advertise` is the name that the operator gave, if any. With TLS every client, on this machine
    too, must use a name that is in the certificate.
    """
    _check_name(advertise, host)
    name = advertise or (_chosen(host) if certificate is None else _certified(host, certificate))
    if certificate is not None and not certificate.is_for(name):
        raise UserError(
            CANNOT,
            f"its certificate is not for {name}: it names {_listed(certificate)}",
            f"--advertise with one of these names, or a certificate that names {name}",
        )
    scheme = "http" if certificate is None else "https"
    hosts = LOOPBACK | {host, name} if _is_loopback(host) else frozenset[str]()
    return Endpoint(
        f"{scheme}://{_bracketed(_name_here(host, name, certificate))}:{port}",
        f"{scheme}://{_bracketed(name)}:{port}",
        hosts,
        is_local=_is_loopback(name),
    )


def _check_name(advertise: str, host: str) -> None:
    what = f"--advertise {advertise} can't be used"
    if "/" in advertise or "]" in advertise or advertise.count(":") == 1:
        because = f'"{advertise}" is neither a host name nor an address'
        raise UserError(what, because, "--advertise head")
    if advertise and _is_loopback(host) and not _is_loopback(advertise):
        because = f"the server listens on {host}, which other machines can't reach"
        raise UserError(what, because, "--host 0.0.0.0")


def _name_here(host: str, name: str, certificate: Certificate | None) -> str:
    """Choose how this machine names itself: by loopback, if the server can be asked so."""
    if certificate is None:
        return ANY.get(host, host)
    own = [ANY[host], "localhost"] if host in ANY else []
    return next((each for each in own if certificate.is_for(each)), name)


def _chosen(host: str) -> str:
    """Choose how other machines name this one: by the address that its traffic comes from."""
    if host not in ANY:
        return host
    family = socket.AF_INET6 if host == "::" else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(ELSEWHERE[family])
            return str(probe.getsockname()[0])
    except OSError:  # no route leads out of its own network
        return next(_own_addresses(), ANY[host])


def _own_addresses() -> Iterator[str]:
    """Yield the IPv4 addresses of this machine by which others may reach it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_:
        for _, name in socket.if_nameindex():
            asked = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # an interface without one
                found = socket.inet_ntoa(fcntl.ioctl(any_, SIOCGIFADDR, asked)[20:24])
                if not _is_loopback(found):
                    yield found


def _certified(host: str, certificate: Certificate) -> str:
    """Choose a name that is in the certificate: this machine's, if it is there."""
    if is_local := _is_loopback(host):
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
