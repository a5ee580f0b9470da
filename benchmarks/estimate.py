"""How far estimates of a training's speed are from what it then does.

    python -m benchmarks.estimate --json

Nodes are network namespaces with two CPU slots each. What joins them is shaped: bandwidth by
`tc tbf`, latency by a relay in user space. `coddl inspect` measures the link within a node, and
each kind of link between nodes. Each of five models trains on one worker until its inspection has
told its profile. From these two, and nothing else, a step is predicted on every arrangement; then
the job is resized to it, and does it.

What is emulated: the time of forward and backward (`estimates.models`), as two cores can't compute
for four workers. Stages wait for a time that grows with the samples of the slice, and compute on
two of them meanwhile. What is real: gradients, their buckets and when they become complete, the
exchange by gloo over TCP, updates, resizes, profile, inspection.

`before`: predicted before the job has had more than one worker. `after_one_resize`: when one worker
and one other arrangement were measured, as pools adjust estimates; each arrangement is that one
once. `mean_error`: mean of |estimated / measured - 1|. `ranked_right`: of pairs of placements of a
model over one kind of link whose measured steps differ by more than 10 %, the part of those where
the faster one is estimated to be. A measured step is the median of full batches, the first ones at
a size or link left out. `relay`: CPU of the process that delays packets. What runs on nodes has
precedence over other processes of the machine, as far as we may ask for it.
"""

import argparse
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from benchmarks.elastic.job import machine, scratch
from benchmarks.estimates import accuracy
from benchmarks.estimates.accuracy import PlacedStep, Setting
from benchmarks.estimates.cluster import Cluster, Times, Training
from benchmarks.estimates.links import NodeInspections
from benchmarks.estimates.models import KINDS
from benchmarks.estimates.network import Link, Network, check, only
from coddl.core.errors import UserError
from coddl.core.speed.adjustment import PredictedStep, predicted_step
from coddl.core.speed.inspection import LinkClass, LinkSpeed
from coddl.core.speed.profile import TrainingProfile
from coddl.core.speed.replay import Arrangement, replayed

LINKS: Final = {
    "slow": Link(150, 0.2),
    "fast": Link(500, 0.2),
    "slow-far": Link(150, 4),
    "fast-far": Link(500, 4),
}
ARRANGEMENTS: Final = ((2,), (1, 1), (2, 1), (1, 1, 1), (2, 2), (1, 1, 1, 1))
NODES: Final = 4
UPDATES: Final = 13  # of an epoch; the last one has half of the samples
WARM: Final = 3  # updates that don't count, after each change
STEPS: Final = 10  # updates that do

Tell = Callable[[str], None]


class Extent(NamedTuple):
    """What is measured."""

    models: Sequence[str]
    links: Sequence[str]
    arrangements: Sequence[tuple[int, ...]]
    steps: int = STEPS


class MeasuredModel(NamedTuple):
    """What a model has told and done."""

    model: str
    profile: TrainingProfile
    alone_s: float
    steps_s: dict[tuple[tuple[int, ...], str], float]  # by arrangement and link


def name_of(on_nodes: Sequence[int]) -> str:
    """Name an arrangement: `2+1` is two workers on one node and one on another."""
    return "+".join(map(str, on_nodes))


def full_steps(times: Times, after: int) -> list[float]:
    """Give the time of each update later than one; not those of a short batch, nor the next."""
    return [
        at_s - times[step - 1]
        for step, at_s in times.items()
        if step > after and step - 1 in times and 0 < step % UPDATES < UPDATES - 1
    ]


def measured_step(training: Training, steps: int) -> float:
    """Have it train on as it does; give the median of its steps."""
    warm = max(training.times(), default=-1) + 1 + WARM
    training.wait("steps", lambda: len(full_steps(training.times(), warm)) >= steps)
    return statistics.median(full_steps(training.times(), warm))


def measured_model(
    model: str, cluster: Cluster, network: Network, extent: Extent, tell: Tell
) -> MeasuredModel:
    """Train a model on one worker, then on all arrangements over all links."""
    steps_s: dict[tuple[tuple[int, ...], str], float] = {}
    with Training(cluster, model, UPDATES) as training:
        training.place(1)

        def is_profiled() -> bool:
            told = training.profile()
            return told is not None and len(told["slices"]) > 1

        training.wait("profile", is_profiled)
        alone_s = measured_step(training, extent.steps)
        profile = TrainingProfile.from_data(training.profile())
        tell(f"{model}: {alone_s * 1e3:.0f} ms on one worker")
        for number, on_nodes in enumerate(extent.arrangements):
            if number:
                training.place(1)  # all arrangements are reached from there
            training.place(*on_nodes)
            for link in extent.links:
                if len(on_nodes) > 1 or link == extent.links[0]:
                    network.shape(LINKS[link])
                    step_s = measured_step(training, extent.steps)
                steps_s[on_nodes, link] = step_s
                tell(f"{model} on {name_of(on_nodes)}, {link}: {step_s * 1e3:.0f} ms")
    return MeasuredModel(model, profile, alone_s, steps_s)


def predicted(
    profile: TrainingProfile, on_nodes: tuple[int, ...], links: dict[LinkClass, LinkSpeed]
) -> PredictedStep:
    """Replay a step."""
    arrangement = Arrangement(on_nodes)
    return predicted_step(arrangement, replayed(profile, arrangement, links))


