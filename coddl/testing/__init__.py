"""For those who write policies: builders of small pictures, the contract, the uncompiled twin of a
kernel.
"""

from coddl.testing.builders import job, snapshot_of
from coddl.testing.contract import PolicyContract, snapshots
from coddl.testing.twin import twin

__all__ = ["PolicyContract", "job", "snapshot_of", "snapshots", "twin"]
