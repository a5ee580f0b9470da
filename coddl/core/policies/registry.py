"""Every policy by name, and `name:parameter=value,…` as users write it."""

from collections.abc import Mapping
from typing import Final

from coddl.core.named import chosen
from coddl.core.policies.afs import AfsL, AfsP
from coddl.core.policies.drf import Drf
from coddl.core.policies.fifo import Fifo
from coddl.core.policies.gandiva.policy import Gandiva
from coddl.core.policies.gittins import TiresiasG
from coddl.core.policies.kinds import AfsLKinds, AfsPKinds, MaxMinKinds
from coddl.core.policies.marginal_gain import MaxSpeedup, Optimus
from coddl.core.policies.max_min import MaxMin
from coddl.core.policies.optimus_ps import OptimusPs
from coddl.core.policies.philly import Philly
from coddl.core.policies.policy import NamedPolicy
from coddl.core.policies.shortest import Srsf, Srtf
from coddl.core.policies.tetris import Tetris
from coddl.core.policies.themis import Themis
from coddl.core.policies.tiresias import TiresiasL

POLICIES: Final[Mapping[str, type[NamedPolicy]]] = {
    "afs-l": AfsL,
    "afs-l-kinds": AfsLKinds,
    "afs-p": AfsP,
    "afs-p-kinds": AfsPKinds,
    "drf": Drf,
    "fifo": Fifo,
    "gandiva": Gandiva,
    "max-min": MaxMin,
    "max-min-kinds": MaxMinKinds,
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


def policy_from(spec: str) -> NamedPolicy:
    """Build the policy that `name:parameter=value,…` describes."""
    return chosen(POLICIES, spec, "policy", ", or path/to/file.py:name")
