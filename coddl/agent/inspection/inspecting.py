"""A whole inspection: what is known is not measured again, what was measured is kept."""

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from coddl.agent.inspection.cluster_inspection import ClusterListener, join_cluster, listening
from coddl.agent.inspection.hardware import NodeHardware
from coddl.agent.inspection.node_inspection import Tell, inspect_node
from coddl.agent.inspection.store import path_of, store_inspection, stored_inspection
from coddl.agent.inspection.sweeps import LinkSweep, SweepExtent, counts_up_to, planned
from coddl.agent.inspection.workers import InspectionWorkers
from coddl.core.speed.inspection import Inspection, LinkSpeed
from coddl.runtime.supervisor.environment import ON_ONE_GPU


@dataclass(frozen=True, slots=True)
class NodeMeeting:
    """Where nodes meet to measure the link between them."""

    at: tuple[str, int]
    code: str
    nodes: int | None = None  # of the one that listens; None: this one joins


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionOptions:
    """How `coddl inspect` was called."""

    state_dir: Path
    extent: SweepExtent
    again: bool = False
    slots: int | None = None  # as asked for
    meeting: NodeMeeting | None = None


def inspected(node: NodeHardware, options: InspectionOptions, tell: Tell) -> Inspection:
    """Measure what is not known of a node, keep it, and give all that is known."""
    slots, sweeps = planned(node, nccl_on_one_gpu=ON_ONE_GPU in os.environ)
    earlier = stored_inspection(options.state_dir, node.hardware)
    known = None if options.again else earlier
    if known is not None and options.slots is not None and not _has_sweeps(known, sweeps):
        known = None  # it was measured with another number of slots than asked for
    if known is not None and options.meeting is None:
        path = path_of(options.state_dir, node.hardware)
        tell(f"measured before, in {path}; --again measures again")
        return known
    for each in node.notes:
        tell(f"note: {each}")
    began_s = time.monotonic()
    needed = slots if known is None else slots[:1]
    with (
        _listening(options.meeting, tell) as listener,
        InspectionWorkers(needed, len(node.devices), len(node.cores)) as workers,
    ):
        found = known or inspect_node(node, workers, sweeps, options.extent, tell)
        if known is None and earlier is not None and "cluster" in earlier.links:
            found = with_cluster(found, earlier.links["cluster"])
        path = store_inspection(options.state_dir, found)
        if options.meeting is not None:
            link = _between_nodes(workers, options, listener, found, tell)
            found = with_cluster(found, link)
            path = store_inspection(options.state_dir, found)
    tell(f"inspected in {time.monotonic() - began_s:.0f} s, kept in {path}")
    tell("agents read it when they start; coddl estimate reads it with --links")
    return found


def with_cluster(inspection: Inspection, link: LinkSpeed) -> Inspection:
    """Add the link between nodes, in place of an earlier one."""
    return replace(inspection, links={**inspection.links, "cluster": link})


def _has_sweeps(known: Inspection, sweeps: tuple[LinkSweep, ...]) -> bool:
    return all(
        sweep.link in known.links
        and known.links[sweep.link].workers == counts_up_to(len(sweep.members))
        for sweep in sweeps
    )


@contextlib.contextmanager
def _listening(meeting: NodeMeeting | None, tell: Tell) -> Iterator[socket.socket | None]:
    """Listen from the start, so that nodes which are ready earlier find this one."""
    if meeting is None or meeting.nodes is None:
        yield None
        return
    with listening(*meeting.at) as listener:
        host, port = listener.getsockname()
        shown = socket.gethostname() if host == "0.0.0.0" else host
        where = "the other node" if meeting.nodes == 2 else f"{meeting.nodes - 1} other nodes"
        tell(f"on {where}: coddl inspect --join {shown}:{port} --code {meeting.code}")
        yield listener


def _between_nodes(
    workers: InspectionWorkers,
    options: InspectionOptions,
    listener: socket.socket | None,
    known: Inspection,
    tell: Tell,
) -> LinkSpeed:
    meeting = options.meeting
    assert meeting is not None
    has_gpu = "gpu" in known.update_gb_s
    if listener is None or meeting.nodes is None:
        name = socket.gethostname()
        tell(f"joining {meeting.at[0]}:{meeting.at[1]} …")
        return join_cluster(workers, meeting.at, meeting.code, node=name, has_gpu=has_gpu)
    calls_s = {
        link.backend: link.call_us * 1e-6
        for link in known.links.values()
        if len(link.workers) > 1  # else nothing tells a call from its messages
    }
    nodes = ClusterListener(workers, listener, meeting.code, meeting.nodes, tell)
    try:
        return nodes.measure(options.extent, has_gpu=has_gpu, calls_s=calls_s)
    finally:
        nodes.close()
