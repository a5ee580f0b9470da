"""What happens to jobs in virtual time: they arrive, progress, are resized at a cost, fail, finish.

A job's progress is a straight line from its last change: `left(t) = base - (t - moving_s)/step_s`.
Its finish is predicted once, at that change, and the event that was predicted is the one that ends
it; nothing is ever compared with an epsilon.
"""

from typing import NamedTuple

import numpy as np

from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn, IntMatrix
from coddl.core.compiling import ZERO, kernel, kernel_int, part
from coddl.core.history import History, history_of, level_of, none_ended
from coddl.core.jobs import (
    ATTAINED_GPU_S,
    CHANGED_S,
    CURVE,
    DONE_ITERATIONS,
    EXECUTED_S,
    FIRST_START_S,
    GPUS,
    GPUS_REQUESTED,
    LAST_START_S,
    REMAINING_ITERATIONS,
    STARTS,
    SUBMITTED_S,
    JobTable,
)
from coddl.core.reconfigure import MODES as MODES
from coddl.core.reconfigure import Reconfigure as Reconfigure
from coddl.core.reconfigure import ReconfigureMode as ReconfigureMode
from coddl.core.seeds import first_seed
from coddl.core.snapshot import empty_memory
from coddl.core.speed.table import ShareSteps
from coddl.sim.failures import Faults
from coddl.traces.trace import Trace

# Rows of World.floats: where a job stood at its last change, and what comes next.
(
    BASE_ITERATIONS,  # left to do at MOVING_S
    BASE_EXECUTED_S,
    BASE_ATTAINED_GPU_S,
    MOVING_S,  # progress counts from here
    SINCE_S,  # held unchanged since then
    STEP_S,  # seconds per iteration on what is held; inf: none
    READY_S,  # when the preparation of a share ends; inf: none
    FINISH_S,  # predicted; of a finished job, when it was
    SLOWDOWN,  # step time where the job is, as a multiple of the table's
    PART,  # of its GPUs that it holds: 1/2 where another job shares them
    NEW_SLOWDOWN,  # the same two from the next change on
    NEW_PART,
    NEW_PAUSE_S,  # how long it then stands still
    STOPS_AT,  # iterations left when this run of it ends, by a failure or for good
    ENDS_AT,  # iterations left when it is over for good; above 0: its user stops it then
    SAVED_ITERATIONS,  # left to do at its last checkpoint, and the GPU-time it had had by then
    SAVED_GPU_S,
    LOST_GPU_S,  # GPU-time between checkpoints and failures
    IN_ALL,  # iterations to do when it arrived
    UNIT,  # iterations in truth that one counts for; 1 where beliefs are true
    START_S,  # how long its share is prepared when it holds no GPUs
) = range(FLOATS := 21)
# Rows of World.ints.
(
    HELD,  # GPUs the job trains on; lags behind GPUS while a change is prepared
    PREPARING,  # the share under preparation
    FAILURES,
) = range(INTS := 3)
# Entries of World.clock.
NOW, NEXT_CHANGE, WAKE, PREPARE_S, PAUSE_S, CHECKPOINT_S = range(CLOCKS := 6)
# Entries of World.counts.
(
    ARRIVED,
    ACTIVE,
    RUNNING,
    FREE,  # GPUs that no job holds
    FINISHED,
    EVENTS,
    REALLOCATIONS,  # changes of share of a job that had started before
    CANCELLED,  # preparations
    LOGGED,
    SEED,
    MODE,
    DECIDE,  # 1: shares should be decided anew
    MIGRATIONS,  # changes of GPUs without a change of share
) = range(COUNTS := 13)
# What the log tells, first of Log.what.
ARRIVE, FINISH, SHARE, SWAP, WAKE_UP, MOVE, FAIL = map(kernel_int, range(7))
NO_JOB = kernel_int(-1)
# How a change of share takes effect: World.counts[MODE].
STALL, SERIAL, CONCURRENT, UNCANCELLED = range(4)


class Log(NamedTuple):
    """What happened, in order: when, and (kind, job, GPUs) of each event."""

    time_s: FloatColumn
    what: IntMatrix


