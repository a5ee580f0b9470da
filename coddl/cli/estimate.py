"""`coddl estimate`: the speed of a training on GPUs that it has never used."""

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from coddl.cli.connect import Server, StateDir
from coddl.cli.memory_size import read_memory
from coddl.cli.output import AsJson, Output, wants_json
from coddl.core.errors import UserError

if TYPE_CHECKING:
    from coddl.cli.estimateinput import EstimateInput
    from coddl.cli.estimateview import FailedEstimate, ShownEstimate
    from coddl.core.speed.live import StepEvidence
    from coddl.core.speed.profile import TrainingProfile
    from coddl.core.speed.replay import Arrangement, StepSetting

EXAMPLES: Final = """
Examples:

  coddl estimate profile.json                          one to eight GPUs

  coddl estimate profile.json --on 2 --on 2+1          two GPUs in a node, or three across two?

  coddl estimate profile.json --on 2x4 --links inspection.json

  coddl estimate profile.json --on 8 --gpu-memory 24GiB -o json

  coddl estimate bert --on 4                           a job of the pool that has run
"""
USUAL: Final = ("2", "4", "8", "1+1", "2+1", "2x2", "2x4")  # where nothing is asked for
WORKERS_MOST: Final = 4096
ON_FORM: Final = re.compile(r"(?:(\d{1,6})x)?(\d{1,6})")

ProfileOrJob = Annotated[
    str,
    typer.Argument(
        metavar="PROFILE|JOB",
        help="Profile of the training on one GPU, as JSON; or a job of the pool.",
    ),
]
On = Annotated[
    list[str] | None,
    typer.Option(
        "--on",
        metavar="SPEC",
        help="Workers by node: 4 is four on one node, 2x4 four on each of two nodes, 2+1 two on "
        "one node and one on another. Repeat to compare. Default: a few usual ones.",
    ),
]  # fmt: skip
LinksFile = Annotated[
    str,
    typer.Option(
        "--links",
        metavar="FILE",
        help="Inspection of the hardware, as JSON. Default: for a job, what the nodes of its pool "
        "report; else links of usual servers.",
    ),
]
ExchangeOption = Annotated[
    Literal["all-reduce", "sharded", "servers"],
    typer.Option("--exchange", help="How workers exchange gradients."),
]
Servers = Annotated[
    int, typer.Option(min=1, metavar="N", help="Parameter servers of --exchange servers.")
]
NetworkPart = Annotated[
    float,
    typer.Option(
        min=0.001,
        max=1.0,
        metavar="X",
        help="Part of the bandwidth between nodes that other jobs leave.",
    ),
]
GpuMemory = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        help="Memory of a GPU: slices that do not fit take several passes. Default: all fit.",
    ),
]


