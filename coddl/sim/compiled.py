"""The whole event loop as one compiled function, for policies whose rule is a kernel."""

from coddl.core.columns import FloatColumn, IntColumn
from coddl.core.compiling import as_part, kernel, part
from coddl.core.seeds import next_seed
from coddl.core.snapshot import KernelSnapshot
from coddl.sim.dispatch import decide
from coddl.sim.world import ACTIVE, DECIDE, LOGGED, NOW, SEED, World, advance, apply_shares

# As parts of the loop, without what makes them callable from Python: it compiles faster.
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
            step_s, steps, history = world.believed_step_s, world.steps, world.history
            snapshot = KernelSnapshot(world.jobs, rows, step_s, steps, gpus, now_s, seed, history)
            wake_at_s = decide(code, snapshot, params, memory, shares)
            apply_shares_part(world, shares, wake_at_s)
        if world.counts[LOGGED] > room:
            break
    return True
