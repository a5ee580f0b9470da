"""Finds out what a failure needs: parts of its plan are left out for as long as it still fails."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from coddl.testing.full_system.plan import PlannedNode, SimulationPlan

RUNS_MAX: Final = 300

T = TypeVar("T")


def shrink(plan: SimulationPlan, fails: Callable[[SimulationPlan], bool]) -> SimulationPlan:
    """Give a smaller plan that fails as well: fewer faults, users' acts, jobs and nodes."""
    left = RUNS_MAX

    def still_fails(smaller: SimulationPlan) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(smaller)

    before: SimulationPlan | None = None
    while plan != before:
        before = plan
        for parts_of, with_parts in (
            (lambda p: p.faults, lambda p, parts: replace(p, faults=parts)),
            (lambda p: p.acts, lambda p, parts: replace(p, acts=parts)),
            (lambda p: p.jobs, lambda p, parts: replace(p, jobs=parts)),
            (lambda p: p.nodes, _with_nodes),
        ):
            plan = _fewer(plan, parts_of, with_parts, still_fails)
    return plan


def _fewer(
    plan: SimulationPlan,
    parts_of: Callable[[SimulationPlan], tuple[T, ...]],
    with_parts: Callable[[SimulationPlan, tuple[T, ...]], SimulationPlan],
    fails: Callable[[SimulationPlan], bool],
) -> SimulationPlan:
    """Leave out parts of one sort: halves first, then ever smaller pieces."""
    piece = max(1, len(parts_of(plan)) // 2)
    while True:
        begin = 0
        while begin < len(parts := parts_of(plan)):
            smaller = with_parts(plan, parts[:begin] + parts[begin + piece :])
            if smaller.nodes and fails(smaller):
                plan = smaller
            else:
                begin += piece
        if piece == 1:
            return plan
        piece //= 2


def _with_nodes(plan: SimulationPlan, nodes: Sequence[PlannedNode]) -> SimulationPlan:
    """Give a plan with these nodes alone, and nothing that names others."""
    names = {"", *(node.name for node in nodes)}
    return replace(
        plan,
        nodes=tuple(nodes),
        acts=tuple(act for act in plan.acts if act.node in names),
        faults=tuple(fault for fault in plan.faults if {fault.node, fault.other} <= names),
    )
