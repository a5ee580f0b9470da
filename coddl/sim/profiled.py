"""Models of a simulation whose speeds are replayed from profiles, not taken from a speed table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from coddl.core.cluster import Cluster
from coddl.core.columns import FloatMatrix
from coddl.core.errors import UserError
from coddl.core.speed.curves import (
    SIZES_MAX,
    curve_of,
    most_workers,
    profile_places,
    replayed_sizes,
)
from coddl.core.speed.places import Places, plain
from coddl.core.speed.profile import TrainingProfile
from coddl.core.speed.replay import LinkSpeeds
from coddl.core.speed.table import Speeds, speeds_of
from coddl.traces.cells import shown
from coddl.traces.profile_files import read_links, read_profile


@dataclass(frozen=True, slots=True)
class ProfiledModels:
    """Profiles by the model's name, and the links of the cluster."""

    profiles: Mapping[str, TrainingProfile] = field(default_factory=dict)
    links: LinkSpeeds | None = None  # None: not measured

    def __post_init__(self) -> None:
        if self.profiles and self.links is None:
            raise UserError(
                f"the profile of {shown(next(iter(self.profiles)))} cannot be simulated",
                "nothing is known of the links that workers exchange gradients over",
                "--links inspection.json, as coddl inspect --save writes it",
            )


def profiled_from(profiles: Mapping[str, str | Path], links: str | Path | None) -> ProfiledModels:
    """Read the files."""
    known = None if links is None else read_links(links).links
    return ProfiledModels({name: read_profile(path) for name, path in profiles.items()}, known)


def named_files(specs: Sequence[str]) -> dict[str, str]:
    """Read NAME=FILE of an option that may be repeated."""
    found: dict[str, str] = {}
    for spec in specs:
        name, _, path = spec.partition("=")
        twice = name in found
        if not name or not path or twice:
            raise UserError(
                f"--profile {spec} cannot be used",
                f"{shown(name)} is given twice" if twice else f"{shown(spec)} is not NAME=FILE",
                "--profile bert=profile.json, with bert as a model of the trace",
            )
        found[name] = path
    return found


def with_profiles(speeds: Speeds, models: ProfiledModels, node_gpus: int, most: int) -> Speeds:
    """The table with a curve for each profile, on as few nodes as it takes.

    A model that the table has, too, is that of the profile.
    """
    if not models.profiles:
        return speeds
    assert models.links is not None
    names = [name for name in speeds.names if name not in models.profiles]
    rows = [speeds.names.index(name) for name in names]
    width = max(speeds.step_s.shape[1], min(most, SIZES_MAX) + 1)
    beyond = width - speeds.step_s.shape[1]
    step_s = np.pad(speeds.step_s[rows], ((0, 0), (0, beyond)), mode="edge")
    measured = np.pad(speeds.measured[rows], ((0, 0), (0, beyond)))
    curves = [
        curve_of(
            replayed_sizes(profile, models.links, node_gpus, min(width - 1, most_workers(profile))),
            width - 1,
        )
        for profile in models.profiles.values()
    ]
    table = speeds_of(
        (*names, *models.profiles),
        np.vstack([step_s, *curves]),
        np.vstack([measured, np.zeros((len(curves), width), np.bool_)]),
    )
    if speeds.known_places is None:
        return replace(table, kinds=speeds.kinds)
    places = _with_rows(speeds.places, rows, len(curves))
    return replace(table, known_places=places, kinds=speeds.kinds)


def with_profiled_places(speeds: Speeds, models: ProfiledModels, cluster: Cluster) -> Speeds:
    """The same speeds, with what places of a cluster cost the models with profiles."""
    if not models.profiles:
        return speeds
    assert models.links is not None
    places, widest = speeds.places, max(node.gpus for node in cluster.nodes)
    nodes = places.nodes.copy()
    skew, columns = places.skew.copy(), [places.islands, places.racks, places.network]
    islands, racks, network = (column.copy() for column in columns)
    for name, profile in models.profiles.items():
        row = speeds.names.index(name)
        found = profile_places(
            profile, models.links, widest, nodes=nodes.shape[2] - 1, most=nodes.shape[1] - 1
        )
        gpus = np.minimum(np.arange(nodes.shape[1]), found.nodes.shape[1] - 1)
        counts = np.minimum(np.arange(nodes.shape[2]), found.nodes.shape[2] - 1)
        nodes[row] = found.nodes[0][np.ix_(gpus, counts)]
        islands[row], racks[row], skew[row] = 1.0, 1.0, found.skew[0]
        network[row] = found.network[0][np.minimum(np.arange(network.shape[1]), gpus[-1])]
    replaced = places._replace(
        nodes=nodes, islands=islands, racks=racks, network=network, skew=skew
    )
    return replace(speeds, known_places=replaced)


def _with_rows(places: Places, rows: Sequence[int], more: int) -> Places:
    """Some rows of what places cost, and rows of curves to which they make no difference."""
    new = plain(more, places.kinds.shape[1])
    both: list[FloatMatrix] = []
    for known, added in zip(places, new, strict=True):
        if len(known) == 1 < len(places.nodes):  # one entry that serves for all
            both.append(known)
            continue
        shape = (more, *known.shape[1:])
        both.append(np.concatenate([known[list(rows)], np.full(shape, added.flat[0])]))
    out = Places(*both)
    packed = np.full((len(rows) + more,) * 2, new.packed.flat[0])
    packed[: len(rows), : len(rows)] = places.packed[np.ix_(rows, rows)]
    return out._replace(packed=packed)
