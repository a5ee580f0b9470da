"""What goes wrong, and what it hits: faults are counted by the phases they met."""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial

from coddl.core.pool.state import Pool
from coddl.testing.full_system.machines import NodeMachine, ServerMachine, SimulatedWorld
from coddl.testing.full_system.network import Way
from coddl.testing.full_system.plan import SERVER_FAULTS, Fault

BOTH: tuple[Way, Way] = ("up", "down")


class FaultInjector:
    """Has faults happen, and end."""

    def __init__(
        self, world: SimulatedWorld, server: ServerMachine, nodes: Mapping[str, NodeMachine]
    ) -> None:
        self.met: Counter[tuple[str, str]] = Counter()  # fault and phase
        self._world, self._server, self._nodes = world, server, nodes

    def begin(self, faults: Iterable[Fault]) -> None:
        """Have them happen when they are due."""
        for fault in faults:
            self._world.time.call_at(fault.at_s, self._happen, fault)

    def mend(self) -> None:
        """Let nothing be wrong any more, and every process be there."""
        world = self._world
        self._server.disk.is_full, self._server.disk.slow_s = False, 0.0
        self._server.disk.kills_at = None
        world.cluster.states.is_full = False
        peers = world.elastic.world.peers
        peers.mend_all()
        machines: list[ServerMachine | NodeMachine] = [self._server, *self._nodes.values()]
        for machine in machines:
            if machine.process is not None and machine.process.is_stopped:
                machine.process.proceed()
            machine.start()
        for name in self._nodes:
            world.network.slow_down(name, 0.0)
            peers.slow_down(name, 0.0)
            for way in BOTH:
                world.network.mend(name, way)

    def _happen(self, fault: Fault) -> None:
        self._world.story.tell(f"FAULT   {fault}")
        self._count(fault)
        if fault.kind in SERVER_FAULTS:
            self._hit_server(fault)
        elif fault.kind.startswith("line"):
            self._hit_line(fault)
        else:
            self._hit_node(fault, self._nodes[fault.node])

    def _hit_server(self, fault: Fault) -> None:
        server, later = self._server, partial(self._world.time.call_later, fault.for_s)
        process, disk = server.process, server.disk
        match fault.kind:
            case "server killed":
                if process is not None:
                    process.die_after(fault.callbacks)
                later(self._restart_server, fault)
            case "server killed before a commit":
                disk.kills_at = "before a commit"
                later(self._restart_server, fault)
            case "server killed after a commit":
                disk.kills_at = "after a commit"
                later(self._restart_server, fault)
            case "server stopped":
                if process is not None and process.is_alive:
                    process.stop()
                    later(process.proceed)
            case "disk full":
                disk.is_full = True
                later(setattr, disk, "is_full", False)
            case "disk slow":
                disk.slow_s = 0.4
                later(setattr, disk, "slow_s", 0.0)
            case _:
                states = self._world.cluster.states
                states.is_full = True
                later(setattr, states, "is_full", False)

    def _restart_server(self, fault: Fault) -> None:
        self._server.disk.kills_at = None
        if self._server.process is not None:
            self._server.process.die_now()
        if not self._server.is_up and fault.tears:
            self._server.disk.tear()
        self._server.start()

    def _hit_line(self, fault: Fault) -> None:
        network, node = self._world.network, fault.node
        later = partial(self._world.time.call_later, fault.for_s)
        match fault.kind:
            case "line broken":
                network.break_lines(node)
            case "line slow":
                for lines in (network, self._world.elastic.world.peers):
                    lines.slow_down(node, 1.5)
                    later(lines.slow_down, node, 0.0)
            case _:
                ways: tuple[Way, ...] = BOTH
                if fault.kind != "line cut":
                    ways = ("up",) if fault.kind == "line cut upwards" else ("down",)
                for way in ways:
                    network.cut(node, way)
                    later(network.mend, node, way)

    def _hit_node(self, fault: Fault, node: NodeMachine) -> None:
        later, process = partial(self._world.time.call_later, fault.for_s), node.process
        match fault.kind:
            case "agent killed":
                if process is not None:
                    process.die_after(fault.callbacks)
                    later(process.die_now)
                later(node.start)
            case "agent stopped":
                if process is not None and process.is_alive:
                    process.stop()
                    later(process.proceed)
            case "agent ended":
                node.end()
            case "worker killed":
                self._kill_worker(fault)
            case "nodes cut" | "nodes cut one way":
                self._cut_nodes(fault)
            case "node leaves":
                node.notice(fault.for_s)
                later(self._leave, node)
            case _:
                node.lose()
                later(node.start)

    def _kill_worker(self, fault: Fault) -> None:
        cluster = self._world.cluster
        slots = sorted(slot for slot, each in cluster.workers.items() if each.node == fault.node)
        if slots:
            cluster.lose([slots[fault.callbacks % len(slots)]], "it was killed")

    def _cut_nodes(self, fault: Fault) -> None:
        peers, later = self._world.elastic.world.peers, self._world.time.call_later
        ways = [(fault.node, fault.other), (fault.other, fault.node)]
        for way in ways if fault.kind == "nodes cut" else ways[:1]:
            peers.cut(*way)
            later(fault.for_s, peers.mend, *way)

    def _leave(self, node: NodeMachine) -> None:
        node.lose()
        self._world.time.call_later(5.0, node.start)

    def _count(self, fault: Fault) -> None:
        """Count a fault by the phase of each job that it may concern, and of the server."""
        pool = self._world.invariants.pool
        process = self._server.process
        is_down = process is None or not process.is_alive
        state = "server down" if is_down else "server idle"
        if not is_down and "commit" in fault.kind:
            state = "server deciding"
        self.met[fault.kind, state] += 1
        for phase in _phases(pool, fault.node):
            self.met[fault.kind, phase] += 1


def _phases(pool: Pool, node: str) -> set[str]:
    """Name the phases of jobs; of a fault of a node, of those that have something there."""
    found = set()
    for job in pool.live_jobs():
        is_there = node in pool.nodes_of(job.granted) if node in pool.nodes else False
        if not node or is_there or job.is_waiting:
            found.add(str(job.phase))
    return found