class World(NamedTuple):
    """The state of a run: the columns of the whole trace, and where each job stands.

    In `jobs`, `gpus` is the share decided last; `floats` and `ints` have the columns named above.
    Jobs run at `step_s`; policies of the compiled loop are shown `believed_step_s` and its `steps`.
    """

    jobs: JobTable
    floats: FloatMatrix
    ints: IntMatrix
    step_s: FloatMatrix
    believed_step_s: FloatMatrix
    steps: ShareSteps
    memory: FloatMatrix  # the policy's
    fails_at: FloatMatrix  # as in Faults; without rows nothing fails
    active: IntColumn  # rows in the system, in order of submission; counts[ACTIVE] of them
    running: IntColumn  # those that hold or prepare GPUs, in that order; counts[RUNNING] of them
    ended: IntColumn  # those that have finished, in that order; counts[FINISHED] of them
    history: History
    clock: FloatColumn
    counts: IntColumn
    log: Log


def world_of(
    trace: Trace, gpus: int, reconfigure: Reconfigure, seed: int, faults: Faults | None = None
) -> World:
    """The world before anything has happened."""
    jobs = JobTable.of(
        trace.size,
        submitted_s=trace.submitted_s,
        queue=trace.queue,
        group=-1 if trace.group is None else trace.group,
        weight=1.0 if trace.weight is None else trace.weight,
        priority=0 if trace.priority is None else trace.priority,
        preemptible=1 if trace.preemptible is None else trace.preemptible,
        curve=trace.curve,
        remaining_iterations=trace.iterations,
        gpus_requested=trace.gpus_requested,
        gpus_min=trace.gpus_min,
        gpus_max=trace.gpus_max,
        pause_s=reconfigure.pause_s,
        done_iterations=0.0,
        cohort=trace.cohort,
    )
    floats, ints = np.zeros((FLOATS, trace.size)), np.zeros((INTS, trace.size), np.int64)
    floats[[BASE_ITERATIONS, SAVED_ITERATIONS, IN_ALL]] = trace.iterations
    floats[[STEP_S, READY_S, FINISH_S]] = np.inf
    floats[[SLOWDOWN, PART, NEW_SLOWDOWN, NEW_PART, UNIT]] = 1.0
    floats[NEW_PAUSE_S], floats[START_S] = reconfigure.pause_s, reconfigure.prepare_s
    clock, count = np.full(CLOCKS, np.inf), np.zeros(COUNTS, np.int64)
    clock[[NOW, PREPARE_S, PAUSE_S]] = 0.0, reconfigure.prepare_s, reconfigure.pause_s
    fails_at = np.zeros((0, trace.size))
    if faults is not None:
        fails_at, clock[CHECKPOINT_S] = faults.fails_at, faults.checkpoint_s
        floats[ENDS_AT] = faults.ends_at
        floats[STOPS_AT] = np.maximum(faults.ends_at, fails_at[0])
    count[[FREE, MODE]] = gpus, MODES.index(reconfigure.mode)
    count[SEED] = first_seed(seed)
    # One event can tell at most six things of each job; the log is emptied when it is half full.
    room = 12 * trace.size + 65536
    log = Log(np.empty(room), np.empty((room, 3), np.int64))
    active, running, ended = np.empty((3, trace.size), np.int64)
    speeds, jobs = trace.speeds, JobTable(jobs.floats.copy(), jobs.ints.copy())
    assert trace.gpus_min.max(initial=0) < speeds.step_s.shape[1], "a share off the table"
    history = history_of(jobs, none_ended())
    columns = (empty_memory(trace.size), fails_at, active, running, ended, history)
    step_s, steps = speeds.step_s, speeds.steps
    return World(jobs, floats, ints, step_s, step_s, steps, *columns, clock, count, log)


@part
def tell(world: World, kind: int, job: int, gpus: int) -> None:
    """Append to the log."""
    at = world.counts[LOGGED]
    world.log.time_s[at] = world.clock[NOW]
    what = world.log.what[at]
    what[0], what[1], what[2] = kind, job, gpus
    world.counts[LOGGED] = at + 1


@part
def settle(world: World, row: int) -> None:
    """Bring a job's visible progress up to now."""
    floats, held = world.jobs.floats, world.ints[HELD, row]
    if held == 0:
        return  # nothing has moved since it was last settled
    now_s = world.clock[NOW]
    trained_s = max(0.0, now_s - world.floats[MOVING_S, row])
    left = max(0.0, world.floats[BASE_ITERATIONS, row] - trained_s / world.floats[STEP_S, row])
    floats[REMAINING_ITERATIONS, row] = left
    floats[DONE_ITERATIONS, row] = world.floats[IN_ALL, row] - left * world.floats[UNIT, row]
    held_s = now_s - world.floats[SINCE_S, row]
    floats[EXECUTED_S, row] = world.floats[BASE_EXECUTED_S, row] + held_s
    attained_gpu_s = held_s * held * world.floats[PART, row]
    floats[ATTAINED_GPU_S, row] = world.floats[BASE_ATTAINED_GPU_S, row] + attained_gpu_s


