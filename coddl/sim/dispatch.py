"""Which rule a number stands for, in the compiled loop. Written by tests/sim/dispatch.py.

numba can't keep, from one run to the next, a loop that is given its rule as an argument; one that
chooses by a number it can. As parts, without what makes them callable from Python, the rules
compile a good second faster.
"""

from typing import Final

from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.compiling import as_part, part
from coddl.core.policies.afs import afs_l, afs_p
from coddl.core.policies.fifo import fifo
from coddl.core.policies.marginal_gain import marginal_gain
from coddl.core.policies.max_min import max_min
from coddl.core.policies.policy import Rule
from coddl.core.policies.ranked_speedup import ranked_speedup
from coddl.core.policies.shortest import shortest
from coddl.core.policies.tiresias import tiresias_l
from coddl.core.snapshot import KernelSnapshot

RULES: Final[tuple[Rule, ...]] = (
    afs_l,
    afs_p,
    fifo,
    marginal_gain,
    max_min,
    ranked_speedup,
    shortest,
    tiresias_l,
)
afs_l_part = as_part(afs_l)
afs_p_part = as_part(afs_p)
fifo_part = as_part(fifo)
marginal_gain_part = as_part(marginal_gain)
max_min_part = as_part(max_min)
ranked_speedup_part = as_part(ranked_speedup)
shortest_part = as_part(shortest)
tiresias_l_part = as_part(tiresias_l)


@part
def decide(
    code: int, snapshot: KernelSnapshot, params: FloatColumn, memory: FloatMatrix, shares: IntColumn
) -> float:
    """Apply the rule with this number."""
    if code == 0:
        return afs_l_part(snapshot, params, memory, shares)
    if code == 1:
        return afs_p_part(snapshot, params, memory, shares)
    if code == 2:
        return fifo_part(snapshot, params, memory, shares)
    if code == 3:
        return marginal_gain_part(snapshot, params, memory, shares)
    if code == 4:
        return max_min_part(snapshot, params, memory, shares)
    if code == 5:
        return ranked_speedup_part(snapshot, params, memory, shares)
    if code == 6:
        return shortest_part(snapshot, params, memory, shares)
    return tiresias_l_part(snapshot, params, memory, shares)
