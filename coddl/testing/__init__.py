"""For those who write policies and placements: builders of small snapshots, the contracts, the
uncompiled twin of a kernel.
"""

from coddl.testing.builders import job, snapshot_of
from coddl.testing.contract import PolicyContract, snapshots
from coddl.testing.placement_contract import PlacementContract, placing
from coddl.testing.twin import twin

__all__ = [
    "PlacementContract",
    "PolicyContract",
    "job",
    "placing",
    "snapshot_of",
    "snapshots",
    "twin",
]
