"""`coddl reproduce`: run published experiments and compare the results."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coddl.cli.output import AsJson, Output, wants_json, without_nan
from coddl.core.errors import UserError

if TYPE_CHECKING:
    from coddl.reproduce.experiment import Experiment, Finding, Inputs

DATA_VARIABLE: Final = "CODDL_DATA"
OTHER_PICTURES: Final = (".eps", ".gif", ".jpeg", ".jpg", ".pdf", ".png", ".webp")
EXAMPLES = """
Examples:

  coddl reproduce

  coddl reproduce poster-512 afs-burst

  coddl reproduce afs-philly --data ~/traces

  coddl reproduce all --data ~/traces --plot plots

  coddl reproduce poster-512 -o json | jq '.results[].figures'
"""


def complete_experiments(incomplete: str) -> Iterator[tuple[str, str]]:
    """Offer the experiments by name."""
    with contextlib.suppress(Exception):  # a shell waits for completions: no error message
        from coddl.reproduce.registry import ALL

        offered = [("all", "every experiment"), *((each.name, each.title) for each in ALL)]
        yield from (each for each in offered if each[0].startswith(incomplete))


Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME",
        help="Experiments to run, or all. Default: list the experiments.",
        autocompletion=complete_experiments,
    ),
]
Data = Annotated[
    str,
    typer.Option(
        metavar="DIR",
        help="Folder with the measured data: philly/, t4_placements/, k80_p100_v100/. Default: "
        f"${DATA_VARIABLE}. Experiments on generated workloads need none.",
    ),
]
Seeds = Annotated[
    int, typer.Option(min=1, metavar="N", help="Number of seeds for generated workloads.")
]
PlotFile = Annotated[
    str,
    typer.Option(
        "--plot",
        metavar="FILE.svg|DIR",
        help="Write a plot of each result as SVG: to this file, or into this folder.",
    ),
]


def reproduce(
    *,
    names: Names = None,
    data: Data = "",
    seeds: Seeds = 3,
    plot: PlotFile = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Run published experiments and show the published results next to ours.

    Exit code 1: a named experiment failed or has no data. With all,
    experiments without data are skipped.
    """
    from coddl.cli import experimentview
    from coddl.reproduce.experiment import Inputs
    from coddl.reproduce.registry import ALL, experiments_named

    for_program = wants_json(output, as_json)
    if not names and for_program:
        keys = ("name", "title", "source", "needs")
        listed = [{key: getattr(each, key) for key in keys} for each in ALL]
        print(json.dumps({"experiments": listed}, indent=2))
        return
    if not names:
        experimentview.show_list(ALL)
        return
    chosen = experiments_named(names)
    pictures = _pictures(plot, chosen)
    folder = data or os.environ.get(DATA_VARIABLE, "")
    inputs = Inputs(Path(folder).expanduser() if folder else None, seeds)
    outcomes, stopped = _run_all(chosen, inputs, pictures, for_program)
    if for_program:
        print(json.dumps({"stopped": stopped, "results": without_nan(outcomes)}, indent=2))
    failed = [each for each in outcomes if each["status"] == "failed"]
    skipped = [each for each in outcomes if each["status"] == "skipped"]
    if skipped and "all" in names:
        print(
            f"skipped {len(skipped)} of {len(chosen)} experiments: no data (see --data)",
            file=sys.stderr,
        )
    if stopped:
        raise typer.Exit(130)
    if failed or (skipped and "all" not in names):
        raise typer.Exit(1)


def _pictures(plot: str, experiments: "Sequence[Experiment]") -> dict[str, Path]:
    """Where each experiment's picture goes; a folder is made, and a bad place found out early."""
    if not plot:
        return {}
    path = Path(plot)
    if path.suffix == ".svg" and not path.is_dir():
        if len(experiments) > 1:
            raise UserError(
                f"--plot {plot} cannot be written",
                f"{len(experiments)} experiments do not fit into one file",
                f"--plot {path.with_suffix('')}, a folder",
            )
        return {experiments[0].name: path}
    if path.suffix.lower() in OTHER_PICTURES and not path.is_dir():
        name = path.with_suffix(".svg" if len(experiments) == 1 else "")
        raise UserError(
            f"--plot {plot} cannot be written", "plots are written as SVG", f"--plot {name}"
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        because = error.strerror or str(error)
        raise UserError(f"--plot {plot} cannot be written", because, "--plot plots") from None
    return {each.name: path / f"{each.name}.svg" for each in experiments}


Outcome = dict[str, object]


def _run_all(
    experiments: "Sequence[Experiment]",
    inputs: "Inputs",
    pictures: dict[str, Path],
    for_program: bool,
) -> tuple[list[Outcome], bool]:
    """Run experiments one after the other; return the outcomes, and whether the user stopped."""
    from coddl.cli import experimentview
    from coddl.reproduce.plot import write_plot

    outcomes: list[Outcome] = []
    for at, experiment in enumerate(experiments, 1):
        counted = f"{at} of {len(experiments)}: " if len(experiments) > 1 else ""
        try:
            with experimentview.waiting(f"{counted}{experiment.name}"):
                outcome, finding = _outcome(experiment, inputs)
        except KeyboardInterrupt:
            print(f"stopped in {experiment.name}", file=sys.stderr)
            return outcomes, True
        outcomes.append(outcome)
        if finding is not None and (path := pictures.get(experiment.name)) is not None:
            write_plot(path, finding.plot)
            outcome["picture"] = str(path)
        if not for_program:
            experimentview.show(experiment, outcome, finding)
    return outcomes, False


def _outcome(experiment: "Experiment", inputs: "Inputs") -> "tuple[Outcome, Finding | None]":
    """Run one; one that cannot run says why."""
    from coddl.reproduce.experiment import MissingData

    began_s = time.perf_counter()
    about: Outcome = {
        key: getattr(experiment, key) for key in ("name", "title", "source", "differs")
    }
    try:
        finding = experiment.run(inputs)
    except UserError as error:
        status = "skipped" if isinstance(error, MissingData) else "failed"
        told = {"what": error.what, "because": error.because, "try": error.try_}
        return about | {"status": status, "error": told}, None
    found = asdict(finding)
    return about | {"status": "done", **found, "wall_s": time.perf_counter() - began_s}, finding