@part
def save(world: World, row: int) -> None:
    """Note what is left to do at the last checkpoint, for a job whose progress is up to date."""
    floats, held = world.jobs.floats, world.ints[HELD, row]
    since_s = (world.clock[NOW] - floats[LAST_START_S, row]) % world.clock[CHECKPOINT_S]
    at_s = world.clock[NOW] - since_s
    if held > 0 and at_s > world.floats[SINCE_S, row]:  # else it was noted at an earlier change
        trained_s = max(0.0, at_s - world.floats[MOVING_S, row])
        left = world.floats[BASE_ITERATIONS, row] - trained_s / world.floats[STEP_S, row]
        world.floats[SAVED_ITERATIONS, row] = max(left, floats[REMAINING_ITERATIONS, row])
        world.floats[SAVED_GPU_S, row] = (
            floats[ATTAINED_GPU_S, row] - since_s * held * world.floats[PART, row]
        )


@part
def hold(world: World, row: int, gpus: int, moving_s: float) -> None:
    """Let a job train on `gpus` from `moving_s` on, and predict its end."""
    floats, ints = world.jobs.floats, world.jobs.ints
    settle(world, row)
    if world.fails_at.shape[0] > 0:
        save(world, row)
    world.floats[BASE_ITERATIONS, row] = floats[REMAINING_ITERATIONS, row]
    world.floats[BASE_EXECUTED_S, row] = floats[EXECUTED_S, row]
    world.floats[BASE_ATTAINED_GPU_S, row] = floats[ATTAINED_GPU_S, row]
    world.floats[SINCE_S, row] = world.clock[NOW]
    world.floats[MOVING_S, row] = moving_s
    world.counts[FREE] += world.ints[HELD, row] - gpus
    world.ints[HELD, row] = gpus
    world.floats[SLOWDOWN, row] = world.floats[NEW_SLOWDOWN, row]
    world.floats[PART, row] = world.floats[NEW_PART, row]
    widest = world.step_s.shape[1] - 1
    table_s = world.step_s[ints[CURVE, row], min(gpus, widest)]
    world.floats[STEP_S, row] = table_s * world.floats[SLOWDOWN, row]
    if gpus > 0:
        to_do = world.floats[BASE_ITERATIONS, row] - world.floats[STOPS_AT, row]
        world.floats[FINISH_S, row] = moving_s + to_do * world.floats[STEP_S, row]
    else:  # nothing is lost by stopping a job
        world.floats[FINISH_S, row] = np.inf
        world.floats[SAVED_ITERATIONS, row] = floats[REMAINING_ITERATIONS, row]
        world.floats[SAVED_GPU_S, row] = floats[ATTAINED_GPU_S, row]


@part
def cancel(world: World, row: int) -> None:
    """Drop a preparation that no job waits for any more."""
    if world.floats[READY_S, row] < np.inf:
        world.floats[READY_S, row] = np.inf
        world.counts[CANCELLED] += 1


@part
def prepare(world: World, row: int) -> None:
    """Begin to prepare the share decided last."""
    world.ints[PREPARING, row] = world.jobs.ints[GPUS, row]
    starts = world.ints[HELD, row] == 0
    prepare_s = world.floats[START_S, row] if starts else world.clock[PREPARE_S]
    world.floats[READY_S, row] = world.clock[NOW] + prepare_s


