"""Whether a node of a cluster reaches what all nodes of a pool share."""

from collections.abc import Iterator
from dataclasses import dataclass

from coddl.engines.doctor.results import CheckResult, fine


@dataclass(frozen=True, slots=True)
class PoolReach:
    """What was tried from a node; empty: there was nothing to try, or no trouble."""

    server: str = ""
    server_trouble: str = ""
    jobs_dir: str = ""
    jobs_dir_trouble: str = ""


def reach_results(check: str, reach: PoolReach) -> Iterator[CheckResult]:
    """Judge what was tried from a node."""
    if reach.server_trouble:
        what = f"{reach.server} can't be reached from there"
        try_ = "coddl up --host, with an address of this machine; or the firewall"
        yield CheckResult(check, "FAIL", what, reach.server_trouble, try_)
    elif reach.server:
        yield fine(check, f"reaches {reach.server}")
    if reach.jobs_dir_trouble:
        what, try_ = f"{reach.jobs_dir} can't be used there", "a --jobs-dir that all nodes share"
        yield CheckResult(check, "FAIL", what, reach.jobs_dir_trouble, try_)
