"""A step of a training, replayed on GPUs it has never used, from its profile of one GPU.

Every worker waits for its data, passes over its slice, and updates the parameters. While the last
pass goes backward, buckets of gradients become complete; each is sent when it is ready and the one
before is through:

    end_i = max(ready_i, end_(i-1)) + exchange_i
    step  = data + max(end of the passes, end_last) + update + other

A slice that does not fit into memory takes several passes, of which only the last one sends. A
strict training has V virtual nodes, a pass each: the worker with the most has ceil(V / n) of them,
a staircase that is not smoothed. What a sample costs is fitted to the profile (`slices`), what an
exchange costs to the hardware (`inspection`, `collectives`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Final, Literal, NamedTuple

import numpy as np

from coddl.core.errors import UserError
from coddl.core.speed.collectives import AllReduce, all_reduce_s, half_ring_s, served_s
from coddl.core.speed.estimate import split_batch
from coddl.core.speed.inspection import LinkClass, LinkSpeed
from coddl.core.speed.profile import TrainingProfile
from coddl.core.speed.slices import HalfPass, PassTimes, pass_times, passes_needed

ExchangeKind = Literal["all-reduce", "sharded", "servers"]
BoundBy = Literal["compute", "exchange", "data"]
What = Literal["data", "passes", "forward", "backward", "exchange", "update", "gather", "other"]
LinkSpeeds = Mapping[LinkClass, LinkSpeed]
ALGORITHMS: Final[tuple[AllReduce, ...]] = ("ring", "tree", "hierarchical")
LEAST_SAMPLE_S: Final = 1e-12  # a GPU whose time does not depend on samples can't be balanced by it


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Workers of a training, by node."""

    on_nodes: tuple[int, ...]
    speeds: tuple[float, ...] = ()  # of each worker relative to the profiled GPU; none: all alike
    on_a_gpu: int = 1  # workers that share a GPU, and take turns on it

    def __post_init__(self) -> None:
        assert self.on_nodes, "an arrangement has a worker"
        assert min(self.on_nodes) > 0, "a node that is named has a worker"
        assert len(self.speeds) in (0, self.workers), "a speed for each worker, or none"

    @property
    def workers(self) -> int:
        """All workers."""
        return sum(self.on_nodes)

    @property
    def nodes(self) -> int:
        """The nodes they are on."""
        return len(self.on_nodes)

    @property
    def worker_speeds(self) -> tuple[float, ...]:
        """How fast each worker is, relative to the profiled GPU."""
        alike = self.speeds or (1.0,) * self.workers
        return tuple(speed / self.on_a_gpu for speed in alike)

    @property
    def within(self) -> LinkClass:
        """What joins the workers of a node."""
        return "gpu" if 1 < self.on_a_gpu >= max(self.on_nodes) else "node"

    def __str__(self) -> str:
        alike = len(set(self.on_nodes)) == 1 and self.nodes > 1
        return f"{self.nodes}x{self.on_nodes[0]}" if alike else "+".join(map(str, self.on_nodes))


@dataclass(frozen=True, slots=True)
class StepSetting:
    """How a step is made, independent of where."""

    exchange: ExchangeKind = "all-reduce"
    algorithm: AllReduce | None = None  # None: what the backend takes, the cheapest if it chooses
    servers: int = 1  # of an exchange with parameter servers
    bandwidth: Mapping[LinkClass, float] = field(default_factory=dict)  # the part other jobs leave
    device_bytes: float | None = None  # memory of a GPU; None: all slices fit


