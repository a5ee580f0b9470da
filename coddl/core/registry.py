"""Every policy and every placement by name, and `name:parameter=value,…` as users write it."""

from collections.abc import Mapping
from typing import Final

from coddl.core.named import from_spec
from coddl.core.parameter_server.drf import Drf
from coddl.core.parameter_server.optimus import OptimusPs
from coddl.core.parameter_server.placement import OptimusPlacement
from coddl.core.parameter_server.tetris import Tetris
from coddl.core.placement.consolidate import Consolidate
from coddl.core.placement.estimate import ByEstimate
from coddl.core.placement.gandiva import GandivaPlacement
from coddl.core.placement.philly import PhillyPlacement
from coddl.core.placement.placement import NamedPlacement
from coddl.core.placement.spread import SpreadOut
from coddl.core.placement.tiresias import TiresiasPlacement
from coddl.core.policies.afs import AfsL, AfsP
from coddl.core.policies.fifo import Fifo
from coddl.core.policies.gandiva.policy import Gandiva
from coddl.core.policies.gittins import TiresiasG
from coddl.core.policies.marginal_gain import MaxSpeedup, Optimus
from coddl.core.policies.max_min import MaxMin
from coddl.core.policies.philly import Philly
from coddl.core.policies.policy import NamedPolicy
from coddl.core.policies.shortest import Srsf, Srtf
from coddl.core.policies.themis import Themis
from coddl.core.policies.tiresias import TiresiasL

POLICIES: Final[Mapping[str, type[NamedPolicy]]] = {
    "afs-l": AfsL,
    "afs-p": AfsP,
    "drf": Drf,
    "fifo": Fifo,
    "gandiva": Gandiva,
    "max-min": MaxMin,
    "max-speedup": MaxSpeedup,
    "optimus": Optimus,
    "optimus-ps": OptimusPs,
    "philly": Philly,
    "srsf": Srsf,
    "srtf": Srtf,
    "tetris": Tetris,
    "themis": Themis,
    "tiresias-g": TiresiasG,
    "tiresias-l": TiresiasL,
}
PLACEMENTS: Final[Mapping[str, type[NamedPlacement]]] = {
    "consolidate": Consolidate,
    "estimate": ByEstimate,
    "gandiva": GandivaPlacement,
    "optimus": OptimusPlacement,
    "philly": PhillyPlacement,
    "spread": SpreadOut,
    "tiresias": TiresiasPlacement,
}


# In journals and job files of before these took GPUs of several kinds into account themselves.
FORMER: Final = {f"{name}-kinds": name for name in ("afs-l", "afs-p", "max-min")}


def policy_from(spec: str) -> NamedPolicy:
    """Build the policy that `name:parameter=value,…` describes."""
    name, colon, rest = spec.partition(":")
    spec = FORMER.get(name, name) + colon + rest
    return from_spec(POLICIES, spec, "policy", ", or path/to/file.py:name")


def placement_from(spec: str) -> NamedPlacement:
    """Build the placement that `name:parameter=value,…` describes."""
    return from_spec(PLACEMENTS, spec, "placement", ", or path/to/file.py:name")
