"""`coddl estimate`: the speed of a training on GPUs that it has never used."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from coddl.cli.connect import Server, StateDir
from coddl.cli.memory_size import read_memory
from coddl.cli.output import AsJson, Output, wants_json
from coddl.core.errors import UserError

if TYPE_CHECKING:
    from coddl.cli.estimateview import ShownEstimate
    from coddl.core.speed.profile import TrainingProfile
    from coddl.core.speed.replay import Arrangement, LinkSpeeds, StepSetting

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
        help="Inspection of the hardware, as JSON. Default: links of usual servers.",
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
    from coddl.core.speed.replay import StepSetting

    is_file = profile.endswith(".json") or Path(profile).exists()
    training = read_profile(Path(profile)) if is_file else _of_job(profile, server, state_dir)
    setting = StepSetting(
        exchange=exchange,
        servers=servers,
        bandwidth={"cluster": network_part},
        device_bytes=read_memory("--gpu-memory", gpu_memory),
    )
    speeds, source = _links(links, training)
    asked = list(dict.fromkeys(arrangement_from(spec) for spec in on or ()))
    for each in asked:
        _check_size(training, each)
    shown = _estimates(training, asked, speeds, setting)
    if wants_json(output, as_json):
        print(json.dumps(_for_programs(training, shown, len(asked)), indent=2))
        return
    estimateview.show_estimates(training, shown, source, len(asked))


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


def _of_job(job: str, server: str, state_dir: str) -> "TrainingProfile":
    """Ask the pool for the profile of a job."""
    from coddl.cli.profile import asked_for
    from coddl.core.speed.profile import TrainingProfile

    return TrainingProfile.from_data(asked_for(job, server, state_dir))


def read_profile(path: Path) -> "TrainingProfile":
    """Read a profile from a file; raises UserError."""
    from coddl.core.speed.profile import TrainingProfile

    what = f"profile {path} cannot be read"
    try:
        return TrainingProfile.from_data(_json(path, what))
    except UserError as error:
        raise error if error.what == what else UserError(what, error.because, error.try_) from None


def _json(path: Path, what: str) -> Any:  # Any: whatever a file holds
    from coddl.traces.text_file import read_text

    text = read_text(path, what)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(what, f"it is not JSON: {error}", "a file written as JSON") from None


def _links(path: str, training: "TrainingProfile") -> "tuple[LinkSpeeds, str]":
    """Give the links, and where they come from."""
    from coddl.core.cluster import Links
    from coddl.core.speed.inspection import Inspection, LinkSpeed

    if path:
        what = f"inspection {path} cannot be read"
        try:
            found = Inspection.from_data(_json(Path(path), what))
        except UserError as error:
            raise (
                error if error.what == what else UserError(what, error.because, error.try_)
            ) from None
        return found.links, f"links: measured, {path}"
    usual, backend = Links(), "gloo" if training.device == "cpu" else "nccl"
    node, cluster = (
        LinkSpeed(link.gb_s, link.latency_us, 0.0, backend) for link in (usual.island, usual.rack)
    )
    source = f"links: assumed, {node.gb_s:g} GB/s in a node and {cluster.gb_s:g} GB/s between nodes"
    return {"node": node, "cluster": cluster}, f"{source} (--links FILE: measured)"


def _check_size(training: "TrainingProfile", arrangement: "Arrangement") -> None:
    """Refuse workers that would have nothing to do."""
    most, of = training.batch, "samples"
    if training.virtual_nodes is not None:
        most, of = training.virtual_nodes, "virtual nodes"
    if arrangement.workers > most:
        raise UserError(
            f"--on {arrangement} cannot be estimated",
            f"it has {arrangement.workers} workers, and an update has {most} {of}",
            f"at most {most} workers",
        )


def _estimates(
    training: "TrainingProfile",
    asked: "Sequence[Arrangement]",
    links: "LinkSpeeds",
    setting: "StepSetting",
) -> "list[ShownEstimate]":
    """Replay one worker and what is asked for; of the usual ones, those that can be."""
    from coddl.cli.estimateview import shown_estimate
    from coddl.core.speed.replay import Arrangement, replayed

    alone = Arrangement((1,))
    base = shown_estimate(alone, replayed(training, alone, links, setting), None)
    out = [] if alone in asked else [base]
    for each in asked or [arrangement_from(spec) for spec in USUAL]:
        try:
            if not asked:
                _check_size(training, each)
            out.append(shown_estimate(each, replayed(training, each, links, setting), base))
        except UserError:
            if asked:
                raise
    return out


def _for_programs(
    training: "TrainingProfile", shown: "Sequence[ShownEstimate]", asked: int
) -> dict[str, Any]:  # Any: JSON
    """Give all that is known of each arrangement."""
    compared = shown[-asked:] if asked else shown
    return {
        "device": training.device,
        "batch": training.batch,
        "signature": training.signature,
        "items": [
            {
                "on": str(each.arrangement),
                "workers": each.arrangement.workers,
                "nodes": each.arrangement.nodes,
                "step_s": each.timeline.step_s,
                "relative_sd": each.relative_sd,
                "samples_per_s": each.timeline.samples_per_s,
                "speedup": each.speedup,
                "bound_by": each.timeline.bound_by,
                "samples": list(each.timeline.samples),
                "passes": each.timeline.passes,
                "spans": [span._asdict() for span in each.timeline.spans],
            }
            for each in shown
        ],
        "fastest": str(min(compared, key=lambda each: each.timeline.step_s).arrangement),
    }
