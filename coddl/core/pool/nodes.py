"""The machines of a pool, and their devices."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from coddl.core.node_count import NodeBounds
from coddl.core.pool import records as r
from coddl.core.pool.node_versions import NodeVersions
from coddl.core.speed.inspection import LinkClass, LinkSpeed

STOPPED: Final = "its agent was stopped"  # why a node that ended in order is lost
AGENT: Final = "its agent"  # `drained_by` of a node whose machine goes away
SAVE_S: Final = 30.0  # before a node leaves, jobs that are still there are saved and stopped


@dataclass(slots=True)
class NodeState:
    """A machine with an agent."""

    name: str
    boot: str
    host: str
    slots: tuple[int, ...]
    is_up: bool = True  # its lease holds
    lost_s: float | None = None  # since when it is not up; None: it is
    is_drained: bool = False
    drained_by: str = ""
    leaves_at_s: float | None = None  # when it goes, if that is known
    empty_by_s: float | None = None  # from then on jobs are made to leave, whatever it costs
    is_silent: bool = False  # soft: it can't be reached now
    back_s: float = 0.0  # soft: since when we can, after a silence
    version: int = 0  # of its orders
    leads: dict[int, None] = field(default_factory=dict)  # jobs, by number
    parked: dict[int, None] = field(default_factory=dict)  # jobs whose workers are parked there
    folder: str = ""  # the id of its jobs folder
    parking_bytes: int = 0  # host memory for workers without their GPU
    versions: NodeVersions = field(default_factory=NodeVersions)
    links: Mapping[LinkClass, LinkSpeed] = field(default_factory=dict)  # as they were inspected

    @property
    def may_park(self) -> bool:
        """Return whether workers that are parked there could be resumed."""
        return self.is_up and not self.is_drained  # as one that leaves is, too

    def join(self, joined: r.NodeJoined) -> None:
        """Be what the agent that has come says."""
        self.boot, self.host, self.slots = joined.boot, joined.host, joined.slots
        self.folder, self.versions = joined.folder, joined.versions
        self.parking_bytes, self.links = joined.parking_bytes, joined.links
        self.is_up, self.is_silent, self.lost_s = True, False, None

    def lose(self, now_s: float) -> None:
        """Be no longer up: nothing lives there."""
        self.is_up, self.lost_s = False, now_s

    def drain(self, by: str, within_s: float | None, now_s: float) -> None:
        """Drain the node: jobs leave when they can, or by the time at which the node goes.

        Saving a job takes time: it begins that much earlier.
        """
        self.is_drained, self.drained_by = True, by
        if within_s is not None:
            self.leaves_at_s = now_s + within_s
            self.empty_by_s = self.leaves_at_s - min(SAVE_S, within_s / 2.0)

    def undrain(self) -> None:
        """Undo a drain: jobs may be placed here again."""
        self.is_drained, self.drained_by = False, ""
        self.leaves_at_s, self.empty_by_s = None, None


@dataclass(slots=True)
class SlotState:
    """A device of the pool."""

    slot: int
    node: str
    device: r.Device
    # The jobs whose processes may be there, in the order they came: several only by turns, or while
    # some leave. True: it never started there, and is not waited for.
    owners: dict[int, bool] = field(default_factory=dict)
    others: str = ""  # soft: users of it outside the pool
    turns: r.SlotTurns | None = None  # soft: how turns go, if several jobs take turns

    @property
    def is_stuck(self) -> bool:
        """Return whether none of its owners ever started there, so that it is not waited for."""
        return bool(self.owners) and all(self.owners.values())


@dataclass(slots=True)
class EngineNodes:
    """What an engine was asked to bring."""

    name: str = ""  # the engine's; empty: nodes come by themselves
    bounds: NodeBounds | None = None
    acquired: dict[str, float] = field(default_factory=dict)  # nodes, since when
    wanted: int = 0
    wanted_because: str = ""
