"""Every experiment by name."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final

from coddl.core.errors import UserError
from coddl.reproduce import (
    afs,
    all_systems,
    beyond_afs,
    estimate_philly,
    estimate_t4,
    gandiva,
    gpu_types,
    nodes,
    optimus,
    optimus_parameters,
    optimus_predictions,
    optimus_testbed,
    philly,
    placement_effect,
    poster,
    prediction_error,
    themis,
    tiresias,
)
from coddl.reproduce.experiment import Experiment

ALL: Final[tuple[Experiment, ...]] = (
    *poster.EXPERIMENTS,
    *estimate_t4.EXPERIMENTS,
    *estimate_philly.EXPERIMENTS,
    *placement_effect.EXPERIMENTS,
    *optimus_testbed.EXPERIMENTS,
    *optimus.EXPERIMENTS,
    *optimus_predictions.EXPERIMENTS,
    *optimus_parameters.EXPERIMENTS,
    *gandiva.EXPERIMENTS,
    *philly.EXPERIMENTS,
    *tiresias.EXPERIMENTS,
    *themis.EXPERIMENTS,
    *afs.EXPERIMENTS,
    *all_systems.EXPERIMENTS,
    *beyond_afs.EXPERIMENTS,
    *gpu_types.EXPERIMENTS,
    *prediction_error.EXPERIMENTS,
    *nodes.EXPERIMENTS,
)
EXPERIMENTS: Final[Mapping[str, Experiment]] = {each.name: each for each in ALL}


def experiments_named(names: Sequence[str]) -> list[Experiment]:
    """The experiments with these names, each once and in this order; `all` are all."""
    for name in names:
        if name not in EXPERIMENTS and name != "all":
            raise UserError(
                f'experiment "{name}" cannot be run',
                "there is no such experiment",
                f"{_nearest(name)}; coddl reproduce lists them all",
            )
    wanted = dict.fromkeys(names)
    return list(ALL) if "all" in wanted else [EXPERIMENTS[name] for name in wanted]


def _nearest(name: str) -> str:
    """What the user may have meant."""
    of_system = [each for each in EXPERIMENTS if each.startswith(name)]
    return ", ".join(of_system or get_close_matches(name, EXPERIMENTS, 3, 0.4) or ["all"])
