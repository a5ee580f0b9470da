"""What `coddl estimate` starts from: files, or a job of the pool."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coddl.cli.connect import connect
from coddl.core.speed.inspection import ExchangeFactor, ExchangeTime, LinkSpeed
from coddl.core.speed.live import MeasuredSteps
from coddl.core.speed.profile import TrainingProfile
from coddl.core.speed.replay import LinkSpeeds


@dataclass(frozen=True, slots=True)
class EstimateInput:
    """A training, the links between its workers, and what was measured of it."""

    training: TrainingProfile
    links: LinkSpeeds
    about_links: str  # where they come from, in words
    measured: MeasuredSteps
    node_gpus: int = 1  # of a node; workers that were measured were on as few nodes as it takes

    @property
    def about_measured(self) -> str:
        """Say at which sizes steps were measured; empty: at none."""
        own, others = self.measured
        told = [f"measured steps: {_sizes(own)}"] if own else []
        more = others.keys() - own.keys()
        told += [f"by earlier jobs that train the same: {_sizes(more)}"] if more else []
        return "; ".join(told)

    @property
    def measured_alone(self) -> MeasuredSteps:
        """What was measured of one worker."""
        own, others = ({n: each[n] for n in each if n == 1} for each in self.measured)
        return MeasuredSteps(own, others)

    def extrapolated(self, on_nodes: tuple[int, ...]) -> str:
        """Name the link that was inspected with fewer workers than these; empty: none was."""
        name = "cluster" if len(on_nodes) > 1 else "node"
        link = next((link for each, link in self.links.items() if each == name), None)
        most = max(link.workers, default=None) if link is not None else None
        return name if most is not None and sum(on_nodes) > most else ""


def _sizes(sizes: Iterable[int]) -> str:
    found = sorted(sizes)
    return f"{', '.join(map(str, found))} GPU{'s' if found != [1] else ''}"


def input_from(source: str, links: str, server: str, state_dir: str) -> EstimateInput:
    """Read a profile from a file, or ask the pool for all it knows of a job."""
    from coddl.traces.profile_files import read_profile

    if source.endswith(".json") or Path(source).is_file():
        training = read_profile(source)
        speeds, about = _measured_links(links) if links else usual_links(training)
        return EstimateInput(training, speeds, about, MeasuredSteps())
    found = _of_job(source, server, state_dir)
    if not links:
        return found
    speeds, about = _measured_links(links)
    return EstimateInput(found.training, speeds, about, found.measured, found.node_gpus)


def _of_job(job: str, server: str, state_dir: str) -> EstimateInput:
    from coddl.api.client import in_path

    with connect(server, state_dir) as client:
        told = client.get(f"/jobs/{in_path(job)}/estimate")
    training = TrainingProfile.from_data(told["profile"])
    links: dict[Any, LinkSpeed] = {
        name: LinkSpeed(
            each["gb_s"],
            each["latency_us"],
            each["call_us"],
            each["backend"],
            tuple(ExchangeTime(workers, 0, 1.0) for workers in each["workers"]),
            factors=tuple(
                ExchangeFactor(at["workers"], at["bytes"], at["factor"])
                for at in each.get("factors", ())
            ),
        )
        for name, each in told["links"].items()
    }
    measured = MeasuredSteps(
        *(
            {int(each["gpus"]): float(each["step_s"]) for each in told[name]}
            for name in ("measured", "remembered")
        )
    )
    if not links:
        speeds, about = usual_links(training)
        about = f"{about.split(' (')[0]} (no node of the pool was inspected: coddl inspect)"
        return EstimateInput(training, speeds, about, measured, told["node_gpus"])
    about = "links: of the pool, " + ", ".join(_described(*each) for each in links.items())
    return EstimateInput(training, links, about, measured, told["node_gpus"])


def _described(name: str, link: LinkSpeed) -> str:
    return f"{name} {link.gb_s:.3g} GB/s and {link.latency_us:.3g} µs"


def _measured_links(path: str) -> tuple[LinkSpeeds, str]:
    """Read the links of an inspection from a file, and say so; raises UserError."""
    from coddl.traces.profile_files import read_links

    return read_links(path).links, f"links: measured, {path}"


def usual_links(training: TrainingProfile) -> tuple[LinkSpeeds, str]:
    """Return links of usual servers, and say so."""
    from coddl.core.cluster import Links

    usual, backend = Links(), "gloo" if training.device == "cpu" else "nccl"
    node, cluster = (
        LinkSpeed(link.gb_s, link.latency_us, 0.0, backend) for link in (usual.island, usual.rack)
    )
    source = f"links: assumed, {node.gb_s:g} GB/s in a node and {cluster.gb_s:g} GB/s between nodes"
    return {"node": node, "cluster": cluster}, f"{source} (--links FILE: measured)"
