"""How a pool shares its GPUs: options of `coddl up` and `coddl server`."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coddl.cli.connect import check_choice, complete_placements, complete_policies

if TYPE_CHECKING:
    from coddl.engines.sharing_options import SharingOptions

Policy = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Policy (default: the last one used, initially afs-p:tie=keep,lease_h=0.25).",
        autocompletion=complete_policies,
    ),
]
Placement = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Placement: which GPUs jobs get (default: the last one used, initially gather).",
        autocompletion=complete_placements,
    ),
]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        help="Python file with your policies and placements, then named FILE:NAME; repeatable.",
    ),
]
ClusterFile = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="FILE|16x4",
        help="Racks, islands and links of the nodes, for placements that use them.",
    ),
]
CoolDown = Annotated[
    float | None,
    typer.Option(
        "--cool-down",
        min=0,
        metavar="S",
        help="Minimum seconds between resizes of a job (default: 10).",
    ),
]


def sharing_options(
    policy: str, placement: str, plugins: Iterable[str] | None, cool_down_s: float | None
) -> "SharingOptions":
    """Read how a pool shares its GPUs; raises UserError if there is no such policy."""
    from coddl.engines.sharing_options import SharingOptions

    paths = tuple(str(Path(path).absolute()) for path in plugins or ())
    check_choice(policy, placement, paths)
    return SharingOptions(
        policy=policy, placement=placement, plugins=paths, cool_down_s=cool_down_s
    )
