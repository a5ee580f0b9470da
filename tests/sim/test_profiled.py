"""Models whose speeds are replayed from a profile: one speed object for simulator and pool."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import coddl
from coddl.core.cluster import Cluster
from coddl.core.errors import UserError
from coddl.core.pool.estimates import PoolOutline, predicted_steps
from coddl.core.speed.curves import fewest_nodes, profile_places
from coddl.core.speed.places import plain
from coddl.core.speed.profile import GradientBucket, SliceTime, TrainingProfile
from coddl.core.speed.replay import Arrangement, StepSetting, replayed
from coddl.core.speed.table import interpolated
from coddl.sim.profiled import (
    ProfiledModels,
    named_files,
    profiled_from,
    with_profiled_places,
    with_profiles,
)
from coddl.traces.models import speeds_on

EXAMPLES = Path(__file__).parents[2] / "examples"
PROFILE, LINKS = EXAMPLES / "profile.json", EXAMPLES / "inspection.json"
MODELS = profiled_from({"bert": PROFILE}, LINKS)
TABLE = interpolated({"vgg16": [(1, 3.0), (4, 0.9)], "bert": [(1, 1.0), (2, 0.5)]})


def jobs_file(folder: Path) -> str:
    rows = ["submitted_s,model,iterations,gpus_requested", "0,bert,5000,2", "9,vgg16,300,4"]
    path = folder / "mine.csv"
    path.write_text("\n".join(rows) + "\n")
    return str(path)


def test_a_curve_is_the_replay_of_the_profile_that_a_pool_has() -> None:
    assert MODELS.links is not None
    speeds = with_profiles(TABLE, MODELS, node_gpus=4, most=16)
    row, profile = speeds.names.index("bert"), MODELS.profiles["bert"]
    outline = PoolOutline(4, 16, tuple(MODELS.links.items()))
    for size, step in predicted_steps(profile, outline, 16).items():
        assert speeds.step_s[row, size] == pytest.approx(step.step_s)
    assert not speeds.measured[row].any()
    assert speeds.names == ("vgg16", "bert")  # in the place of the one that the table has
    assert speeds.step_s[0, :5].tolist() == TABLE.step_s[0, :5].tolist()
    assert speeds.step_s[0, 16] == 0.9


def test_no_more_workers_are_replayed_than_a_batch_has_samples() -> None:
    assert MODELS.links is not None
    few = replace(MODELS.profiles["bert"], batch=6)
    speeds = with_profiles(TABLE, ProfiledModels({"few": few}, MODELS.links), 4, 16)
    assert (speeds.step_s[-1, 6:] == speeds.step_s[-1, 6]).all()
    assert speeds.gpus_max[-1] <= 6


def test_places_cost_what_the_replay_says() -> None:
    assert MODELS.links is not None
    cluster = Cluster.of(16, 4)
    speeds = speeds_on(with_profiles(TABLE, MODELS, 4, 16), cluster)
    places = with_profiled_places(speeds, MODELS, cluster).places
    profile, links = MODELS.profiles["bert"], MODELS.links

    def step_s(*on_nodes: int, part: float = 1.0) -> float:
        setting = StepSetting(bandwidth={"cluster": part})
        return replayed(profile, Arrangement(on_nodes), links, setting).step_s

    assert places.nodes[1, 4, 1] == 1.0
    assert places.nodes[1, 4, 2] == pytest.approx(step_s(2, 2) / step_s(4))
    assert places.nodes[1, 4, 4] == pytest.approx(step_s(1, 1, 1, 1) / step_s(4))
    assert places.nodes[1, 8, 1] == 1.0  # on no fewer than two
    assert places.network[1, 4] == pytest.approx(step_s(2, 2, part=0.5) / step_s(2, 2) - 1.0)
    assert places.nodes[0].tolist() == speeds.places.nodes[0].tolist()


def test_places_between_those_that_are_replayed_lie_between() -> None:
    assert MODELS.links is not None
    found = profile_places(MODELS.profiles["bert"], MODELS.links, 4, nodes=9, most=40)
    assert found.nodes.shape == (1, 41, 10)
    assert (found.nodes >= 1.0).all()
    low, high = sorted((found.nodes[0, 12, 5], found.nodes[0, 16, 5]))
    assert low <= found.nodes[0, 13, 5] <= high


def test_one_node_and_one_worker_are_places_too() -> None:
    assert MODELS.links is not None
    one = profile_places(MODELS.profiles["bert"], {}, 4, nodes=1, most=1)
    assert (one.nodes == 1.0).all()
    assert (one.network == 0.0).all()


def test_what_was_measured_of_places_stays() -> None:
    measured = plain(2)._replace(skew=np.array([0.2, 0.3]), packed=np.array([[1.0, 3.0], [4, 5]]))
    speeds = with_profiles(replace(TABLE, known_places=measured), MODELS, 4, 8)
    assert speeds.places.skew.tolist() == [0.2, 0.0]
    assert speeds.places.packed.tolist() == [[1.0, 2.0], [2.0, 2.0]]


def test_a_trace_names_a_profile_as_its_model(tmp_path: Path) -> None:
    trace = jobs_file(tmp_path)
    given = {"profiles": {"bert": PROFILE}, "links": LINKS, "policies": "fifo", "events": True}
    run = coddl.simulate(trace, gpus=8, **given).runs[0]  # type: ignore[arg-type]
    assert MODELS.links is not None
    step = replayed(MODELS.profiles["bert"], fewest_nodes(2, 8), MODELS.links).step_s
    assert run.finish_s[0] == pytest.approx(5000 * step)


@pytest.mark.parametrize("known", ["estimated", "adjusted", "visited"])
def test_schedulers_may_estimate_the_others(tmp_path: Path, known: str) -> None:
    study = coddl.simulate(
        jobs_file(tmp_path),
        "afs-p",
        cluster="2x4",
        placement="estimate",
        profiles={"bert": PROFILE},
        links=LINKS,
        known_speeds=known,  # type: ignore[arg-type]
    )
    assert study["jobs"].tolist() == [2]


def test_a_job_is_spread_only_where_that_is_faster() -> None:
    # A GB at the end of each step: across nodes it takes longer than to compute on fewer GPUs.
    heavy = TrainingProfile(
        "cpu", 64, (SliceTime(64, 0.1, 0.2),), 0.0, 0.0, 0.0, (GradientBucket(10**9, 1.0),)
    )
    assert MODELS.links is not None
    speeds = with_profiles(TABLE, ProfiledModels({"bert": heavy}, MODELS.links), 4, 8)
    assert speeds.gpus_max[-1] <= 4


@pytest.mark.parametrize(
    ("options", "because"),
    [
        ({"links": None}, "nothing is known of the links"),
        ({"servers": "sync"}, "parameter servers"),
        ({"cluster": ["2x4", "2x8"]}, "largest nodes differ"),
        ({"links": "no.json"}, "no.json"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    tmp_path: Path, options: dict[str, object], because: str
) -> None:
    given = {"profiles": {"bert": PROFILE}, "links": LINKS, "policies": "afs-p", **options}
    with pytest.raises(UserError, match=because):
        coddl.simulate(jobs_file(tmp_path), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"version": 2}'])
def test_what_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    for profile, links in ((tmp_path / "bad.json", LINKS), (PROFILE, tmp_path / "bad.json")):
        with pytest.raises(UserError, match="cannot be read"):
            profiled_from({"bert": profile}, links)


@pytest.mark.parametrize("specs", [["bert"], ["=a.json"], ["bert="], ["a=b", "a=c"]])
def test_a_profile_has_a_name(specs: list[str]) -> None:
    with pytest.raises(UserError, match=r"NAME=FILE|twice"):
        named_files(specs)


def test_names_and_files_are_told_apart_at_the_first_sign() -> None:
    assert named_files(["a=b=c.json", "d=e"]) == {"a": "b=c.json", "d": "e"}