def estimate(
    *,
    profile: ProfileOrJob,
    on: On = None,
    links: LinksFile = "",
    exchange: ExchangeOption = "all-reduce",
    servers: Servers = 1,
    network_part: NetworkPart = 1.0,
    gpu_memory: GpuMemory = "",
    server: Server = "",
    state_dir: StateDir = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Estimate the speed of a training on any GPUs from its profile of one.

    Shows step time, samples per second and speed-up for each arrangement of
    workers; with --on, also what happens when in a step, and which is fastest.
    """
    from coddl.cli import estimateview
    from coddl.cli.estimateinput import input_from
    from coddl.core.speed.replay import StepSetting

    given = input_from(profile, links, server, state_dir)
    setting = StepSetting(
        exchange=exchange,
        servers=servers,
        bandwidth={"cluster": network_part},
        device_bytes=read_memory("--gpu-memory", gpu_memory),
    )
    if setting != StepSetting(bandwidth={"cluster": 1.0}):
        # Steps of several workers tell nothing of other ways to exchange, or of other links.
        given = replace(given, measured=given.measured_alone)
    asked = list(dict.fromkeys(arrangement_from(spec) for spec in on or ()))
    rows = _estimates(given, asked, setting)
    if wants_json(output, as_json):
        print(json.dumps(_for_programs(given, rows, len(asked)), indent=2))
        return
    estimateview.show_estimates(given, rows, len(asked))


def arrangement_from(spec: str) -> "Arrangement":
    """Read 4, 2x4, 2+1 or 2x4+1; raises UserError."""
    from coddl.core.speed.replay import Arrangement

    on_nodes: list[int] = []
    for part in spec.split("+"):
        found = ON_FORM.fullmatch(part.strip())
        nodes, workers = (int(found[1] or 1), int(found[2])) if found else (0, 0)
        if not 0 < nodes * workers <= WORKERS_MOST:
            because = f'"{part}" is no number of workers, such as 4 or 2x4'
            if found and nodes * workers > WORKERS_MOST:
                because = f'"{part}" are more than {WORKERS_MOST} workers'
            raise UserError(f"--on {spec} cannot be used", because, "--on 4, --on 2x4 or --on 2+1")
        on_nodes += [workers] * nodes
    return Arrangement(tuple(on_nodes))


def _check_size(training: "TrainingProfile", arrangement: "Arrangement") -> None:
    """Refuse workers that would have nothing to do."""
    from coddl.core.speed.curves import most_workers

    most = most_workers(training)
    of = "samples" if training.virtual_nodes is None else "virtual nodes"
    if arrangement.workers > most:
        raise UserError(
            f"--on {arrangement} cannot be estimated",
            f"it has {arrangement.workers} workers, and an update has {most} {of}",
            f"at most {most} workers",
        )


def _estimates(
    given: "EstimateInput", asked: "Sequence[Arrangement]", setting: "StepSetting"
) -> "list[ShownEstimate | FailedEstimate]":
    """Estimate one worker and what is asked for, or a few usual arrangements.

    Those that can't be estimated say why; raises UserError if that is so of all that is asked for.
    """
    from coddl.cli.estimateview import FailedEstimate, shown_estimate
    from coddl.core.speed.curves import most_workers
    from coddl.core.speed.replay import Arrangement, replayed

    alone, evidence = Arrangement((1,)), _evidence(given)
    base: ShownEstimate | None = None
    out: list[ShownEstimate | FailedEstimate] = []
    errors: list[UserError] = []
    others = asked or [arrangement_from(spec) for spec in USUAL]
    if not asked:
        others = [each for each in others if each.workers <= most_workers(given.training)]
    if alone in asked:
        with contextlib.suppress(UserError):
            whole = replayed(given.training, alone, given.links, setting)
            base = shown_estimate(alone, whole, evidence, None)
    for each in [*([alone] if alone not in asked else []), *others]:
        try:
            _check_size(given.training, each)
            timeline = replayed(given.training, each, given.links, setting)
        except UserError as error:
            out.append(FailedEstimate(each, error.because))
            errors.append(error)
        else:
            shown = shown_estimate(each, timeline, evidence, base)
            base = shown if each == alone else base
            out.append(shown)
    if errors and all(isinstance(each, FailedEstimate) for each in out[-len(asked) :]):
        raise errors[-len(asked)]
    return out


def _evidence(given: "EstimateInput") -> "StepEvidence":
    """Compare what was measured with replays, as the pool does."""
    from coddl.core.speed.adjustment import PredictedStep, predicted_step
    from coddl.core.speed.curves import fewest_nodes
    from coddl.core.speed.live import MeasuredSteps, evidence
    from coddl.core.speed.replay import Arrangement, replayed

    one = Arrangement((1,))
    predicted: dict[int, PredictedStep] = {
        1: predicted_step(one, replayed(given.training, one, {}))
    }
    own, others = (dict(each) for each in given.measured)
    if 1 not in own and 1 not in others:
        own[1] = predicted[1].step_s  # the profile is a measurement
    for size in sorted({*own, *others} - {1}):
        where = fewest_nodes(size, given.node_gpus)
        with contextlib.suppress(UserError):  # a link is not known
            predicted[size] = predicted_step(where, replayed(given.training, where, given.links))
    return evidence(predicted, MeasuredSteps(own, others))


def _for_programs(
    given: "EstimateInput", rows: "Sequence[ShownEstimate | FailedEstimate]", asked: int
) -> dict[str, Any]:  # Any: JSON
    """Return all that is known of each arrangement."""
    from coddl.cli.estimateview import FailedEstimate, fastest, warnings

    own, others = given.measured
    return {
        "device": given.training.device,
        "batch": given.training.batch,
        "signature": given.training.signature,
        "links": {
            name: {
                "gb_s": link.gb_s,
                "latency_us": link.latency_us,
                "call_us": link.call_us,
                "backend": link.backend,
                "workers": list(link.workers),
            }
            for name, link in given.links.items()
        },
        "links_from": given.about_links,
        "measured": {str(gpus): step_s for gpus, step_s in own.items()},
        "remembered": {str(gpus): step_s for gpus, step_s in others.items()},
        "items": [
            {
                "on": str(each.arrangement),
                "workers": each.arrangement.workers,
                "nodes": each.arrangement.nodes,
                **({"error": each.because} if isinstance(each, FailedEstimate) else _item(each)),
            }
            for each in rows
        ],
        "fastest": str(fastest(rows[-asked:] if asked else rows).arrangement),
        "warnings": warnings(given, rows),
    }


def _item(each: "ShownEstimate") -> dict[str, Any]:  # Any: JSON
    return {
        "step_s": each.step_s,
        "predicted_s": each.timeline.step_s,
        "relative_sd": each.relative_sd,
        "source": each.source,
        "samples_per_s": each.samples_per_s,
        "speedup": each.speedup,
        "bound_by": each.timeline.bound_by,
        "samples": list(each.timeline.samples),
        "passes": each.timeline.passes,
        "spans": [span._asdict() for span in each.timeline.spans],
    }
