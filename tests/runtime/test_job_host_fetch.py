"""A job whose checkpoints are at a URI begins on a node that shares no files with its lead's."""

from dataclasses import replace
from pathlib import Path

import pytest

from coddl.runtime.supervisor import job_host
from coddl.runtime.supervisor.job_status import RETIRED
from coddl.testing.remote_files import FakeRemoteFiles
from tests.runtime.harness import fake_torch
from tests.runtime.nodes import JOB
from tests.runtime.test_job_host_server import Open, pool

__all__ = ["fake_torch", "pool"]  # fixtures


def test_a_job_goes_on_at_a_node_that_shares_no_files_with_its_lead(
    pool: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(job_host, "FETCH_AGAIN_S", 0.01)
    remote = FlakyRemoteFiles()
    nodes = pool({"steps": 3000})
    for node in nodes.nodes:
        environment = replace(nodes.environment, folder=tmp_path / node.name, remote=remote)
        node.agent.environments[JOB] = environment
    lead = nodes.lead(folder=tmp_path / "node-0", remote=remote)
    nodes.assign(lead, 1, 1)
    lead.wait_size(2)
    lead.wait_step(5)
    lead.supervisor.retire()
    assert lead.end() == RETIRED
    (name,) = [each for each in remote.names() if each.endswith(".ckpt")]
    assert not list(tmp_path.glob("node-*/*.ckpt")), "its state is with the remote alone"

    remote.refusals = 3  # of what the other node asks for
    lead = nodes.lead(0, attempt=2, folder=tmp_path / "node-0", remote=remote)
    nodes.assign(lead, 0, 2)
    lead.wait_size(2)
    assert lead.told("origin")[0]["where"] == "checkpoint"
    assert (tmp_path / "node-1" / name).exists()
    assert "can't be fetched: not now; trying again" in nodes.nodes[1].agent.printed()
    lead.wait_step(lead.told("origin")[0]["step"] + 5)
    lead.supervisor.retire()
    assert lead.end() == RETIRED
    assert not list(tmp_path.glob("node-1/*.ckpt")), "copies are removed with the next save"


class FlakyRemoteFiles(FakeRemoteFiles):
    """Refuses to give a file to a node that is not the lead's, some times."""

    refusals = 0

    def read(self, name: str, to: Path) -> None:
        if to.parent.name == "node-1" and self.refusals:
            self.refusals -= 1
            raise ConnectionError("not now")
        super().read(name, to)