class TimelineSpan(NamedTuple):
    """A part of a step."""

    what: What
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """A step of the slowest worker, from the first wait to the end of the update."""

    spans: tuple[TimelineSpan, ...]  # by begin; those of `exchange` overlap `backward`
    batch: int
    samples: tuple[int, ...]  # of each worker
    passes: int  # of the slowest worker

    @property
    def step_s(self) -> float:
        """Seconds of the step."""
        return max(span.end_s for span in self.spans)

    @property
    def samples_per_s(self) -> float:
        """Samples of all workers in a second."""
        return self.batch / self.step_s

    def total_s(self, *kinds: What) -> float:
        """Seconds of all spans of these kinds."""
        return sum(span.end_s - span.begin_s for span in self.spans if span.what in kinds)

    @property
    def compute_s(self) -> float:
        """Seconds in which the worker computes."""
        return self.total_s("passes", "forward", "backward", "update", "other")

    @property
    def exposed_s(self) -> float:
        """Seconds in which it does nothing but wait for others: what hides behind no computing."""
        return max(0.0, self.step_s - self.compute_s - self.total_s("data"))

    @property
    def exchange_part(self) -> float:
        """The part of the step that follows the speed of the links: twice as fast, half as long.

        It is what buckets take that wait for each other up to the end of the exchange.
        """
        sent = [span for span in self.spans if span.what == "exchange"]
        computed_s = max(span.end_s for span in self.spans if span.what == "backward")
        chain_s = 0.0
        if sent and sent[-1].end_s > computed_s:
            begins_s = sent[-1].begin_s
            for span in reversed(sent):
                if span.end_s < begins_s:
                    break
                begins_s = span.begin_s
            chain_s = sent[-1].end_s - begins_s
        return (chain_s + self.total_s("gather")) / self.step_s

    @property
    def bound_by(self) -> BoundBy:
        """What takes the largest part of the step."""
        parts: dict[BoundBy, float] = {
            "compute": self.compute_s,
            "exchange": self.exposed_s,
            "data": self.total_s("data"),
        }
        return max(parts, key=parts.__getitem__)


def replayed(
    profile: TrainingProfile,
    arrangement: Arrangement,
    links: LinkSpeeds,
    setting: StepSetting | None = None,
) -> StepTimeline:
    """Return the time line of a step; raises UserError if a link is not known, or nothing fits."""
    setting = setting or StepSetting()
    samples = _samples(profile, arrangement)
    slowest, passes, in_a_pass, times = _slowest(profile, arrangement, samples, setting)
    node_samples, first = [], 0
    for workers in arrangement.on_nodes:
        node_samples.append(sum(samples[first : first + workers]))
        first += workers
    # Loaders take cores of their node, so that two workers on a node don't load twice as fast.
    now_s = profile.data_s * min(1.0, max(node_samples) / profile.batch)
    spans = [TimelineSpan("data", 0.0, now_s)]

    def add(what: What, seconds: float) -> None:
        nonlocal now_s
        if seconds > 0.0 or what in ("forward", "backward"):
            spans.append(TimelineSpan(what, now_s, now_s + seconds))
        now_s += seconds

    add("passes", (passes - 1) * times.at(in_a_pass))
    forward_s, backward_s = times.forward.at(in_a_pass), times.backward.at(in_a_pass)
    if arrangement.workers == 1:  # the host waits for no exchange, and launches ahead of the GPU
        forward_s, backward_s = times.halves(in_a_pass)
    add("forward", forward_s)
    begin_s = now_s
    add("backward", backward_s)
    exchange = _Exchanger(arrangement, links, setting)
    if arrangement.workers > 1:
        end_s = 0.0
        for bucket in profile.buckets:
            sent_s = max(begin_s + bucket.ready * backward_s, end_s)
            end_s = sent_s + exchange.bucket_s(bucket.bytes_)
            spans.append(TimelineSpan("exchange", sent_s, end_s))
        now_s = max(now_s, end_s)
    shares = {"all-reduce": 1, "sharded": arrangement.workers, "servers": setting.servers}
    speed = arrangement.worker_speeds[slowest]
    add("update", profile.update_s / speed / (shares[setting.exchange] if exchange.used else 1))
    add("gather", exchange.gather_s(sum(each.bytes_ for each in profile.buckets)))
    add("other", profile.other_s)
    return StepTimeline(tuple(spans), profile.batch, samples, passes)