@part
def set_share(world: World, row: int, share: int) -> None:
    """Give a job a new share; when and at what cost it takes effect depends on the mode."""
    floats, ints = world.jobs.floats, world.jobs.ints
    now_s, mode, pause_s = world.clock[NOW], world.counts[MODE], world.floats[NEW_PAUSE_S, row]
    if ints[STARTS, row] > 0:
        world.counts[REALLOCATIONS] += 1
    else:
        floats[FIRST_START_S, row] = now_s
    if ints[GPUS, row] == 0:
        ints[STARTS, row] += 1
        floats[LAST_START_S, row] = now_s
    else:
        floats[CHANGED_S, row] = now_s
    ints[GPUS, row] = share
    tell(world, SHARE, row, share)
    if mode == STALL:
        moving_s = max(now_s, world.floats[MOVING_S, row]) + pause_s if share > 0 else now_s
        hold(world, row, share, moving_s)
    elif mode == SERIAL:
        queue_up(world, row)
    elif share == 0:
        cancel(world, row)
        hold(world, row, ZERO, now_s)
    elif mode == CONCURRENT or world.floats[READY_S, row] == np.inf:
        cancel(world, row)
        if share != world.ints[HELD, row]:
            prepare(world, row)


@part
def queue_up(world: World, row: int) -> None:
    """Put a target behind those not carried out yet; the job stands still until all are."""
    world.ints[PREPARING, row] = world.jobs.ints[GPUS, row]
    now_s, pause_s = world.clock[NOW], world.clock[PAUSE_S]
    if world.floats[READY_S, row] < np.inf:
        world.floats[READY_S, row] = max(now_s, world.floats[READY_S, row]) + pause_s
    else:
        world.floats[READY_S, row] = now_s + pause_s
        hold(world, row, world.ints[HELD, row], np.inf)


@part
def drop_stale(world: World, row: int) -> None:
    """Prepare what is wanted now instead of what was, if the job does not hold it already."""
    if world.jobs.ints[GPUS, row] == world.ints[HELD, row]:
        cancel(world, row)
    else:
        prepare(world, row)


@part
def swap(world: World, row: int) -> bool:
    """Put a prepared share into effect; False if the GPUs for it are still held by others."""
    ints = world.jobs.ints
    share, before = world.ints[PREPARING, row], world.ints[HELD, row]
    if share > before and share - before > world.counts[FREE]:
        if share != ints[GPUS, row]:
            drop_stale(world, row)  # it might never fit
        return False
    stands = before > 0 and world.counts[MODE] != SERIAL  # in `serial` it has stood still already
    hold(world, row, share, world.clock[NOW] + (world.clock[PAUSE_S] if stands else 0.0))
    tell(world, SWAP, row, share)
    world.floats[READY_S, row] = np.inf
    if share != ints[GPUS, row]:
        prepare(world, row)
    return True


@part
def swap_what_is_ready(world: World) -> None:
    """Swap every share whose preparation has ended, those that free GPUs first."""
    swapped = True
    while swapped:  # where preparing takes no time, a swap can make the next one ready
        swapped = False
        for growing in (False, True):
            for i in range(world.counts[RUNNING]):
                row = world.running[i]
                grows = world.ints[PREPARING, row] > world.ints[HELD, row]
                if world.floats[READY_S, row] <= world.clock[NOW] and grows == growing:
                    swapped = swap(world, row) or swapped


@part
def look_ahead(world: World) -> None:
    """Find when the next job finishes or ends its preparation."""
    soonest_s = np.inf
    for i in range(world.counts[RUNNING]):
        row = world.running[i]
        soonest_s = min(soonest_s, world.floats[FINISH_S, row])
        # One that is due waits for GPUs, not for time.
        if world.floats[READY_S, row] > world.clock[NOW]:
            soonest_s = min(soonest_s, world.floats[READY_S, row])
    world.clock[NEXT_CHANGE] = soonest_s


@part
def place_of(world: World, row: int) -> int:
    """The position of a row in `active`."""
    low, high = ZERO, world.counts[ACTIVE]
    while low < high:
        middle = (low + high) // 2
        if world.active[middle] < row:
            low = middle + 1
        else:
            high = middle
    return int(low)


@part
def remember(world: World, row: int) -> None:
    """Note how long a job has trained that ends, at the speed of its request."""
    ints, step_s = world.jobs.ints, world.step_s
    request = min(ints[GPUS_REQUESTED, row], step_s.shape[1] - 1)
    trained_s = world.jobs.floats[DONE_ITERATIONS, row] * step_s[ints[CURVE, row], request]
    world.history.level[row] = level = level_of(trained_s)
    world.history.ended[level] += 1.0


