"""Every policy and every placement by name, and `name:parameter=value,…` as users write it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, cast

from coddl.core.errors import UserError
from coddl.core.named import Plugged, from_plugin, from_spec, is_plugin, plugin_parts
from coddl.core.parameter_server.drf import Drf
from coddl.core.parameter_server.optimus import OptimusPs
from coddl.core.parameter_server.placement import OptimusPlacement
from coddl.core.parameter_server.tetris import Tetris
from coddl.core.placement.consolidate import Consolidate
from coddl.core.placement.estimate import ByEstimate
from coddl.core.placement.gandiva import GandivaPlacement
from coddl.core.placement.gather import Gather
from coddl.core.placement.philly import PhillyPlacement
from coddl.core.placement.placement import NamedPlacement, Placement
from coddl.core.placement.spread import SpreadOut
from coddl.core.placement.tiresias import TiresiasPlacement
from coddl.core.policies.afs import AfsL, AfsP
from coddl.core.policies.fifo import Fifo
from coddl.core.policies.gandiva.policy import Gandiva
from coddl.core.policies.gittins import TiresiasG
from coddl.core.policies.marginal_gain import MaxSpeedup, Optimus
from coddl.core.policies.max_min import MaxMin
from coddl.core.policies.philly import Philly
from coddl.core.policies.policy import NamedPolicy, Policy
from coddl.core.policies.ranked_speedup import RankedSpeedup
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
    "ranked-speedup": RankedSpeedup,
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
    "gather": Gather,
    "optimus": OptimusPlacement,
    "philly": PhillyPlacement,
    "spread": SpreadOut,
    "tiresias": TiresiasPlacement,
}


# Names in journals and job files from before these policies handled several kinds of GPU.
FORMER: Final = {f"{name}-kinds": name for name in ("afs-l", "afs-p", "max-min")}


FROM_FILE: Final = ", or path/to/file.py:name"  # for callers that may name any file


def policy_from(spec: str, also: str = FROM_FILE) -> NamedPolicy:
    """Build the policy that `name:parameter=value,…` describes; `also`: what else may be named."""
    name, colon, rest = spec.partition(":")
    spec = FORMER.get(name, name) + colon + rest
    return from_spec(POLICIES, spec, "policy", also)


def placement_from(spec: str, also: str = FROM_FILE) -> NamedPlacement:
    """Build the placement that `name:parameter=value,…` describes."""
    return from_spec(PLACEMENTS, spec, "placement", also)


@dataclass(frozen=True, slots=True)
class Registry:
    """What a pool can follow: our policies and placements, and those of its operator's plug-ins.

    A plug-in's are named `file.py:name`, as in the simulator, by the file's name alone: a request
    never names a path.
    """

    policies: Mapping[str, Plugged] = field(default_factory=dict)  # of plug-ins, by file.py:name
    placements: Mapping[str, Plugged] = field(default_factory=dict)
    unusable: Mapping[str, UserError] = field(default_factory=dict)  # by file.py

    def policy(self, spec: str) -> Policy:
        """Build a policy; raises UserError."""
        if is_plugin(spec):
            return cast(Policy, self._plugged(self.policies, spec, "policy"))
        return policy_from(spec, _also(self.policies))

    def placement(self, spec: str) -> Placement:
        """Build a placement; raises UserError."""
        if is_plugin(spec):
            return cast(Placement, self._plugged(self.placements, spec, "placement"))
        return placement_from(spec, _also(self.placements))

    def foreign(self, policy: str, placement: str) -> Iterator[str]:
        """Name those of the two that are not ours: a plug-in's, or unknown."""
        name = policy.partition(":")[0]
        if FORMER.get(name, name) not in POLICIES:
            yield f"policy {policy}"
        if placement.partition(":")[0] not in PLACEMENTS:
            yield f"placement {placement}"

    def _plugged(self, known: Mapping[str, Plugged], spec: str, noun: str) -> object:
        file, name, _ = plugin_parts(spec)
        if (found := known.get(f"{file}:{name}")) is not None:
            return from_plugin(found, spec, noun)
        what, of_file = f'{noun} "{spec}" cannot be used', f"{file}:"
        if file in self.unusable:
            because, try_ = self.unusable[file].because, f"fix {file} and restart the server"
        elif others := [each for each in known if each.startswith(of_file)]:
            because, try_ = f'plug-in {file} has no {noun} "{name}"', f"one of {', '.join(others)}"
        elif "/" in file:
            because = "plug-ins of a pool are named without their folder"
            try_ = f"{file.rpartition('/')[2]}:{name}"
        else:
            because = f"the server was started without the plug-in {file}"
            try_ = f"--plugin path/to/{file} at the start of the pool, or another {noun}"
        raise UserError(what, because, try_)


def _also(plugged: Mapping[str, Plugged]) -> str:
    return "".join(f", {name}" for name in plugged)


BUILT_IN: Final = Registry()
