"""Finish-time fairness: how much longer a job takes for sharing (Themis, NSDI '20).

    rho = T_shared / T_alone
    T_shared = time since the app came + what is left, at the share and the place it has
    T_alone  = all its work, at an equal share: GPUs / N, at most the largest it can use

N is the mean number of apps during its stay. An app is one job, or the jobs of a group, a search
for hyper-parameters: its best job, the one that would end first, stands for it.
"""

from typing import NamedTuple

import numpy as np

from coddl.core.columns import BoolColumn, BoolMatrix, FloatColumn, FloatMatrix
from coddl.core.snapshot import Snapshot
from coddl.core.speed.places import slowdowns

LEASE_END_S, TOTAL_ITERATIONS, CROWD_S, CROWD = range(4)  # memory; see `crowd_of`
TINY = 1e-12  # below any rho: a time that is 0 has a logarithm too


class Apps(NamedTuple):
    """Who bids, by row."""

    leads: BoolColumn  # the row that stands for its app
    start_s: FloatColumn  # when the app came

    @property
    def number(self) -> int:
        """How many there are."""
        return int(self.leads.sum())


def apps_of(snapshot: Snapshot) -> Apps:
    """The apps: groups, and jobs without one."""
    jobs = snapshot.jobs
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

    With n apps since the last decision, the area under their number is CROWD_S + n x time; the
    memory holds both, as who has left since can't be counted any more.
    """
    now_s, stay_s = snapshot.now_s, snapshot.now_s - snapshot.jobs.submitted_s
    seen = memory[:, CROWD] > 0
    area = np.where(seen, memory[:, CROWD_S] + memory[:, CROWD] * now_s, apps.number * stay_s)
    memory[:, CROWD] = apps.number
    memory[:, CROWD_S] = area - apps.number * now_s
    mean: FloatColumn = np.where(stay_s > 0, area / np.maximum(stay_s, TINY), apps.number)
    return np.maximum(mean, 1.0)


class Fairness(NamedTuple):
    """What each share would mean to each row."""

    rho: FloatMatrix  # [jobs, shares]; inf: it can't run on that share
    fits: BoolMatrix  # [jobs, shares]: shares above 0 that are worth holding


def fairness_of(snapshot: Snapshot, apps: Apps, memory: FloatMatrix, lease_s: float) -> Fairness:
    """rho at every share. Without GPUs: for a lease, and with the minimum from then on.

    A job of unknown length is taken to have as much before it as behind it, and a lease at least.
    """
    jobs, speeds, rows = snapshot.jobs, snapshot.speeds, np.arange(snapshot.jobs.size)
    step_s, total = speeds.step_s[jobs.curve], snapshot.cluster.gpus_total
    least, shares = jobs.gpus_min, np.arange(step_s.shape[1])
    least_s = step_s[rows, least]
    guess = np.maximum(jobs.attained_gpu_s / least, lease_s) / least_s
    known = ~np.isnan(jobs.remaining_iterations)
    left = np.where(known, jobs.remaining_iterations, guess)
    first = memory[:, TOTAL_ITERATIONS] == 0
    memory[first & known, TOTAL_ITERATIONS] = left[first & known]
    work = np.maximum(np.where(known, memory[:, TOTAL_ITERATIONS], 2 * guess), left)
    equal = np.minimum(total / crowd_of(snapshot, apps, memory), jobs.gpus_max)
    whole = np.clip(np.floor(equal).astype(np.int64), least, len(shares) - 1)
    alone_s = work * step_s[rows, whole] / np.minimum(1.0, equal / whole)
    spent_s = (snapshot.now_s - apps.start_s)[:, None]
    fits = (speeds.useful[jobs.curve] & (shares > least[:, None])) | (shares == least[:, None])
    fits &= shares <= np.minimum(jobs.gpus_max, total)[:, None]
    with np.errstate(invalid="ignore"):  # nothing left, and no GPUs to do it on
        ends_s = np.where(shares >= least[:, None], spent_s + left[:, None] * step_s, np.inf)
    ends_s[:, 0] = spent_s[:, 0] + lease_s + left * least_s
    held = np.minimum(jobs.gpus, len(shares) - 1)
    sits = np.flatnonzero(held >= least)
    held_s = step_s[sits, held[sits]] * _slow(snapshot)[sits]
    ends_s[sits, held[sits]] = spent_s[sits, 0] + left[sits] * held_s
    return Fairness(np.maximum(ends_s / np.maximum(alone_s, TINY)[:, None], TINY), fits)


def _slow(snapshot: Snapshot) -> FloatColumn:
    """The factor on each row's step time where it sits."""
    if snapshot.seats is None:
        return np.ones(snapshot.jobs.size)
    nobody = np.full(snapshot.jobs.size, -1)
    places, ground = snapshot.speeds.places, snapshot.cluster.ground
    return slowdowns(places, ground, snapshot.jobs.curve, snapshot.seats, nobody)
