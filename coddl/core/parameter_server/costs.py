"""Training with parameter servers: how fast a job is with w workers and p servers.

Each worker computes a part of the batch, sends gradients to all servers and fetches parameters from
them; a server holds 1/p of the parameters. The cost model and its fit are those of Optimus
(EuroSys '18), and so is the view that tasks on one node exchange for free.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Final, Literal, NamedTuple

import numpy as np

from coddl.core.cluster import ClusterColumns
from coddl.core.columns import BoolColumn, FloatColumn, FloatCube, FloatMatrix, IntColumn
from coddl.core.compiling import kernel, part
from coddl.core.errors import UserError
from coddl.core.named import Meaning
from coddl.core.slots import Slots
from coddl.core.speed.nnls import nnls
from coddl.core.speed.places import Places, plain
from coddl.core.speed.table import Speeds, speeds_of

Mode = Literal["sync", "async"]
TERMS: Final[Mapping[Mode, int]] = {"sync": 5, "async": 4}  # and the points a fit needs
WorkerCpus = Annotated[
    int, Meaning("cores that a worker takes in addition to its GPU, where nodes have cpus")
]
ServerCpus = Annotated[int, Meaning("cores that a parameter server takes")]
WORKER_CPUS: Final = 2  # cores that a task takes, as in the published scheduler
SERVER_CPUS: Final = 3
TASKS_MOST: Final = 256  # workers of a job, and servers: a table of both must fit in memory


class ServerTimes(NamedTuple):
    """Step times of every curve with parameter servers; beyond its last entry an axis goes on as it
    ends.
    """

    step_s: FloatCube  # [curve, workers, servers], with no two tasks on one node; 0 of either: inf
    transfer_s: FloatCube  # the part of it that tasks on one node would save


@dataclass(frozen=True, eq=False, kw_only=True)
class ServedSpeeds(Speeds):
    """Speeds of jobs that train with parameter servers."""

    servers: ServerTimes


class Point(NamedTuple):
    """One measurement."""

    servers: int
    workers: int
    step_s: float  # seconds per iteration


@dataclass(frozen=True, slots=True)
class ServerCosts:
    """Where the time of a step goes, of one model.

    An iteration takes
        sync   t0*M/w + t1 + t2*w/p + t3*w + t4*p       M = samples of the global batch
        async  (t0 + t1*w/p + t2*w + t3*p) / w          each worker by itself
    with all t >= 0 (Optimus, EuroSys '18, eq. 3 and 4): computing, a constant, the transfer of
    parameters, and the overhead of connections.
    """

    theta: tuple[float, ...]
    mode: Mode = "sync"
    batch: float = 1.0

    def step_s(self, servers: IntColumn, workers: IntColumn) -> FloatColumn:
        """Seconds per iteration, with no two tasks on one node."""
        terms = _terms(self.mode, self.batch, servers, workers)
        return _per_iteration(self.mode, terms @ np.array(self.theta), workers)

    def transfer_s(self, servers: IntColumn, workers: IntColumn) -> FloatColumn:
        """The part of it in which parameters are on the way."""
        cost = self.theta[2 if self.mode == "sync" else 1]
        return _per_iteration(self.mode, cost * workers / servers, workers)


def _terms(mode: Mode, batch: float, servers: IntColumn, workers: IntColumn) -> FloatMatrix:
    """What the coefficients are multiplied with, one row a point."""
    p, w, one = servers.astype(float), workers.astype(float), np.ones(len(workers))
    columns = (batch / w, one, w / p, w, p) if mode == "sync" else (one, w / p, w, p)
    return np.stack(columns, axis=1)


def _per_iteration(mode: Mode, seconds: FloatColumn, workers: IntColumn) -> FloatColumn:
    return seconds if mode == "sync" else seconds / workers


def fit_costs(points: Sequence[Point], mode: Mode = "sync", batch: float = 1.0) -> ServerCosts:
    """The costs that explain measurements best; it takes as many points as there are terms."""
    assert len(points) >= TERMS[mode], f"{len(points)} points do not determine {TERMS[mode]} terms"
    servers, workers, step_s = (np.array(column) for column in zip(*points, strict=True))
    target = step_s if mode == "sync" else step_s * workers
    theta = nnls(_terms(mode, batch, servers, workers), target)
    return ServerCosts(tuple(map(float, theta)), mode, batch)


def costs_of_curve(step_s: Sequence[float], mode: Mode = "sync") -> ServerCosts:
    """Costs of a model of which only step times at 1, 2, … workers are known.

    They are taken as measured with as many servers as workers. Then the constant and the transfer
    can't be distinguished, nor can the two overheads: each pair is split evenly. The unit of
    `batch` is the global batch. For `async` every worker computes a whole batch by itself. A step
    that takes forever is one that was not measured.
    """
    known = np.isfinite(step_s)
    w = np.flatnonzero(known) + 1
    compute, *halves = map(float, nnls(_terms("sync", 1.0, w, w), np.array(step_s)[known]))
    if mode == "sync":
        return ServerCosts((compute, *halves), mode)
    return ServerCosts((compute + halves[0], *halves[1:]), mode)


def servers_of(
    costs: Sequence[ServerCosts], most: int, exact: Sequence[Sequence[Point]] = ()
) -> ServerTimes:
    """A table for up to `most` workers and servers; what was measured exactly stands as it is."""
    shape = (len(costs), most + 1, most + 1)
    table = ServerTimes(np.full(shape, np.inf), np.zeros(shape))
    workers, servers = (each.ravel() for each in np.mgrid[1 : most + 1, 1 : most + 1])
    for curve, cost in enumerate(costs):
        table.step_s[curve, workers, servers] = cost.step_s(servers, workers)
        table.transfer_s[curve, workers, servers] = cost.transfer_s(servers, workers)
    for curve, points in enumerate(exact):
        for point in points:
            at = (curve, point.workers, point.servers)
            table.step_s[at] = point.step_s
            table.transfer_s[at] = min(table.transfer_s[at], point.step_s)
    return table


def servers_within(costs: Sequence[ServerCosts], fewest: IntColumn, most: IntColumn) -> ServerTimes:
    """A table that goes no further than each curve is known.

    With less than its `fewest` workers a model does not train. Workers and servers beyond its
    `most` bring nothing.
    """
    width = int(most.max())
    if width > TASKS_MOST:
        raise UserError(
            "parameter servers cannot be simulated",
            f"the speed table goes up to {width:,} workers, and with servers at most {TASKS_MOST} "
            "are supported",
            f"a speed table of up to {TASKS_MOST} GPUs",
        )
    tasks, rows = np.arange(width + 1), np.arange(len(costs))[:, None, None]
    known = np.minimum(tasks, most[:, None])
    wide = servers_of(costs, width)
    table = ServerTimes(*(times[rows, known[:, :, None], known[:, None, :]] for times in wide))
    table.step_s[tasks < fewest[:, None]] = np.inf
    return table


@part
def gpus_at(columns: ClusterColumns, slots: Slots, row: int, node: int) -> int:
    """How many of a row's seats are on a node."""
    count = 0
    for i in range(slots.first[row], slots.first[row + 1]):
        if columns.island_node[slots.island[i]] == node:
            count += slots.gpus[i]
    return int(count)


@kernel
def remote_parts(columns: ClusterColumns, workers: Slots, servers: Slots) -> FloatColumn:
    """Which part of its transfer each row has over the network: that of its slowest task.

    A server on a node with w' of w workers talks to w - w' over the network, a worker on a node
    with p' of p servers to p - p'; each moves 1/p of the parameters with each. The slowest sets the
    pace. The part is over what it would be if no two tasks were on one node. (Optimus, §4.2.)
    """
    rows = workers.first.shape[0] - 1
    out = np.ones(rows)
    for row in range(rows):
        w, p = 0, 0
        for i in range(workers.first[row], workers.first[row + 1]):
            w += workers.gpus[i]
        for i in range(servers.first[row], servers.first[row + 1]):
            p += servers.gpus[i]
        slowest = 0
        for i in range(workers.first[row], workers.first[row + 1]):
            node = columns.island_node[workers.island[i]]
            slowest = max(slowest, p - gpus_at(columns, servers, row, node))
        for i in range(servers.first[row], servers.first[row + 1]):
            node = columns.island_node[servers.island[i]]
            slowest = max(slowest, w - gpus_at(columns, workers, row, node))
        if w > 0 and p > 0:
            out[row] = slowest / max(w, p)
    return out


class TaskCounts(NamedTuple):
    """The tasks of each row."""

    curve: IntColumn
    workers: IntColumn
    servers: IntColumn
    remote: FloatColumn  # the part of the transfer that goes over the network


def server_slowdowns(model: ServerTimes, table_s: FloatMatrix, tasks: TaskCounts) -> FloatColumn:
    """The factor on each row's step time of a table that knows no servers; 1 without them."""
    most = np.array(model.step_s.shape) - 1
    at = (tasks.curve, np.minimum(tasks.workers, most[1]), np.minimum(tasks.servers, most[2]))
    served: BoolColumn = (tasks.workers > 0) & (tasks.servers > 0)
    step_s = model.step_s[at] - model.transfer_s[at] * (1.0 - tasks.remote)
    plain_s = table_s[tasks.curve, np.minimum(tasks.workers, table_s.shape[1] - 1)]
    return np.where(served, step_s, 1.0) / np.where(served, plain_s, 1.0)


def served_by(speeds: Speeds, model: ServerTimes) -> ServedSpeeds:
    """The same speeds, and those with parameter servers."""
    return ServedSpeeds(*(getattr(speeds, each.name) for each in fields(Speeds)), servers=model)


def served(names: tuple[str, ...], model: ServerTimes) -> ServedSpeeds:
    """Speeds with parameter servers; the table is for as many as workers."""
    workers = np.arange(model.step_s.shape[1])
    step_s = model.step_s[:, workers, workers]
    return served_by(speeds_of(names, step_s, np.zeros(step_s.shape, np.bool_)), model)


def beside_servers(places: Places) -> Places:
    """The same where workers talk to parameter servers alone, whose costs hold what that takes."""
    same = plain(len(places.skew))
    return places._replace(
        nodes=same.nodes, islands=same.islands, racks=same.racks, network=same.network
    )


def with_servers(speeds: Speeds, mode: Mode) -> ServedSpeeds:
    """The same models trained with parameter servers, at costs that follow from their curves."""
    fewest, most = np.isinf(speeds.step_s).sum(axis=1), speeds.gpus_max
    costs = [
        costs_of_curve(step_s[1 : end + 1].tolist(), mode)
        for step_s, end in zip(speeds.step_s, most, strict=True)
    ]
    found = served(speeds.names, servers_within(costs, fewest, most))
    return replace(found, known_places=speeds.known_places, kinds=speeds.kinds)