def _samples(profile: TrainingProfile, arrangement: Arrangement) -> tuple[int, ...]:
    """Samples of each worker: cut such that all end together, or whole virtual nodes."""
    speeds = np.array(arrangement.worker_speeds)
    if profile.virtual_nodes is not None:
        per_node = -(-profile.batch // profile.virtual_nodes)
        whole, rest = divmod(profile.virtual_nodes, arrangement.workers)
        return tuple((whole + (at < rest)) * per_node for at in range(arrangement.workers))
    times = pass_times(profile)
    fixed_s = times.forward.fixed_s + times.backward.fixed_s
    sample_s = max(times.forward.sample_s + times.backward.sample_s, LEAST_SAMPLE_S)
    shares = split_batch(profile.batch, fixed_s / speeds, sample_s / speeds)
    return tuple(map(int, shares))


class _Slowest(NamedTuple):
    """The worker that ends its passes last."""

    worker: int
    passes: int
    samples: float  # of a pass
    times: PassTimes


def _slowest(
    profile: TrainingProfile, arrangement: Arrangement, samples: tuple[int, ...], how: StepSetting
) -> _Slowest:
    times, found = pass_times(profile), list[tuple[float, _Slowest]]()
    for worker, (count, speed) in enumerate(zip(samples, arrangement.worker_speeds, strict=True)):
        passes = _passes(profile, count, how.device_bytes)
        # Slices of strict trainings are whole steps: the fixed part is that of all passes.
        parts = passes if profile.virtual_nodes is not None else 1
        own = PassTimes(*(_on_worker(half, speed, parts) for half in times))
        in_a_pass = count / passes
        whole_s = passes * own.at(in_a_pass) if count else 0.0  # without samples there is no pass
        found.append((whole_s, _Slowest(worker, passes, in_a_pass, own)))
    return max(found, key=lambda each: (each[0], -each[1].worker))[1]


def _on_worker(half: HalfPass, speed: float, parts: int) -> HalfPass:
    """Return one half of a pass on a GPU of another speed; the host launches it no faster."""
    return HalfPass(half.fixed_s / speed / parts, half.sample_s / speed, half.least_s / parts)


def _passes(profile: TrainingProfile, samples: int, device_bytes: float | None) -> int:
    """Passes of a worker; with virtual nodes, one each at least."""
    nodes, of_a_node = 1, samples
    if profile.virtual_nodes is not None:
        of_a_node = -(-profile.batch // profile.virtual_nodes)
        nodes = max(1, ceil(samples / of_a_node))
    if device_bytes is None:
        return nodes
    passes = passes_needed(profile, of_a_node, device_bytes)
    if passes is None:
        raise UserError(
            "this training does not fit into the memory of the GPU",
            f"a pass over one sample needs more than its {device_bytes / 1e9:.1f} GB",
            "GPUs with more memory",
        )
    return nodes * passes


class _Exchanger:
    """What exchanges of an arrangement cost."""

    def __init__(self, arrangement: Arrangement, links: LinkSpeeds, setting: StepSetting) -> None:
        self.used = arrangement.workers > 1
        self._arrangement, self._setting = arrangement, setting
        self._within = self._between = None
        if max(arrangement.on_nodes) > 1:
            self._within = _link(arrangement.within, links, setting)
        if arrangement.nodes > 1:
            self._between = _link("cluster", links, setting)

    @property
    def _links(self) -> list[LinkSpeed]:
        return [link for link in (self._within, self._between) if link is not None]

    def bucket_s(self, bytes_: float) -> float:
        """Seconds in which workers exchange a bucket."""
        workers, setting = self._arrangement.workers, self._setting
        match setting.exchange:
            case "all-reduce":
                return min(
                    all_reduce_s(
                        each, self._arrangement.on_nodes, bytes_, self._within, self._between
                    )
                    for each in self._algorithms()
                )
            case "sharded":
                return max(half_ring_s(workers, bytes_, link) for link in self._links)
            case "servers":
                return max(served_s(workers, setting.servers, bytes_, link) for link in self._links)

    def gather_s(self, bytes_: float) -> float:
        """Seconds in which workers fetch the parameters that others have updated."""
        if not self.used or self._setting.exchange != "sharded":
            return 0.0
        return max(half_ring_s(self._arrangement.workers, bytes_, link) for link in self._links)

    def _algorithms(self) -> tuple[AllReduce, ...]:
        """The all-reduces to choose from; gloo knows one, a ring."""
        if self._setting.algorithm is not None:
            return (self._setting.algorithm,)
        return ("ring",) if any(link.backend == "gloo" for link in self._links) else ALGORITHMS


def _link(name: LinkClass, links: LinkSpeeds, setting: StepSetting) -> LinkSpeed:
    """What other jobs leave of a link. Workers on one GPU may talk as those of a node."""
    found = links.get(name) or (links.get("node") if name == "gpu" else None)
    if found is None:
        between = {"gpu": "on one GPU", "node": "of a node", "cluster": "of different nodes"}
        raise UserError(
            "this arrangement cannot be estimated",
            f"nothing is known of the link between workers {between[name]}",
            f"an inspection that has measured the link {name!r}",
        )
    return replace(found, gb_s=found.gb_s * setting.bandwidth.get(name, 1.0))
