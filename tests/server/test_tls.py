"""The server's certificate, and the addresses that it is found at."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from coddl.api.tls import TlsFiles
from coddl.core.errors import UserError
from coddl.server.addresses import endpoint_of
from coddl.server.tls import certificate_of
from tests.certificates import encrypted, expired, make_ca, self_signed

Make = Callable[[Path], TlsFiles]


def of_other_key(folder: Path) -> TlsFiles:
    return TlsFiles(self_signed(folder / "a").cert, self_signed(folder / "b").key)


def of_unknown_ca(folder: Path) -> TlsFiles:
    return make_ca(folder).sign("leaf")


def of_other_ca(folder: Path) -> TlsFiles:
    leaf = make_ca(folder / "one").sign("leaf")
    return TlsFiles(leaf.cert, leaf.key, str(make_ca(folder / "two").file))


def no_certificate(folder: Path) -> TlsFiles:
    (folder / "x.pem").write_text("hello")
    return TlsFiles(folder / "x.pem", self_signed(folder / "a").key)


def ca_is_no_certificate(folder: Path) -> TlsFiles:
    leaf = self_signed(folder / "a")
    (folder / "x.pem").write_text("hello")
    return TlsFiles(leaf.cert, leaf.key, str(folder / "x.pem"))


BAD: dict[str, tuple[Make, str]] = {
    "no such file": (
        lambda folder: TlsFiles(folder / "no.pem", folder / "no.key"),
        r"--tls-cert .*/no.pem: No such file or directory",
    ),
    "a key of another certificate": (
        of_other_key,
        r"--tls-key .*/b.key is not the key of --tls-cert .*/a.pem",
    ),
    "an encrypted key": (
        lambda folder: encrypted(folder / "locked.key", self_signed(folder / "a")),
        r"--tls-key .*/locked.key is encrypted",
    ),
    "no certificate": (no_certificate, r"x.pem or .*a.key is not in PEM format"),
    "an expired certificate": (
        lambda folder: expired(folder / "old"),
        "its certificate has expired",
    ),
    "a CA that nobody named": (of_unknown_ca, "its certificate is of no CA that is trusted here"),
    "another CA": (of_other_ca, "its certificate is of no CA that is trusted here"),
    "a CA that is none": (ca_is_no_certificate, r"x.pem: it holds no certificate"),
}


@pytest.mark.parametrize(("make", "because"), BAD.values(), ids=BAD.keys())
def test_a_certificate_that_no_client_would_accept_is_refused(
    make: Make, because: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=because) as refused:
        certificate_of(make(tmp_path))
    assert refused.value.try_


def test_who_verifies_a_certificate_is_found_out(tmp_path: Path) -> None:
    own = certificate_of(self_signed(tmp_path / "own"))
    assert own.ca == str(tmp_path / "own.pem")
    assert own.names == ("localhost", "127.0.0.1")
    ca = make_ca(tmp_path)
    leaf = ca.sign("leaf", "DNS:head,DNS:*.cluster.example,IP:10.0.0.5")
    signed = certificate_of(TlsFiles(leaf.cert, leaf.key, str(ca.file)))
    assert signed.ca == str(ca.file)
    names = ("head", "n1.cluster.example", "10.0.0.5", "localhost", "10.0.0.6", "cluster.example")
    assert [signed.is_for(name) for name in names] == [True, True, True, False, False, False]


def test_without_tls_the_address_is_the_one_given() -> None:
    here = endpoint_of("127.0.0.1", 80, "", None)
    assert (here.url, here.advertised) == ("http://127.0.0.1:80",) * 2
    assert here.is_local
    assert "127.0.0.1" in here.hosts
    assert endpoint_of("10.0.0.5", 80, "", None).advertised == "http://10.0.0.5:80"
    any_ = endpoint_of("0.0.0.0", 80, "head", None)
    assert (any_.url, any_.advertised) == ("http://127.0.0.1:80", "http://head:80")
    assert not any_.is_local
    assert any_.hosts == frozenset()
    six = endpoint_of("::", 80, "fd00::5", None)
    assert (six.url, six.advertised) == ("http://[::1]:80", "http://[fd00::5]:80")
    found = endpoint_of("0.0.0.0", 80, "", None).advertised
    assert "0.0.0.0" not in found


@pytest.mark.parametrize("advertise", ["http://head", "head:7433", "[::1]"])
def test_what_names_no_host_is_refused(advertise: str) -> None:
    with pytest.raises(UserError, match="is neither a host name nor an address"):
        endpoint_of("0.0.0.0", 80, advertise, None)


CHOSEN = {
    "the address, if it is there": ("127.0.0.1", "", "DNS:localhost,IP:127.0.0.1", "127.0.0.1"),
    "localhost else": ("127.0.0.1", "", "DNS:localhost", "localhost"),
    "the machine's own name": ("0.0.0.0", "", f"DNS:pool,DNS:{socket.gethostname()}", None),
    "any other, if that is not there": ("0.0.0.0", "", "DNS:*.x,DNS:pool.example", "pool.example"),
    "the one given": ("0.0.0.0", "b", "DNS:a,DNS:b", "b"),
}


def test_a_name_for_others_is_refused_where_they_could_not_reach_the_server() -> None:
    with pytest.raises(UserError, match=r"listens on 127.0.0.1, which other machines can't reach"):
        endpoint_of("127.0.0.1", 80, "head", None)
    assert endpoint_of("127.0.0.1", 80, "localhost", None).advertised == "http://localhost:80"


def test_with_tls_this_machine_uses_loopback_if_that_is_in_the_certificate(tmp_path: Path) -> None:
    names = "DNS:head,DNS:localhost"
    endpoint = endpoint_of(
        "0.0.0.0", 80, "head", certificate_of(self_signed(tmp_path / "a", names))
    )
    assert (endpoint.url, endpoint.advertised) == ("https://localhost:80", "https://head:80")
    assert not endpoint.is_local


@pytest.mark.parametrize(("host", "given", "names", "want"), CHOSEN.values(), ids=CHOSEN.keys())
def test_with_tls_the_address_is_in_the_certificate(
    host: str, given: str, names: str, want: str | None, tmp_path: Path
) -> None:
    certificate = certificate_of(self_signed(tmp_path / "own", names))
    endpoint = endpoint_of(host, 80, given, certificate)
    assert endpoint.advertised == f"https://{want or socket.gethostname()}:80"
    assert endpoint.url == endpoint.advertised


@pytest.mark.parametrize(
    ("host", "given", "names", "because"),
    [
        ("0.0.0.0", "head", "DNS:other,IP:10.0.0.5", "is not for head: it names other, 10.0.0.5"),
        ("127.0.0.1", "", "DNS:other", "is not for 127.0.0.1: it names other"),
        ("0.0.0.0", "head", "", "is not for head: it names no host"),
    ],
)
def test_a_name_that_is_not_in_the_certificate_is_refused(
    host: str, given: str, names: str, because: str, tmp_path: Path
) -> None:
    certificate = certificate_of(self_signed(tmp_path / "own", names))
    with pytest.raises(UserError, match=because):
        endpoint_of(host, 80, given, certificate)
