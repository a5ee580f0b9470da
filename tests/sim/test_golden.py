"""The published simulator's averages on the Philly clusters, reproduced."""

import csv
from functools import cache

import pytest

import coddl
from coddl.traces.files import read_trace
from coddl.traces.trace import Trace
from tests.shared import PHILLY, needs_philly

SPECS = {"tiresias-l": "tiresias-l:preset=afs"}
TIES = (
    "srtf",
    "srsf",
    "tiresias-l",
)  # on 0e4a51 many jobs tie, and rounding decides who goes first


@cache
def philly() -> Trace:
    return read_trace(PHILLY / "jobs.csv.gz")


def golden() -> list[dict[str, str]]:
    path = PHILLY / "golden.csv"
    return list(csv.DictReader(path.read_text().splitlines())) if path.is_file() else []


def tolerance(row: dict[str, str]) -> float:
    if row["policy"] == "afs-p":
        return 0.02
    return 0.01 if row["vc"] == "0e4a51" and row["policy"] in TIES else 0.001


@needs_philly
@pytest.mark.parametrize("row", golden(), ids=lambda row: f"{row['vc']}-{row['policy']}")
def test_average_jct(row: dict[str, str]) -> None:
    policy = SPECS.get(row["policy"], row["policy"])
    results = coddl.simulate(philly(), policy, vc=row["vc"], gpus=int(row["gpus"]))
    assert results["jobs"][0] == int(row["jobs"])
    published_s = float(row["avg_jct_min"]) * 60
    assert results["avg_jct_s"][0] == pytest.approx(published_s, rel=tolerance(row))


@needs_philly
def test_the_published_advantage_over_srtf() -> None:
    results = coddl.simulate(philly(), ["srtf", "afs-l"], vc="ed69ec", gpus=64)
    srtf, afs_l = results["avg_jct_s"]
    assert srtf / afs_l == pytest.approx(2.67, abs=0.005)


# Average JCT in minutes with so many seconds at every change, by the AFS authors' public code.
STALLS = {0: 188, 30: 191, 60: 193, 120: 198, 300: 215}


@needs_philly
@pytest.mark.parametrize("seconds", STALLS)
def test_what_a_stall_costs(seconds: int) -> None:
    results = coddl.simulate(philly(), "afs-l", vc="103959", reconfigure=f"stall:{seconds}")
    assert round(results["avg_jct_s"][0] / 60) == STALLS[seconds]


# Share changes of started jobs, as counted for the published policies (the same table).
CHANGES = {("ed69ec", "srtf"): 76, ("ed69ec", "tiresias-l:preset=afs"): 0,
           ("0e4a51", "tiresias-l:preset=afs"): 2488}  # fmt: skip


@needs_philly
@pytest.mark.parametrize(("vc", "policy"), CHANGES)
def test_how_often_shares_change(vc: str, policy: str) -> None:
    results = coddl.simulate(philly(), policy, vc=vc)
    assert results["reallocations"][0] == CHANGES[vc, policy]
