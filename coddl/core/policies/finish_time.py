"""Finish-time fairness: how much longer a job takes for sharing (Themis, NSDI '20).

    rho = T_shared / T_alone
    T_shared = time since the app came + what is left, at the share and the place it has
    T_alone  = all its work, at an equal share: GPUs / N, at most the largest it can use

N is the mean number of apps during its stay. An app is one job, or the jobs of a group, a search
for hyper-parameters: its best job, the one that would end first, stands for it.
"""

from typing import NamedTuple

import numpy as np

from coddl.core.cluster import ClusterColumns
from coddl.core.columns import (
    BoolColumn,
    BoolMatrix,
    FloatColumn,
    FloatCube,
    FloatMatrix,
    IntColumn,
)
from coddl.core.compiling import kernel
from coddl.core.slots import Slots
from coddl.core.snapshot import Snapshot, memory_columns
from coddl.core.speed.places import slowdowns

TINY = 1e-12  # below any rho: a time that is 0 has a logarithm too
# What is remembered of a job.
COLUMN = memory_columns(
    "total_iterations",  # of its whole training
    "crowd_s",  # the number of apps during its stay, see `crowd_of`
    "crowd",
    "lease_end_s",
    "lent_gpus",  # those of its share that no lease covers
)


class Apps(NamedTuple):
    """The apps that bid, by row."""

    leads: BoolColumn  # the row that stands for its app
    start_s: FloatColumn  # when the app came

    @property
    def number(self) -> int:
        """How many there are."""
        return int(self.leads.sum())


def apps_of(snapshot: Snapshot) -> Apps:
    """The apps: groups, and jobs without one."""
    jobs = snapshot.jobs
    if (jobs.group < 0).all():
        return Apps(np.ones(jobs.size, np.bool_), jobs.submitted_s)
    own = np.where(jobs.group >= 0, jobs.group, -1 - np.arange(jobs.size))
    _, app = np.unique(own, return_inverse=True)
    left_s = np.nan_to_num(snapshot.seconds_left_at(jobs.gpus_max), nan=np.inf)
    order = np.lexsort((jobs.id, left_s, app))
    leads = np.zeros(jobs.size, np.bool_)
    leads[order[np.diff(app[order], prepend=-1) > 0]] = True
    start_s = np.full(jobs.size, np.inf)
    np.minimum.at(start_s, app, jobs.submitted_s)
    return Apps(leads, start_s[app])


def crowd_of(snapshot: Snapshot, apps: Apps, memory: FloatMatrix) -> FloatColumn:
    """The mean number of apps during each row's stay; brings its memory up to now.

    With n apps since the last decision, the area under their number is `crowd_s` + n x time; the
    memory holds both, as apps that have left since can't be counted any more.
    """
    now_s, stay_s = snapshot.now_s, snapshot.now_s - snapshot.jobs.submitted_s
    seen = memory[:, COLUMN.crowd] > 0
    area = np.where(
        seen, memory[:, COLUMN.crowd_s] + memory[:, COLUMN.crowd] * now_s, apps.number * stay_s
    )
    memory[:, COLUMN.crowd] = apps.number
    memory[:, COLUMN.crowd_s] = area - apps.number * now_s
    mean: FloatColumn = np.where(stay_s > 0, area / np.maximum(stay_s, TINY), apps.number)
    return np.maximum(mean, 1.0)


class Outlook(NamedTuple):
    """What rho is made of, by row."""

    spent_s: FloatColumn  # since the app came
    left: FloatColumn  # iterations
    alone_s: FloatColumn  # for all its work, at an equal share
    wait_s: float  # how long a row without GPUs is taken to wait for them


def outlook_of(snapshot: Snapshot, apps: Apps, memory: FloatMatrix, lease_s: float) -> Outlook:
    """How far each row is, and how long it would take alone; brings its memory up to now.

    A job of unknown length is taken to have as much before it as behind it, and a lease at least.
    """
    jobs, step_s = snapshot.jobs, snapshot.speeds.step_s
    least, total = jobs.gpus_min, snapshot.cluster.gpus_total
    guess = np.maximum(jobs.attained_gpu_s / least, lease_s) / step_s[jobs.curve, least]
    known = ~np.isnan(jobs.remaining_iterations)
    left = np.where(known, jobs.remaining_iterations, guess)
    first = known & (memory[:, COLUMN.total_iterations] == 0)
    memory[first, COLUMN.total_iterations] = left[first]
    work = np.maximum(np.where(known, memory[:, COLUMN.total_iterations], 2 * guess), left)
    equal = np.minimum(total / crowd_of(snapshot, apps, memory), jobs.gpus_max)
    whole = np.clip(np.floor(equal).astype(np.int64), least, step_s.shape[1] - 1)
    alone_s = work * step_s[jobs.curve, whole] / np.minimum(1.0, equal / whole)
    spent_s = snapshot.now_s - apps.start_s
    return Outlook(spent_s, left, np.maximum(alone_s, TINY), lease_s)