@part
def finish(world: World, row: int) -> None:
    """End a job: its GPUs are free, its prediction stands as the time it ended."""
    world.counts[ACTIVE] -= 1
    for k in range(place_of(world, row), world.counts[ACTIVE]):
        world.active[k] = world.active[k + 1]
    at_s = world.floats[FINISH_S, row]
    cancel(world, row)
    hold(world, row, ZERO, at_s)
    world.floats[FINISH_S, row] = at_s
    remember(world, row)
    world.jobs.floats[REMAINING_ITERATIONS, row] = 0.0
    world.jobs.ints[GPUS, row] = 0
    world.ended[world.counts[FINISHED]] = row
    world.counts[FINISHED] += 1
    tell(world, FINISH, row, ZERO)


@part
def fail(world: World, row: int) -> None:
    """Throw a job back to its last checkpoint, without GPUs; or end it, if it is given up."""
    floats, ints = world.jobs.floats, world.jobs.ints
    world.ints[FAILURES, row] += 1
    tell(world, FAIL, row, ZERO)
    next_at = world.fails_at[world.ints[FAILURES, row], row]
    if next_at == np.inf:
        finish(world, row)
        return
    save(world, row)
    left, kept_gpu_s = world.floats[SAVED_ITERATIONS, row], world.floats[SAVED_GPU_S, row]
    cancel(world, row)
    hold(world, row, ZERO, world.clock[NOW])
    ints[GPUS, row] = 0
    world.floats[LOST_GPU_S, row] += floats[ATTAINED_GPU_S, row] - kept_gpu_s
    floats[REMAINING_ITERATIONS, row] = left
    floats[DONE_ITERATIONS, row] = world.floats[IN_ALL, row] - left * world.floats[UNIT, row]
    world.floats[SAVED_ITERATIONS, row] = left
    world.floats[STOPS_AT, row] = max(world.floats[ENDS_AT, row], next_at)


@kernel
def advance(world: World) -> bool:
    """Move to the next event and let it happen; False when nothing is left to happen.

    counts[DECIDE] tells whether shares should be decided anew: not if only a preparation has ended.
    """
    floats, clock, count = world.jobs.floats, world.clock, world.counts
    total = floats.shape[1]
    arrival_s = floats[SUBMITTED_S, count[ARRIVED]] if count[ARRIVED] < total else np.inf
    now_s = min(arrival_s, clock[NEXT_CHANGE], clock[WAKE])
    if now_s == np.inf:
        return False
    clock[NOW] = now_s
    count[EVENTS] += 1
    before, stay = count[RUNNING], 0
    for i in range(before):
        row = world.running[i]
        settle(world, row)
        if world.floats[FINISH_S, row] <= now_s:
            if world.floats[STOPS_AT, row] > world.floats[ENDS_AT, row]:
                fail(world, row)
            else:
                finish(world, row)
        else:
            world.running[stay] = row
            stay += 1
    count[RUNNING] = stay
    count[DECIDE] = stay < before or arrival_s <= now_s or clock[WAKE] <= now_s
    while count[ARRIVED] < total and floats[SUBMITTED_S, count[ARRIVED]] <= now_s:
        world.active[count[ACTIVE]] = count[ARRIVED]
        count[ACTIVE] += 1
        tell(world, ARRIVE, count[ARRIVED], ZERO)
        count[ARRIVED] += 1
    if clock[WAKE] <= now_s:
        clock[WAKE] = np.inf
        tell(world, WAKE_UP, NO_JOB, ZERO)
    if count[MODE] != STALL:
        swap_what_is_ready(world)
        look_ahead(world)
    return True


@kernel
def apply_shares(world: World, shares: IntColumn, wake_at_s: float) -> None:
    """Put decided shares (by position in `active`) into effect, those that shrink first."""
    ints, runs = world.jobs.ints, 0
    for i in range(world.counts[RUNNING]):
        row = world.running[i]
        share = shares[place_of(world, row)]
        if share < ints[GPUS, row]:
            set_share(world, row, share)
    serial = world.counts[MODE] == SERIAL  # what shrinks to nothing gives up its GPUs later
    for k in range(world.counts[ACTIVE]):
        row = world.active[k]
        if shares[k] > 0 or (
            serial and (world.ints[HELD, row] > 0 or world.floats[READY_S, row] < np.inf)
        ):
            if shares[k] > ints[GPUS, row]:
                set_share(world, row, shares[k])
            world.running[runs] = row
            runs += 1
    world.counts[RUNNING] = runs
    world.clock[WAKE] = wake_at_s
    if world.counts[MODE] != STALL:
        swap_what_is_ready(world)
    look_ahead(world)
