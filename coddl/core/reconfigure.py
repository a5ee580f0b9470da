"""The cost of a resize for a job, as an input of simulations and emulated pools."""

from dataclasses import dataclass
from typing import Final, Literal

from coddl.core.errors import UserError

ReconfigureMode = Literal["stall", "serial", "concurrent", "uncancelled"]
MODES: Final[tuple[ReconfigureMode, ...]] = ("stall", "serial", "concurrent", "uncancelled")


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """What a change of a job's share costs, its start included.

    stall        it takes effect at once, and the job stands still for `pause_s`, behind what is
                 left of the last such pause
    serial       it takes `pause_s`, in which the job stands still with the GPUs it has; each
                 further target queues behind, as in a cluster that thrashes
    concurrent   the old share trains on for `prepare_s`, then the job, unless it only starts,
                 stands still for `pause_s`; a newer target cancels the preparation
    uncancelled  the same, but a preparation under way must end first; then the newest is prepared

    Where a change takes effect at once, one onto another node may have a pause of its own.
    """

    mode: ReconfigureMode = "stall"
    prepare_s: float = 0.0
    pause_s: float = 0.0
    move_s: tuple[float, float] | None = None  # with 1 GPU and with 8, linear in their number


def reconfigure_of(spec: str) -> Reconfigure:
    """Read `none`, `stall:S`, `stall:S,MOVE_1_S,MOVE_8_S`, `serial:S`,
    `concurrent:PREPARE_S,PAUSE_S` or `uncancelled:PREPARE_S,PAUSE_S`.
    """
    mode, _, rest = spec.partition(":")
    counts = {"stall": (1, 3), "serial": (1,)}.get(mode, (2,))
    try:
        values = [float(part) for part in rest.split(",")] if rest else []
    except ValueError:
        values = []
    if spec == "none":
        return Reconfigure()
    if mode not in MODES or len(values) not in counts or not all(0 <= v < 1e12 for v in values):
        wanted = " or ".join(map(str, counts)) + " number" + "s" * (counts != (1,))
        raise UserError(
            f'reconfiguration "{spec}" cannot be simulated',
            f'"{rest}" is not {wanted} of seconds'
            if mode in MODES
            else f'"{spec}" is not one of the modes',
            "none, stall:30, stall:0.1,1.5,35, serial:30, concurrent:20,1 or uncancelled:20,1",
        )
    if len(values) == 3:
        return Reconfigure(mode, pause_s=values[0], move_s=(values[1], values[2]))
    return Reconfigure(mode, values[0] if len(values) == 2 else 0.0, values[-1])
