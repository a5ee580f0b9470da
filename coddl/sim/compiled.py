"""The whole event loop as one compiled function, for policies whose rule is a kernel."""

from typing import Final

from coddl.core.columns import FloatColumn, IntColumn
from coddl.core.compiling import as_part, kernel, part
from coddl.core.policies.afs import afs_l, afs_p
from coddl.core.policies.fifo import fifo
from coddl.core.policies.marginal_gain import marginal_gain
from coddl.core.policies.max_min import max_min
from coddl.core.policies.policy import Rule
from coddl.core.policies.shortest import shortest
from coddl.core.policies.tiresias import tiresias_l
from coddl.core.seeds import next_seed
from coddl.core.snapshot import Picture
from coddl.sim.world import ACTIVE, DECIDE, LOGGED, NOW, SEED, World, advance, apply_shares

# Where each rule stands in `run_compiled`. numba can't keep, from one run to the next, a loop that
# is given its rule as an argument; one that chooses by a number it can.
RULES: Final[tuple[Rule, ...]] = (
    afs_l,
    afs_p,
    fifo,
    marginal_gain,
    max_min,
    shortest,
    tiresias_l,
)
# The same rules and physics as parts of the loop: without what makes them callable from Python,
# the loop compiles a good second faster.
afs_l_part, afs_p_part = as_part(afs_l), as_part(afs_p)
fifo_part, max_min_part = as_part(fifo), as_part(max_min)
marginal_gain_part, shortest_part = as_part(marginal_gain), as_part(shortest)
tiresias_l_part = as_part(tiresias_l)
advance_part, apply_shares_part = as_part(advance), as_part(apply_shares)
next_seed_part = part(next_seed)


@kernel
def run_compiled(
    world: World, gpus: int, code: int, params: FloatColumn, shares: IntColumn, events: int
) -> bool:
    """Run up to `events` events, or until the log should be emptied; False when the run is over."""
    room = world.log.time_s.shape[0] // 2
    memory = world.memory
    for _ in range(events):
        if not advance_part(world):
            return False
        if world.counts[DECIDE]:
            rows = world.active[: world.counts[ACTIVE]]
            seed = next_seed_part(world.counts[SEED])
            world.counts[SEED] = seed
            now_s = world.clock[NOW]
            picture = Picture(world.jobs, rows, world.step_s, world.steps, gpus, now_s, seed)
            if code == 0:
                wake_at_s = afs_l_part(picture, params, memory, shares)
            elif code == 1:
                wake_at_s = afs_p_part(picture, params, memory, shares)
            elif code == 2:
                wake_at_s = fifo_part(picture, params, memory, shares)
            elif code == 3:
                wake_at_s = marginal_gain_part(picture, params, memory, shares)
            elif code == 4:
                wake_at_s = max_min_part(picture, params, memory, shares)
            elif code == 5:
                wake_at_s = shortest_part(picture, params, memory, shares)
            else:
                wake_at_s = tiresias_l_part(picture, params, memory, shares)
            apply_shares_part(world, shares, wake_at_s)
        if world.counts[LOGGED] > room:
            break
    return True
