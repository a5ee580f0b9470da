"""Every placement by name, and `name:parameter=value,…` as users write it."""

from collections.abc import Mapping
from typing import Final, Protocol

from coddl.core.allocation import Allocation
from coddl.core.named import chosen
from coddl.core.placement.consolidate import Consolidate
from coddl.core.placement.estimate import ByEstimate
from coddl.core.placement.gandiva import GandivaPlacement
from coddl.core.placement.optimus import OptimusPlacement
from coddl.core.placement.philly import PhillyPlacement
from coddl.core.placement.placement import Placed
from coddl.core.placement.spread import SpreadOut
from coddl.core.placement.tiresias import TiresiasPlacement
from coddl.core.snapshot import Snapshot


class NamedPlacement(Protocol):
    """A placement as a class: its parameters are the class's fields."""

    def __call__(self, snapshot: Snapshot, allocation: Allocation) -> Placed:
        """Find places."""


PLACEMENTS: Final[Mapping[str, type[NamedPlacement]]] = {
    "consolidate": Consolidate,
    "estimate": ByEstimate,
    "gandiva": GandivaPlacement,
    "optimus": OptimusPlacement,
    "philly": PhillyPlacement,
    "spread": SpreadOut,
    "tiresias": TiresiasPlacement,
}


def placement_from(spec: str) -> NamedPlacement:
    """Build the placement that `name:parameter=value,…` describes."""
    return chosen(PLACEMENTS, spec, "placement")
