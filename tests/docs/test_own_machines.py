"""What the page on your own machines says is tried: the certificate, and the units of systemd."""

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coddl.api.tls import TlsFiles
from coddl.server.tls import certificate_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own-machines.md").read_text(encoding="utf-8")
UNITS = sorted((ROOT / "examples" / "systemd").glob("*.service"))
COMMAND = f"{Path(sys.executable).parent}/coddl"
INSTALLED = "/opt/coddl/bin/coddl"


def service_of(unit: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign] # names are as they are
    parser.read_string(unit.read_text())
    return parser["Service"]


def test_the_commands_make_a_certificate_that_strict_clients_accept(tmp_path: Path) -> None:
    (script,) = (text for text in re.findall(r"```bash\n(.*?)```", PAGE, re.S) if "openssl" in text)
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, check=True, capture_output=True)
    files = TlsFiles(tmp_path / "head.pem", tmp_path / "head.key", str(tmp_path / "ca.pem"))
    certificate = certificate_of(files)
    assert certificate.names == ("head", "head.example.org", "localhost", "10.0.0.5")
    strict = ["openssl", "verify", "-x509_strict", "-CAfile", "ca.pem", "head.pem"]
    # As Python does from 3.13 on.
    assert subprocess.run(strict, cwd=tmp_path, check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_a_unit(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    mine = tmp_path / unit.name
    mine.write_text(unit.read_text().replace(INSTALLED, COMMAND))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(mine)], capture_output=True, text=True, check=False
    )
    # It ignores what it does not know, and says so; other units of the machine are not ours.
    assert [line for line in done.stderr.splitlines() if unit.stem in line] == []
    assert done.returncode == 0


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_a_command_with_options_that_exist(unit: Path) -> None:
    program, *words = service_of(unit)["ExecStart"].split()
    assert program == INSTALLED
    done = subprocess.run([COMMAND, *words, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["coddl-agent", "coddl-pool"])
def test_stopping_a_unit_leaves_time_to_save_jobs(name: str) -> None:
    from coddl.engines.processes import CLOSE_S, LEAVE_S

    service = service_of(ROOT / "examples" / "systemd" / f"{name}.service")
    assert service["KillMode"] == "mixed"
    assert float(service["TimeoutStopSec"]) > LEAVE_S + CLOSE_S


def test_every_setting_that_the_page_explains_is_in_a_unit() -> None:
    table = PAGE.partition("## What the unit files set")[2].partition("\n## ")[0]
    texts = [unit.read_text() for unit in UNITS]
    settings = re.findall(r"`([A-Z]\w+=[^`]+)`", table)
    assert len(settings) > 7
    assert [each for each in settings if not any(f"\n{each}\n" in text for text in texts)] == []
