"""Certificates for tests, made by openssl: a CA, what it signs, and what goes wrong with them."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coddl.api.tls import TlsFiles

LOOPBACK: Final = "DNS:localhost,IP:127.0.0.1"
KEY: Final = ("-newkey", "rsa:2048", "-nodes")


@dataclass(frozen=True, slots=True)
class CertificateAuthority:
    """A CA that only the tests know."""

    folder: Path

    @property
    def file(self) -> Path:
        """Its own certificate."""
        return self.folder / "ca.pem"

    def sign(self, name: str, hosts: str = LOOPBACK) -> TlsFiles:
        """Give a certificate for some hosts, signed by this CA."""
        by = ("-CA", str(self.file), "-CAkey", str(self.folder / "ca.key"))
        leaf = ("-addext", "basicConstraints=critical,CA:FALSE")
        return _made(self.folder / name, hosts, *by, *leaf)


def make_ca(folder: Path) -> CertificateAuthority:
    """Make a CA in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    _openssl(
        *("req", "-x509", *KEY, "-days", "2", "-subj", "/CN=CA of a test"),
        *("-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.pem")),
        *("-addext", "keyUsage=critical,keyCertSign"),
    )
    return CertificateAuthority(folder)


def self_signed(path: Path, hosts: str = LOOPBACK) -> TlsFiles:
    """Give a certificate that is its own CA."""
    return _made(path, hosts)


def expired(path: Path) -> TlsFiles:
    """Give a self-signed certificate whose time has passed."""
    made = _made(path, LOOPBACK)
    _openssl(
        *("req", "-new", "-key", str(made.key), "-subj", "/CN=test", "-out", f"{path}.csr"),
        *("-addext", f"subjectAltName={LOOPBACK}"),
    )
    config = path.with_suffix(".cnf")
    config.write_text(
        "[ca]\ndefault_ca=d\n[d]\npolicy=p\n"
        f"database={path}.db\nserial={path}.serial\nnew_certs_dir={path.parent}\n"
        "default_md=sha256\ncopy_extensions=copy\n[p]\nCN=supplied\n"
    )
    Path(f"{path}.db").touch()
    Path(f"{path}.serial").write_text("01")
    _openssl(
        *("ca", "-batch", "-selfsign", "-config", str(config), "-keyfile", str(made.key)),
        *("-in", f"{path}.csr", "-out", str(made.cert), "-notext"),
        *("-startdate", "20200101000000Z", "-enddate", "20200201000000Z"),
    )
    return made


def encrypted(path: Path, files: TlsFiles) -> TlsFiles:
    """Give the same certificate with a key that asks for a password."""
    _openssl(
        *("pkey", "-in", str(files.key), "-aes128", "-passout", "pass:secret", "-out", str(path))
    )
    return TlsFiles(files.cert, path)


def _made(path: Path, hosts: str, *more: str) -> TlsFiles:
    files = TlsFiles(path.with_suffix(".pem"), path.with_suffix(".key"))
    _openssl(
        *("req", "-x509", *KEY, "-days", "2", "-subj", "/CN=test", *more),
        *("-keyout", str(files.key), "-out", str(files.cert)),
        *(("-addext", f"subjectAltName={hosts}") if hosts else ()),
    )
    return files


def _openssl(*words: str) -> None:
    done = subprocess.run(["openssl", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
