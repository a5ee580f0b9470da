"""Speeds of running jobs: what was measured, what follows from it, and how a pool learns."""

import math
from collections.abc import Callable

import pytest

from coddl.core.pool import records as r
from coddl.core.pool.control import ControlPlane
from coddl.core.pool.spec import JobSpec, Launch
from coddl.core.pool.state import Pool
from coddl.core.registry import policy_from
from coddl.core.scheduler import Stability
from coddl.core.speed.live import Speed, curve
from coddl.testing import job, snapshot_of

CASES = {
    "nothing known scales perfectly": (
        curve(4, {}, {}, 8),
        [(1.0, "assumed"), (0.5, "assumed"), (0.375, "assumed"), (0.25, "assumed")],
    ),
    "the staircase of virtual nodes is kept": (
        curve(4, {1: 8.0}, {}, 4),
        [(8.0, "measured"), (4.0, "assumed"), (4.0, "assumed"), (2.0, "assumed")],
    ),
    "a batch that is cut by sample has no staircase": (
        curve(4, {1: 8.0}, {}, None),
        [(8.0, "measured"), (4.0, "assumed"), (8 / 3, "assumed"), (2.0, "assumed")],
    ),
    "two sizes tell how it scales": (
        curve(4, {1: 1.0, 2: 1.0}, {}, 8),
        [(1.0, "measured"), (1.0, "measured"), (1.0, "assumed"), (1.0, "assumed")],
    ),
    "half of it scales": (
        curve(4, {1: 1.0, 2: 0.75}, {}, 8),
        [(1.0, "measured"), (0.75, "measured"), (0.6875, "assumed"), (0.625, "assumed")],
    ),
    "between two it is interpolated": (
        curve(3, {1: 1.0, 3: 0.5}, {}, 8),
        [(1.0, "measured"), (0.6, "interpolated"), (0.5, "measured")],
    ),
    "the submitted curve holds until measured": (
        curve(2, {}, {1: 2.0, 2: 1.5}, 8),
        [(2.0, "submitted"), (1.5, "submitted")],
    ),
    "and keeps its shape then": (
        curve(2, {1: 4.0}, {1: 2.0, 2: 1.5}, 8),
        [(4.0, "measured"), (3.0, "submitted")],
    ),
    "slower with more is believed": (
        curve(3, {1: 1.0, 2: 1.2}, {}, 8),
        [(1.0, "measured"), (1.2, "measured"), (1.1, "assumed")],
    ),
}


@pytest.mark.parametrize(("got", "want"), CASES.values(), ids=CASES.keys())
def test_a_curve_says_how_it_is_known(got: dict[int, Speed], want: list[tuple[float, str]]) -> None:
    assert [each.source for each in got.values()] == [source for _, source in want]
    assert [each.step_s for each in got.values()] == pytest.approx([step_s for step_s, _ in want])


def learn(
    devices: int, true: dict[int, dict[int, float]], virtual_nodes: int | None
) -> tuple[dict[int, int], dict[int, int]]:
    """Run never-seen jobs in a pool until nothing changes; give their shares and resizes."""
    pool = Pool()
    control = ControlPlane(pool, Stability(cool_down_s=0.0, reserve_s=0.0))

    def tell(fact: r.RunFact | r.RunProgressed, now_s: float) -> None:
        control.handle(r.RunReported("n", "b", fact), now_s)

    control.handle(
        r.NodeJoined("n", "b", "h", tuple(r.Device(i, "cpu") for i in range(devices))), 0.0
    )
    for number in true:
        spec = JobSpec(name=f"j{number}", launch=Launch(argv=("s.py",)), gpus_max=devices)
        control.handle(r.JobSubmitted(number, spec), 1.0)
    for tick in range(40):
        now_s = 2.0 + tick
        for each in pool.live_jobs():
            slots = each.granted
            tell(r.RunPrepared(each.id, 1, virtual_nodes, None, workers_max=16), now_s)
            tell(r.RunStepped(each.id, 1, 1), now_s)
            tell(r.RunChanged(each.id, 1, tick, "resized", 1, slots, tick, 0.0, 0.0), now_s)
        version = pool.nodes["n"].version
        holding = {s: r.RunId(j.id, 1) for j in pool.live_jobs() for s in j.granted}
        control.handle(r.NodeReported("n", "b", version, holding), now_s)
        for each in pool.live_jobs():
            gpus = len(each.granted)
            if gpus:
                step_s = true[each.id][gpus]
                tell(r.RunProgressed(each.id, 1, tick, gpus, step_s, 10), now_s)
    assert all(each.may_grow(99.0) for each in pool.live_jobs())
    return (
        {each.id: len(each.granted) for each in pool.live_jobs()},
        {each.id: each.resizes for each in pool.live_jobs()},
    )


def by_afs_p(devices: int, true: dict[int, dict[int, float]]) -> dict[int, int]:
    """Give what AFS-P would decide if it knew the true curves."""
    rows = [
        job(str(number), 1, devices, step_s=list(steps_s.values()), holds=1)
        for number, steps_s in true.items()
    ]
    shares = policy_from("afs-p:tie=keep")(snapshot_of(devices, rows)).gpus
    return dict(zip(true, shares.tolist(), strict=True))


PARTS = {
    "cut by sample": (None, lambda n: 1 / n),
    "virtual nodes": (16, lambda n: math.ceil(16 / n) / 16),
}
PAIRS: dict[str, tuple[Callable[[float, int], float], Callable[[float, int], float]]] = {
    "linear and not at all": (lambda part, _: part, lambda _part, _n: 1.0),
    "linear and half": (lambda part, _: part, lambda part, _: 0.5 + 0.5 * part),
    "half and slower with more": (lambda part, _: 0.5 + 0.5 * part, lambda _, n: 1.0 + 0.1 * n),
}
RESIZES_MAX = 4  # of each job, from never seen to settled


@pytest.mark.parametrize(("virtual_nodes", "part_of"), PARTS.values(), ids=PARTS.keys())
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())
def test_a_pool_learns_who_scales_within_four_resizes_each(
    pair: tuple[Callable[[float, int], float], Callable[[float, int], float]],
    virtual_nodes: int | None,
    part_of: Callable[[int], float],
) -> None:
    true = {
        number: {n: step_s(part_of(n), n) for n in range(1, 9)}
        for number, step_s in enumerate(pair, 1)
    }
    shares, resizes = learn(8, true, virtual_nodes)
    assert shares == by_afs_p(8, true)
    assert max(resizes.values()) <= RESIZES_MAX, resizes
