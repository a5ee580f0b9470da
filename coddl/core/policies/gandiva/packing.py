"""Packing: jobs on the same GPUs, tried under overload and undone where it does not pay.

A group is known by its first row: `firsts` holds that of each row, itself for a row alone.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coddl.core.columns import BoolColumn, FloatColumn, FloatMatrix, IntColumn
from coddl.core.policies.gandiva.assignment import COLUMN, MODEL_BITS, SURE
from coddl.core.snapshot import Snapshot
from coddl.core.speed.places import group_rate

FULL = 1.0 + 1e-9  # of a GPU's memory: parts that add up to all of it fit, whatever the rounding


@dataclass(frozen=True, slots=True)
class Overload:
    """Rows that might share GPUs, and by how many GPUs there are too few."""

    node: IntColumn  # of rows that are assigned to one server; -1 for others
    gpus: IntColumn  # that rows ask for
    excess: IntColumn  # by node: load over what it has; packing lowers it
    waiting: int  # GPUs that jobs without a server ask for
    now: int  # the slice of time
    profiled_s: float  # a job's utilisation is known after so long
    busy_below: float  # a job that keeps its GPUs less busy than this may be packed


class Join(NamedTuple):
    """A trial: these rows come to the GPUs of others. A group that comes stays together."""

    rows: IntColumn
    hosts: IntColumn


def groups_that_pay(
    snapshot: Snapshot, gpus: IntColumn, now: int, memory: FloatMatrix
) -> IntColumn:
    """The groups there are; keeps the account of trials in `memory`.

    A trial is looked at after a slice of time: if the jobs do more together than before, with one
    job more on the GPUs that those which came have left, these stay, else they leave and are not
    tried there again. So two jobs have to do more than in turns. (Gandiva, OSDI '18, section 4.)
    """
    jobs, firsts = snapshot.jobs, np.arange(snapshot.jobs.size)
    names = np.abs(memory[:, COLUMN.packed_with])
    for name in np.unique(names[names > 0.0]).tolist():
        rows = np.flatnonzero(names == name)
        rows = rows[gpus[rows] == gpus[rows[0]]]
        if len(rows) == 1:
            continue  # the others have left
        came = memory[rows, COLUMN.packed_with] > 0.0
        ran = (jobs.gpus[rows] > 0) & (now > memory[rows, COLUMN.turn])
        if came.any() and ran[came].all():
            if not _pays(snapshot, rows, came):
                _give_up(snapshot, memory, rows, came)
                if came.all():
                    continue
                firsts[rows[came]] = rows[came][0]
                rows, left = rows[~came], rows[came]
                memory[left, COLUMN.packed_with] *= -1.0
            memory[rows, COLUMN.packed_with] = -name
        firsts[rows] = rows[0]
    return firsts


def _pays(snapshot: Snapshot, rows: IntColumn, came: BoolColumn) -> bool:
    """Return whether a group does more than its two parts did, less what one job does alone."""
    places, curve = snapshot.speeds.places, snapshot.jobs.curve
    parts = 1.0  # of two jobs that were alone
    if not came.all():
        parts = sum(group_rate(places, curve[rows[part]]) for part in (came, ~came)) - 1.0
    return group_rate(places, curve[rows]) * SURE > parts


def name_groups(snapshot: Snapshot, firsts: IntColumn, memory: FloatMatrix) -> BoolColumn:
    """Record which rows share GPUs; return which rows share them with others."""
    shares: BoolColumn = np.bincount(firsts, minlength=len(firsts))[firsts] > 1
    names = np.where(shares, snapshot.jobs.id[firsts] + 1.0, 0.0)
    memory[:, COLUMN.packed_with] = np.copysign(names, memory[:, COLUMN.packed_with]) + 0.0
    return shares


def new_trials(
    snapshot: Snapshot, overload: Overload, firsts: IntColumn, memory: FloatMatrix
) -> list[Join]:
    """Try jobs, or groups of them, on the GPUs of others, wherever these are.

    The least busy is tried first, on the least busy GPUs where memory allows, on its own server
    before others that are as busy. It comes from a server with too many jobs, or from any while
    the cluster has too many: jobs that wait then move to the GPUs it leaves. A server has one
    trial at a time.
    """
    jobs, units = snapshot.jobs, _units(snapshot, overload, firsts, memory)
    node, lacks = overload.node, int(overload.excess.sum()) + overload.waiting
    tried, joins = np.zeros(len(overload.excess), np.bool_), list[Join]()
    tried[node[(memory[:, COLUMN.packed_with] > 0.0) & (node >= 0)]] = True
    order = np.flatnonzero(units.open)
    for row in order[np.lexsort((jobs.id[order], units.busy[order]))].tolist():
        if not units.open[row] or (overload.excess[node[row]] <= 0 and lacks <= 0):
            continue
        alike = units.open & (overload.gpus == overload.gpus[row]) & ~tried[node]
        alike[row] = False
        hosts = np.flatnonzero(alike)
        hosts = hosts[_may_join(snapshot, memory, units, row, hosts)]
        if hosts.size == 0:
            continue
        away = node[hosts] != node[row]
        host = int(hosts[np.lexsort((jobs.id[hosts], away, units.busy[hosts]))[0]])
        units.open[[row, host]], tried[node[host]] = False, True
        overload.excess[node[row]] -= overload.gpus[row]
        lacks -= int(overload.gpus[row])
        joins.append(Join(np.flatnonzero(firsts == row), np.flatnonzero(firsts == host)))
    return joins


def note_trial(
    firsts: IntColumn, memory: FloatMatrix, join: Join, now: int, ids: IntColumn
) -> None:
    """Put rows into the group of their hosts; of two jobs both are on trial."""
    rows = np.sort(np.append(join.rows, join.hosts))
    came = rows if len(rows) == 2 else join.rows
    firsts[rows] = rows[0]
    memory[rows, COLUMN.packed_with] = -(ids[rows[0]] + 1.0)
    memory[came, COLUMN.packed_with] *= -1.0
    memory[came, COLUMN.turn] = now


class PackingUnits(NamedTuple):
    """Jobs alone and groups, by their first row."""

    open: BoolColumn  # it may take part in a trial; False at rows that are not the first
    size: IntColumn
    busy: FloatColumn  # how busy its jobs keep the GPUs together
    memory: FloatColumn  # what they take of it together


def _units(
    snapshot: Snapshot, overload: Overload, firsts: IntColumn, memory: FloatMatrix
) -> PackingUnits:
    jobs, places = snapshot.jobs, snapshot.speeds.places
    busy, size = _of_curve(places.busy, jobs.curve), np.bincount(firsts, minlength=jobs.size)
    able = (overload.node >= 0) & (busy < overload.busy_below)
    able &= (jobs.executed_s >= overload.profiled_s) & (memory[:, COLUMN.packed_with] <= 0.0)
    is_open = (size > 0) & (_sums(firsts, ~able) == 0.0)
    memory_part = _of_curve(places.memory, jobs.curve)
    return PackingUnits(is_open, size, _sums(firsts, busy), _sums(firsts, memory_part))


def _sums(firsts: IntColumn, values: FloatColumn | BoolColumn) -> FloatColumn:
    """Sums over groups, at their first rows."""
    out = np.zeros(len(firsts))
    np.add.at(out, firsts, values)
    return out


def _give_up(snapshot: Snapshot, memory: FloatMatrix, rows: IntColumn, came: BoolColumn) -> None:
    """Remember what did not pay: of two jobs the other's model, of more the size of the group."""
    if len(rows) == 2:
        for row, other in (rows, rows[::-1]):
            known = int(memory[row, COLUMN.failed])
            memory[row, COLUMN.failed] = known | 1 << int(_model_of(snapshot, other))
        return
    models = memory[rows[came], COLUMN.failed] % 2.0**MODEL_BITS
    memory[rows[came], COLUMN.failed] = models + len(rows) * 2.0**MODEL_BITS


def _may_join(
    snapshot: Snapshot, memory: FloatMatrix, units: PackingUnits, row: int, hosts: IntColumn
) -> BoolColumn:
    """Which hosts a row may be tried with: nothing is known against it, and memory has room."""
    places, curve = snapshot.speeds.places, snapshot.jobs.curve
    failed = memory[:, COLUMN.failed].astype(np.int64)
    known, model = failed % 2**MODEL_BITS, _model_of(snapshot, np.arange(len(curve)))
    unknown = known[row] >> model[hosts] | known[hosts] >> model[row]
    # Where the memory of two does not fit their rate is 0, which shows at once.
    there, here = places.packed[curve[row], curve[hosts]], places.packed[curve[hosts], curve[row]]
    pair = (unknown & 1 == 0) & (1.0 / there + 1.0 / here > 0.0)
    most, size = failed[row] >> MODEL_BITS, units.size[row] + units.size[hosts]
    fits = units.memory[row] + units.memory[hosts] <= FULL
    may: BoolColumn = np.where(size == 2, pair, fits & ((most == 0) | (size < most)))
    return may


def _model_of(snapshot: Snapshot, rows: IntColumn) -> IntColumn:
    """What stands for the models of rows in `failed`."""
    return snapshot.jobs.curve[rows] // snapshot.speeds.variants % MODEL_BITS


def _of_curve(column: FloatColumn, curve: IntColumn) -> FloatColumn:
    """The entries of curves; one entry may serve for all."""
    out: FloatColumn = column[np.minimum(curve, len(column) - 1)]
    return out
