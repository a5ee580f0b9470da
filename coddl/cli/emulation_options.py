"""Options of `coddl up` for a pool whose nodes are emulated."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coddl.core.errors import UserError

if TYPE_CHECKING:
    from coddl.api.emulation import Emulation
    from coddl.engines.pool import PoolOptions

SCALE_MAX: Final = 10_000.0

Emulate = Annotated[
    str,
    typer.Option(
        metavar="16x4|FILE",
        help="Emulate nodes instead of using this machine's GPUs: 16x4, 8x4:v100+8x8:k80, or a "
        "YAML file. Jobs of coddl replay advance there at the speeds of a table.",
    ),
]
EmulatedSpeeds = Annotated[
    str,
    typer.Option(
        metavar="PATH",
        help="With --emulate: step times of the models, as for coddl simulate (default: the table "
        "in the package).",
    ),
]
TimeScaleOption = Annotated[
    float,
    typer.Option(
        "--time-scale",
        min=0.01,
        max=SCALE_MAX,
        metavar="X",
        help="With --emulate: seconds of the pool's time in a second of the clock.",
    ),
]
EmulatedCost = Annotated[
    str,
    typer.Option(
        "--reconfigure",
        metavar="SPEC",
        help="With --emulate: what a resize costs, as for coddl simulate: none, stall:PAUSE or "
        "concurrent:PREPARE,PAUSE (default: none).",
    ),
]


def emulation_of(
    state_dir: str, cluster: str, speeds: str, scale: float, reconfigure: str
) -> "Emulation | None":
    """Read how a pool is emulated, as its clock goes on; None: it is not.

    Raises UserError if that can't be, or if the pool of the folder is of the other sort.
    """
    from coddl.api.client import state_folder
    from coddl.api.emulation import Emulation, emulation_in
    from coddl.core.time_scale import TimeScale
    from coddl.traces.clusters import cluster_from, with_whole_path

    folder, now_s = state_folder(state_dir), time.time()
    before = emulation_in(folder)
    if not cluster:
        _check_real(before, folder, speeds, scale, reconfigure)
        return None
    if before is None and (folder / "journal.db").exists():
        because = f"{folder} has the journal of a pool that is not emulated"
        raise UserError(f"--emulate {cluster} can't be used", because, "another --state-dir")
    cluster_from(cluster)
    _check_speeds(speeds)
    _check_costs(reconfigure)
    clock = TimeScale(scale, now_s, now_s) if before is None else before.clock
    return Emulation(
        cluster=with_whole_path(cluster),
        clock=clock.going_on(now_s, scale),
        speeds=str(Path(speeds).absolute()) if speeds else "",
        reconfigure=reconfigure,
    )


def _check_real(
    before: "Emulation | None", folder: Path, speeds: str, scale: float, reconfigure: str
) -> None:
    given = f"--speeds {speeds}" if speeds else ""
    given = given or (f"--time-scale {scale:g}" if scale != 1.0 else "")
    given = given or (f"--reconfigure {reconfigure}" if reconfigure != "none" else "")
    if given:
        because = "it is about emulated nodes, and --emulate is not given"
        raise UserError(f"{given} can't be used", because, f"--emulate 16x4 {given}")
    if before is not None:
        raise UserError(
            "the pool can't be started like this",
            f"{folder} has the journal of a pool whose nodes are emulated",
            f"--emulate {before.cluster}, or another --state-dir",
        )


def _check_speeds(speeds: str) -> None:
    from coddl.traces.files import read_speeds

    if speeds:
        read_speeds(speeds)


def _check_costs(reconfigure: str) -> None:
    from coddl.agent.emulated.training import check_costs
    from coddl.core.reconfigure import reconfigure_of

    check_costs(reconfigure_of(reconfigure))


def emulation_words(options: "PoolOptions") -> list[str]:
    """Return the options that say how a pool is emulated."""
    if (emulation := options.emulation) is None:
        return []
    words = ["--emulate", emulation.cluster, "--time-scale", f"{emulation.clock.scale:g}"]
    words += ["--speeds", emulation.speeds] if emulation.speeds else []
    return [*words, "--reconfigure", emulation.reconfigure]
