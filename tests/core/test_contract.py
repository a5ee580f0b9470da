"""Every policy of the registry keeps the contract."""

import pytest

from coddl.core.columns import IntColumn
from coddl.core.policies.policy import Policy
from coddl.core.policies.registry import POLICIES, policy_from
from coddl.core.snapshot import Snapshot
from coddl.testing import PolicyContract

ELASTIC = ("themis", "themis:form=greedy", "themis:form=max-min",
           "afs-l", "afs-l-kinds", "afs-p-kinds", "max-min-kinds",
           "afs-l:contest=tournament", "afs-p", "afs-p:tie=keep",
           "afs-p:contest=tournament", "max-min", "max-speedup", "optimus",
           "optimus-ps", "optimus-ps:slot_s=0", "drf", "tetris")  # fmt: skip
RIGID = ("srtf", "srsf", "tiresias-g", "tiresias-l", "tiresias-l:preset=afs",
         "tiresias-l:threshold_gpu_h=0.01/0.1", "fifo:backfill=true", "gandiva",
         "philly")  # fmt: skip


class TestElastic(PolicyContract):
    @pytest.fixture(scope="class", params=ELASTIC)
    @classmethod
    def policy(cls, request: pytest.FixtureRequest) -> Policy:
        return policy_from(request.param)


class TestRigid(PolicyContract):
    @pytest.fixture(scope="class", params=RIGID)
    @classmethod
    def policy(cls, request: pytest.FixtureRequest) -> Policy:
        return policy_from(request.param)

    def needs(self, snapshot: Snapshot) -> IntColumn:
        return snapshot.jobs.gpus_requested


class TestStrictFifo(PolicyContract):
    work_conserving = False  # nobody overtakes the first in line

    @pytest.fixture(scope="class")
    @classmethod
    def policy(cls) -> Policy:
        return policy_from("fifo")


def test_no_policy_is_left_out() -> None:
    assert {spec.partition(":")[0] for spec in (*ELASTIC, *RIGID, "fifo")} == set(POLICIES)
