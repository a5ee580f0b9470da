"""The event loop, step by step: for any policy, and the readable twin of `compiled`."""

import numpy as np

from coddl.core.cluster import Cluster
from coddl.core.jobs import GPUS, SETTLED
from coddl.core.scheduler import Scheduler
from coddl.core.snapshot import Snapshot
from coddl.core.speed.table import Speeds
from coddl.sim.compiled import next_seed
from coddl.sim.world import ACTIVE, DECIDE, HELD, LOGGED, NOW, SEED, World, advance, apply_shares


def run_steps(
    world: World, cluster: Cluster, speeds: Speeds, scheduler: Scheduler, events: int
) -> bool:
    """Run up to `events` events, or until the log should be emptied; False when the run is over.

    The simulator adds nothing to the scheduler but time: something happens, the scheduler decides,
    the world follows.
    """
    room = len(world.log.time_s) // 2
    for _ in range(events):
        if not advance(world):
            return False
        if world.counts[DECIDE]:
            plan = scheduler.decide(take_snapshot(world, cluster, speeds))
            world.memory[world.active[: world.counts[ACTIVE]]] = plan.memory
            apply_shares(world, plan.shares, plan.allocation.wake_at_s)
        if world.counts[LOGGED] > room:
            break
    return True


def take_snapshot(world: World, cluster: Cluster, speeds: Speeds) -> Snapshot:
    """The picture at this instant, with the next seed for the policy's coin."""
    rows = world.active[: world.counts[ACTIVE]]
    world.jobs.whole[SETTLED, rows] = world.jobs.whole[GPUS, rows] == world.jobs.whole[HELD, rows]
    seed = next_seed(world.counts[SEED])
    world.counts[SEED] = seed
    return Snapshot(
        now_s=float(world.clock[NOW]),
        cluster=cluster,
        jobs=world.jobs.take(rows),
        speeds=speeds,
        memory=np.take(world.memory, rows, axis=0),
        seed=seed,
    )
