"""Every policy of the registry keeps the contract."""

import pytest

from coddl.core.columns import IntColumn
from coddl.core.policies.policy import Policy
from coddl.core.registry import POLICIES, policy_from
from coddl.core.snapshot import Snapshot
from coddl.testing import PolicyContract

# Beside every policy as it is by default.
VARIANTS = ("themis:form=greedy", "themis:form=max-min", "afs-l:contest=tournament",
            "afs-p:tie=keep", "afs-p:contest=tournament", "optimus-ps:slot_s=0",
            "tiresias-l:preset=afs", "tiresias-l:threshold_gpu_h=0.01/0.1",
            "fifo:backfill=true")  # fmt: skip
SPECS = [spec for spec in (*POLICIES, *VARIANTS) if spec != "fifo"]
RIGID = [spec for spec in SPECS if getattr(policy_from(spec), "rigid", False)]


class TestElastic(PolicyContract):
    @pytest.fixture(scope="class", params=[spec for spec in SPECS if spec not in RIGID])
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