def settings_of(
    found: MeasuredModel, extent: Extent, links: dict[str, dict[LinkClass, LinkSpeed]]
) -> list[Setting]:
    """Put what was predicted beside what was measured, for each link."""
    settings = []
    for link in extent.links:
        steps = [PlacedStep(accuracy.ALONE, predicted(found.profile, (1,), {}), found.alone_s)]
        for on_nodes in extent.arrangements:
            step = predicted(found.profile, on_nodes, links[link])
            steps.append(PlacedStep(name_of(on_nodes), step, found.steps_s[on_nodes, link]))
        settings.append(Setting(found.model, link, tuple(steps)))
    return settings


def cases_of(settings: Sequence[Setting]) -> list[dict[str, Any]]:
    """Give every step by itself."""
    cases = []
    for setting in settings:
        carried: dict[str, dict[str, float]] = {}
        for on, estimates in accuracy.afterwards(setting):
            for each in estimates:
                carried.setdefault(each.on, {})[on] = each.step_s
        for step in setting.several:
            cases.append(
                {
                    "model": setting.model,
                    "link": setting.link,
                    "on": step.on,
                    "predicted_s": step.predicted.step_s,
                    "measured_s": step.measured_s,
                    "error": step.predicted.step_s / step.measured_s - 1.0,
                    "exchange_part": step.predicted.exchange_part,
                    "after": carried.get(step.on, {}),
                }
            )
    return cases


def measure(extent: Extent, tell: Tell) -> dict[str, Any]:
    """Measure links, then models; compare."""
    check()
    began_s = time.monotonic()
    with scratch() as folder, Network(NODES) as network:
        inspections = NodeInspections(network.nodes, folder)
        within = inspections.inspect_node()
        links: dict[str, dict[LinkClass, LinkSpeed]] = {}
        for name in extent.links:
            network.shape(LINKS[name])
            between = inspections.inspect_between()
            links[name] = {"node": within, "cluster": between}
            tell(f"link {name}: {between.gb_s * 1e3:.1f} MB/s, {between.latency_us:.0f} µs")
        before, trained_s = network.relayed(), time.monotonic()
        found = []
        with Cluster(network, folder) as cluster:
            for model in extent.models:
                found.append(measured_model(model, cluster, network, extent, tell))
        relay, trained_s = network.relayed(), time.monotonic() - trained_s
    settings = [each for model in found for each in settings_of(model, extent, links)]
    moved = {name: relay[name] - before[name] for name in relay}
    return {
        **accuracy.summary(settings),
        "by_model": accuracy.by_model(settings),
        "cases": cases_of(settings),
        "alone_s": {each.model: each.alone_s for each in found},
        "profiles": {each.model: each.profile.as_data() for each in found},
        "links": {
            name: {"shaped": LINKS[name]._asdict()}
            | {each: speed.as_data() for each, speed in links[name].items()}
            for name in extent.links
        },
        "relay": {
            "cpu_part": moved["cpu_s"] / trained_s,
            "cpu_s_per_gb": 1e9 * moved["cpu_s"] / max(moved["bytes"], 1.0),
        },
        "machine": machine(),
        "took_s": time.monotonic() - began_s,
    }


def table(result: dict[str, Any]) -> str:
    """Show it to people."""
    lines = ["model        link      on       predicted ms  measured ms   error  after one resize"]
    for each in result["cases"]:
        later = [step_s / each["measured_s"] - 1.0 for step_s in each["after"].values()]
        worst = max(later, key=abs, default=0.0)
        lines.append(
            f"{each['model']:11}  {each['link']:8}  {each['on']:7}"
            f"  {each['predicted_s'] * 1e3:12.0f}  {each['measured_s'] * 1e3:11.0f}"
            f"  {each['error']:+6.1%}  {worst:+.1%} at worst"
        )
    for name in ("before", "after_one_resize"):
        if name in result:
            of = result[name]
            right = "" if of["ranked_right"] is None else f", {of['ranked_right']:.1%} of"
            lines.append(
                f"{name.replace('_', ' ')}: mean error {of['mean_error']:.1%}, worst "
                f"{of['worst_error']:+.1%}{right} {of['pairs']} pairs ranked right"
            )
    relay = result["relay"]
    lines.append(
        f"relay: {relay['cpu_part']:.0%} of a core, {relay['cpu_s_per_gb']:.1f} s of CPU per GB"
    )
    lines.append(", ".join(f"{name} {value}" for name, value in result["machine"].items()))
    return "\n".join(lines)


def _extent(options: argparse.Namespace) -> Extent:
    sizes = [sum(each) for each in ARRANGEMENTS]
    wanted = [str(each) for each in options.workers]
    kept = only(sorted({str(each) for each in sizes}), wanted, "number of workers")
    return Extent(
        only(list(KINDS), options.models, "model"),
        only(list(LINKS), options.links, "link"),
        [each for each, size in zip(ARRANGEMENTS, sizes, strict=True) if str(size) in kept],
        options.steps,
    )


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--models", nargs="+", default=[], help=f"of {', '.join(KINDS)}")
    parser.add_argument("--links", nargs="+", default=[], help=f"of {', '.join(LINKS)}")
    parser.add_argument("--workers", nargs="+", type=int, default=[], help="of 2, 3, 4")
    parser.add_argument("--steps", type=int, default=STEPS, help="updates that count, each time")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends tidily, too
    began_s = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - began_s:4.0f} s  {text}", file=sys.stderr, flush=True)

    try:
        result = measure(_extent(options), tell)
    except UserError as error:
        raise SystemExit(f"{error}") from None
    print(json.dumps(result) if options.json else table(result))


if __name__ == "__main__":
    main()
