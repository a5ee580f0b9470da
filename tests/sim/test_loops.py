"""Three ways to simulate, one story: compiled loop, step-by-step loop, plain-Python oracle."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coddl.core.registry import policy_from
from coddl.core.scheduler import Stability
from coddl.sim.run import Run
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, run_case
from coddl.sim.world import MODES, SHARE, Reconfigure
from coddl.testing.builders import speeds_from
from coddl.traces.generators import poisson
from coddl.traces.trace import Trace
from tests import oracle

POLICIES: Mapping[str, oracle.Params] = {
    "afs-l": {},
    "afs-p": {},
    "afs-p:tie=keep,lease_h=0.1": {"tie": "keep", "lease_h": 0.1},
    "fifo": {},
    "fifo:backfill=true": {"backfill": True},
    "max-min": {},
    "max-speedup": {},
    "optimus": {},
    "ranked-speedup": {},
    "ranked-speedup:q=3,calm=0": {"q": 3.0, "calm": 0.0},
    "ranked-speedup:calm=0.2,rho=1.2": {"calm": 0.2, "rho": 1.2},
    "ranked-speedup:lengths=learned": {"lengths": "learned"},
    "ranked-speedup:lengths=learned,calm=0.2": {"lengths": "learned", "calm": 0.2},
    "srsf": {},
    "srtf": {},
    "tiresias-l": {},
    "tiresias-l:threshold_gpu_h=0.01/0.1,promote=1": {
        "threshold_gpu_h": (0.01, 0.1),
        "promote": 1.0,
    },
    "tiresias-l:threshold_gpu_h=0.01/0.1,promote=1,turn_h=0.02": {
        "threshold_gpu_h": (0.01, 0.1),
        "promote": 1.0,
        "turn_h": 0.02,
    },
    "tiresias-l:threshold_gpu_h=0.05,promote=0,count=since-start": {
        "threshold_gpu_h": (0.05,),
        "promote": 0.0,
        "count": "since-start",
    },
}
Events = list[tuple[float, int, int, int]]


def events_of(run: Run) -> Events:
    assert run.events is not None
    return list(zip(*(column.tolist() for column in run.events), strict=True))


def stories(spec: str, trace: Trace, gpus: int, reconfigure: Reconfigure) -> list[Events]:
    case = Case(
        RunKey(spec, gpus), policy_from(spec), trace, reconfigure=reconfigure, keep_events=True
    )
    told = oracle.simulate(
        trace,
        gpus,
        spec.partition(":")[0],
        POLICIES[spec],
        seed=1,
        mode=reconfigure.mode,
        prepare_s=reconfigure.prepare_s,
        pause_s=reconfigure.pause_s,
    )
    return [events_of(run_case(case)), events_of(run_case(case, step_by_step=True)), told]


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """A dozen jobs with kinky curves, minima, equal times and lengths."""
    curves = []
    for _ in range(3):
        step_s = [draw(st.floats(0.1, 2.0))]
        for _ in range(draw(st.integers(0, 7))):
            step_s.append(step_s[-1] * draw(st.sampled_from([1.0, 0.9, 0.7, 0.5, 1.02])))
        curves.append(step_s)
    speeds = speeds_from(curves)
    count = draw(st.integers(1, 14))
    curve = np.array(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))
    most = speeds.gpus_max[curve]
    least = np.minimum(np.array([draw(st.sampled_from([1, 1, 1, 2, 3])) for _ in curve]), most)
    asked = np.minimum(np.array([draw(st.integers(1, 8)) for _ in curve]), most)
    whole = st.integers(0, 2000).map(float)
    zeros = np.zeros(count, np.int64)
    return Trace(
        name="any",
        speeds=speeds,
        submitted_s=np.sort([draw(whole | st.floats(0.0, 2000.0)) for _ in curve]),
        curve=curve,
        iterations=np.array(
            [draw(st.sampled_from([50.0, 300.0]) | st.floats(1.0, 3000.0)) for _ in curve]
        ),
        gpus_requested=np.maximum(asked, least),
        gpus_min=least,
        gpus_max=most,
        queue=zeros,
        user=zeros,
    )


@pytest.mark.parametrize("spec", POLICIES)
@given(trace=traces(), gpus=st.integers(8, 12), mode=st.sampled_from(MODES), slow=st.booleans())
@settings(max_examples=25, deadline=None)
def test_all_loops_tell_the_same_story(
    spec: str, trace: Trace, gpus: int, mode: str, slow: bool
) -> None:
    # Less than the shortest stay in a queue: else nobody would ever train.
    costs = Reconfigure(mode, 1.0 * slow, 0.5 * slow)  # type: ignore[arg-type]
    compiled, stepwise, told = stories(spec, trace, gpus, costs)
    assert compiled == stepwise
    assert compiled == told


@pytest.mark.parametrize("spec", POLICIES)
def test_the_same_on_a_crowded_trace(spec: str) -> None:
    trace = poisson(jobs=120, gpus=16, load=1.3, seed=3)
    compiled, stepwise, told = stories(spec, trace, 16, Reconfigure("concurrent", 30.0, 1.0))
    assert compiled == stepwise
    assert compiled == told
    assert len(compiled) > 300


def test_a_log_that_fills_up_is_emptied_and_loses_nothing() -> None:
    trace = poisson(jobs=400, gpus=8, load=3.0, seed=5)
    case = Case(RunKey("afs-p", 8), policy_from("afs-p:lease_h=0.02"), trace, keep_events=True)
    run = run_case(case)
    assert run.events is not None
    assert len(run.events.time_s) > 10 * trace.size + 65536
    assert run.finished.all()
    assert events_of(run) == events_of(run_case(case, step_by_step=True))


def test_another_seed_flips_other_coins() -> None:
    trace = poisson(jobs=60, gpus=16, load=0.9, seed=1)
    case = Case(RunKey("afs-p", 16), policy_from("afs-p"), trace, keep_events=True)
    first, again, other = (
        events_of(run_case(replace(case, key=replace(case.key, seed=seed)))) for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other


def test_a_cool_down_makes_a_policy_change_its_mind_less_often() -> None:
    trace = poisson(jobs=60, gpus=16, load=1.0, seed=3)
    case = Case(RunKey("afs-p", 16), policy_from("afs-p"), trace, keep_events=True)
    calm = run_case(replace(case, stability=Stability(cool_down_s=1800.0, min_runtime_s=600.0)))
    wild = run_case(case)
    assert calm.finished.all()
    assert calm.reallocations < wild.reallocations
    assert calm.events is not None
    shares = calm.events.kind == SHARE
    for job in range(trace.size):
        mine = calm.events.time_s[shares & (calm.events.job == job)]
        assert (np.diff(mine)[1:] >= 1800.0).all(), "after its start, which is no change"
