"""Generated workloads."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from coddl.core.columns import FloatColumn
from coddl.core.errors import UserError
from coddl.core.speed.table import interpolated
from coddl.traces.files import packaged_speeds, small_trace
from coddl.traces.generators import GENERATORS, POSTER_MODELS, poisson, poster, tiresias
from coddl.traces.trace import Trace

TINY = interpolated({"a": [(2, 1.0), (3, 0.8)]})


def lengths_s(trace: Trace) -> FloatColumn:
    """How long each job runs at the GPUs it asks for."""
    return trace.iterations * trace.speeds.step_s[trace.curve, trace.gpus_requested]


@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS.keys())
def test_one_seed_one_workload(make: Callable[..., Trace]) -> None:
    one, same, other = make(None, seed=3), make(packaged_speeds(), seed=3), make(seed=4)
    for name in ("submitted_s", "curve", "iterations", "gpus_requested"):
        assert np.array_equal(getattr(one, name), getattr(same, name))
        assert not np.array_equal(getattr(one, name), getattr(other, name))
    assert (np.diff(one.submitted_s) >= 0).all()
    assert (one.iterations >= 1).all()
    assert (one.gpus_min <= one.gpus_requested).all()
    assert (one.gpus_requested <= one.gpus_max).all()


@pytest.mark.parametrize("load", [0.2, 0.8, 2.0])
@pytest.mark.parametrize("gpus", [4, 64])
def test_poisson_offers_the_load_asked_for(load: float, gpus: int) -> None:
    trace = poisson(jobs=2000, gpus=gpus, load=load, seed=5)
    offered = float(lengths_s(trace) @ trace.gpus_requested) / trace.submitted_s[-1] / gpus
    assert offered == pytest.approx(load, rel=0.02)
    assert trace.gpus_requested.max() == min(gpus, 8)


def test_poisson_has_many_small_jobs_and_a_heavy_tail() -> None:
    trace = poisson(jobs=5000)
    length_s = lengths_s(trace)
    assert np.median(length_s) == pytest.approx(20 * 60, rel=0.1)
    assert np.mean(length_s) > 2 * np.median(length_s)
    assert length_s.min() >= 60
    assert length_s.max() < 2 * 86_400 + 10
    assert np.mean(trace.gpus_requested == 1) == pytest.approx(0.6, abs=0.03)
    assert len(Counter(trace.curve.tolist())) == len(packaged_speeds().names)


def test_poisson_asks_for_no_less_than_a_model_runs_on() -> None:
    trace = poisson(TINY, jobs=50)
    assert set(trace.gpus_requested.tolist()) == {2, 3}


def test_poster_is_512_jobs_of_eight_models_that_overload_512_gpus() -> None:
    trace = poster()
    assert trace.size == 512
    assert {trace.speeds.names[curve] for curve in trace.curve} == set(POSTER_MODELS)
    assert np.array_equal(trace.gpus_requested, trace.gpus_max)
    assert lengths_s(trace).min() >= 600
    assert lengths_s(trace).max() < 7210
    assert float(lengths_s(trace) @ trace.gpus_requested) > 2 * 512 * trace.submitted_s[-1]


def test_tiresias_is_240_jobs_of_five_sizes() -> None:
    trace = tiresias()
    assert Counter(trace.gpus_requested.tolist()) == {2: 40, 4: 80, 8: 90, 16: 25, 32: 5}
    assert lengths_s(trace).min() >= 120
    assert lengths_s(trace).max() < 7210
    assert trace.submitted_s[0] == 0
    assert np.diff(trace.submitted_s).mean() == pytest.approx(30, rel=0.1)
    assert np.any(np.diff(trace.gpus_requested) < 0)


BAD: dict[str, tuple[Callable[[], Trace], str]] = {
    "no jobs": (lambda: poisson(jobs=0), "jobs is 0"),
    "too many jobs": (lambda: poisson(jobs=10**12), "jobs is 1000000000000"),
    "no GPUs": (lambda: poisson(gpus=0), "gpus is 0"),
    "no load": (lambda: poisson(load=0.0), "load is 0.0"),
    "a load that is no number": (lambda: poisson(load=float("nan")), "load is nan"),
    "a negative seed": (lambda: tiresias(seed=-1), "seed is -1"),
    "poster on other models": (lambda: poster(TINY), "has no facenet, vgg16"),
    "tiresias on small models": (lambda: tiresias(TINY), "can use 32 GPUs"),
}


@pytest.mark.parametrize(("make", "said"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_made_is_named(make: Callable[[], Trace], said: str) -> None:
    with pytest.raises(UserError, match=said):
        make()


def test_the_small_trace_is_made_as_its_readme_says() -> None:
    made, small = poisson(jobs=200, gpus=64, load=1.0, seed=1), small_trace()
    for name in ("submitted_s", "curve", "iterations", "gpus_requested", "gpus_min", "gpus_max"):
        assert np.array_equal(getattr(made, name), getattr(small, name)), name


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("submitted_s", np.array([5.0, 1.0]), "submitted before the previous"),
        ("submitted_s", np.array([0.0, np.nan]), "seconds"),
        ("iterations", np.array([1.0, 0.0]), "iterations"),
        ("curve", np.array([0, 99]), "model"),
        ("gpus_min", np.array([1, 0]), "gpus_min"),
        ("gpus_requested", np.array([1, 0]), "less than gpus_min"),
    ],
)
def test_a_trace_made_by_hand_is_checked(column: str, value: object, why: str) -> None:
    two = tiresias().rows(np.arange(240) < 2)
    with pytest.raises(UserError, match=why):
        replace(two, **{column: value})  # type: ignore[arg-type]