def rho_at(snapshot: Snapshot, outlook: Outlook, shares: IntColumn) -> FloatColumn:
    """rho of each row at what it holds, or, with a share of 0, without GPUs.

    Without: for a lease, and with the minimum from then on.
    """
    jobs, step_s = snapshot.jobs, snapshot.speeds.step_s
    on = np.clip(shares, jobs.gpus_min, step_s.shape[1] - 1)
    left_s = outlook.left * step_s[jobs.curve, on]
    left_s = np.where(shares > 0, left_s * slow_where_it_sits(snapshot), outlook.wait_s + left_s)
    rho: FloatColumn = np.maximum((outlook.spent_s + left_s) / outlook.alone_s, TINY)
    return rho


class Fairness(NamedTuple):
    """What each share would mean to some rows."""

    rho: FloatMatrix  # [rows, shares]; inf: it can't run on that share
    fits: BoolMatrix  # [rows, shares]: shares above 0 that are worth holding


def fairness_of(snapshot: Snapshot, outlook: Outlook, rows: IntColumn) -> Fairness:
    """rho of these rows at every share, from their seats; rows without seats get the best ones."""
    jobs, speeds = snapshot.jobs, snapshot.speeds
    curves, least = jobs.curve[rows], jobs.gpus_min[rows]
    step_s, shares = speeds.step_s[curves], np.arange(speeds.step_s.shape[1])
    fits = speeds.useful[curves] & (shares > least[:, None]) | (shares == least[:, None])
    most = np.minimum(jobs.gpus_max[rows], snapshot.cluster.gpus_total)
    fits &= shares <= most[:, None]
    left, at_least_s = outlook.left[rows], step_s[np.arange(rows.size), least]
    step_s *= slow_from_where_it_sits(snapshot, rows, shares)
    with np.errstate(invalid="ignore"):  # nothing left, and no GPUs to do it on
        left_s = np.where(shares >= least[:, None], left[:, None] * step_s, np.inf)
    left_s[:, 0] = outlook.wait_s + left * at_least_s
    ends_s = outlook.spent_s[rows, None] + left_s
    return Fairness(np.maximum(ends_s / outlook.alone_s[rows, None], TINY), fits)


def slow_where_it_sits(snapshot: Snapshot) -> FloatColumn:
    """The factor on each row's step time where it sits."""
    if snapshot.slots is None:
        return np.ones(snapshot.jobs.size)
    alone = np.full(snapshot.jobs.size, -1)
    places, columns = snapshot.speeds.places, snapshot.cluster.columns
    return slowdowns(places, columns, snapshot.jobs.curve, snapshot.slots, alone)


def slow_from_where_it_sits(snapshot: Snapshot, rows: IntColumn, shares: IntColumn) -> FloatMatrix:
    """The factor on the step time of these rows at every share, from where they sit.

    A row that grows stays on its nodes, and on others if they do not hold it; of one that is cut,
    the fewest of its nodes remain. What else slows it down where it sits goes on if it grows.
    """
    if (slots := snapshot.slots) is None:
        return np.ones((rows.size, shares.size))
    columns, curves = snapshot.cluster.columns, snapshot.jobs.curve[rows]
    present = slow_where_it_sits(snapshot)[rows]
    by_nodes = snapshot.speeds.places.nodes
    return stretched(by_nodes, columns, curves, slots.take(rows), present, shares.size)


@kernel
def stretched(
    by_nodes: FloatCube,
    columns: ClusterColumns,
    curves: IntColumn,
    slots: Slots,
    present: FloatColumn,
    shares: int,
) -> FloatMatrix:
    """The same; `present` is the factor at the share that each row holds."""
    out = np.ones((curves.shape[0], shares))
    gpus_most, nodes_most = by_nodes.shape[1] - 1, by_nodes.shape[2] - 1
    for row in range(curves.shape[0]):
        held, nodes, node = np.zeros(slots.first[row + 1] - slots.first[row], np.int64), 0, -1
        for i in range(slots.first[row], slots.first[row + 1]):
            nodes += columns.island_node[slots.island[i]] != node
            node = columns.island_node[slots.island[i]]
            held[nodes - 1] += slots.gpus[i]
        if nodes == 0:
            continue
        held, factors = -np.sort(-held), by_nodes[curves[row]]
        total, on, room = held.sum(), 1, held[0]
        now = factors[min(total, gpus_most), min(nodes, nodes_most)]
        for share in range(shares):
            while room < share and on < nodes:
                room += held[on]
                on += 1
            out[row, share] = factors[min(share, gpus_most), min(on, nodes_most)]
            if share >= total:
                out[row, share] *= present[row] / now
    return out
