"""What jobs log is kept as long as their history: sampled, in files that stay small."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from coddl.api import wire
from coddl.core.pool.records import RunEnded, RunProgressed
from coddl.server.metric_log import NAME_MAX, NAMES_MAX, MetricLog, MetricPoint, evenly, sample_of
from tests.server.harness import LivePool, eventually


def told(
    step: int, metrics: Mapping[str, float] | None = None, job: int = 1, **more: Any
) -> wire.RunProgress:
    progressed = RunProgressed(job, 1, step, 1, 0.5, 10)
    return wire.RunProgress(progressed=progressed, metrics=metrics or {"loss": 1 / step}, **more)


@pytest.fixture
def metric_log(tmp_path: Path) -> Iterator[MetricLog]:
    kept = MetricLog(tmp_path)
    yield kept
    kept.close()


def values(points: list[MetricPoint]) -> list[float | None]:
    return [point.value for point in points]


def test_a_long_training_has_few_samples_and_its_first_and_last(
    metric_log: MetricLog, tmp_path: Path
) -> None:
    for step in range(1, 100_001):
        metric_log.hear(told(step), float(step))
    metric_log.end(1)
    loss = metric_log.series(1, 10_000)["loss"]
    assert (loss[0], loss[-1]) == (MetricPoint(1, 1.0, 1.0), MetricPoint(100_000, 100_000.0, 1e-5))
    assert 500 < len(loss) < 1_000
    assert (tmp_path / "1.jsonl").stat().st_size < 100_000
    gaps = [(b.step - a.step) / a.step for a, b in pairwise(loss[100:])]
    assert max(gaps) < 0.02
    thinned = metric_log.series(1, 500)["loss"]
    assert (len(thinned), thinned[0], thinned[-1]) == (500, loss[0], loss[-1])


def test_samples_survive_a_crash_with_a_torn_line(metric_log: MetricLog, tmp_path: Path) -> None:
    metric_log.hear(told(1), 1.0)
    metric_log.hear(told(2), 2.0)
    assert len(metric_log.series(1, 500)["loss"]) == 2
    with (tmp_path / "1.jsonl").open("ab") as file:
        file.write(b"\n[3.0,3,{")
    again = MetricLog(tmp_path)
    again.hear(told(4), 4.0)
    assert values(again.series(1, 500)["loss"]) == [1.0, 0.5, 0.25]
    again.close()


def test_what_is_trained_again_counts_as_it_went_the_last_time(metric_log: MetricLog) -> None:
    for step, loss in ((1, 0.9), (2, 0.8), (3, 0.7), (2, 0.6), (3, 0.5)):
        metric_log.hear(told(step, {"loss": loss}), float(step))
    found = metric_log.series(1, 500)["loss"]
    assert [(point.step, point.value) for point in found] == [(1, 0.9), (2, 0.6), (3, 0.5)]


def test_a_metric_that_is_logged_now_and_then_has_no_points_in_between(
    metric_log: MetricLog,
) -> None:
    for step in range(1, 10):
        metric_log.hear(told(step, {"accuracy": 0.5 if step < 6 else 0.7}), float(step))
    found = metric_log.series(1, 500)["accuracy"]
    assert [point.step for point in found] == [1, 5, 6, 9]


def test_a_sample_has_what_was_logged_and_what_was_measured() -> None:
    sample = sample_of(told(3, {"loss": 0.5}, samples_per_s=64.0, not_finite=("norm",)), 7.0)
    assert sample.values == {"loss": 0.5, "norm": None, "samples_per_s": 64.0, "step_s": 0.5}
    many = sample_of(told(3, {f"m{at:03}": 1.0 for at in range(999)} | {"x" * 999: 1.0}), 7.0)
    assert len(many.values) == NAMES_MAX + 1
    assert max(map(len, many.values)) <= NAME_MAX


def test_a_file_that_grows_large_loses_every_second_sample(tmp_path: Path) -> None:
    metric_log = MetricLog(tmp_path, file_bytes_max=2_000)
    for step in range(1, 2_000):
        metric_log.hear(told(step), float(step))
        if step % 50 == 0:
            metric_log.series(1, 1)  # it is written meanwhile
    metric_log.end(1)
    loss = metric_log.series(1, 500)["loss"]
    assert (loss[0].step, loss[-1].step) == (1, 1_999)
    assert (tmp_path / "1.jsonl").stat().st_size < 3_000
    metric_log.close()


def test_a_full_disk_loses_samples_and_nothing_else(tmp_path: Path) -> None:
    metric_log = MetricLog(tmp_path)
    (tmp_path / "1.jsonl").mkdir()
    metric_log.hear(told(1), 1.0)
    metric_log.hear(told(1, job=2), 1.0)
    assert metric_log.series(2, 500)["loss"]
    (tmp_path / "1.jsonl").rmdir()
    metric_log.hear(told(2), 2.0)
    assert values(metric_log.series(1, 500)["loss"]) == [0.5]
    metric_log.close()


def test_some_are_chosen_evenly() -> None:
    assert evenly(range(10), 4) == [0, 3, 6, 9]
    assert evenly(range(3), 4) == [0, 1, 2]
    assert evenly([], 4) == []


def test_over_rest_they_survive_a_restart(live: LivePool, tmp_path: Path) -> None:
    agent = live.joined()
    live.submit(name="a", gpus=1)
    agent.expect_orders(lambda it: it.orders.leads)

    def series() -> dict[str, Any]:
        found = live.api("GET", "/jobs/a/metrics").json()["series"]
        return {each["name"]: each for each in found}

    assert series() == {}
    for step in (1, 2, 200, 201):
        agent.say(wire.Progress(runs=(told(step, not_finite=("norm",)),)))
    eventually(lambda: series().get("loss", {}).get("step") == [1, 2, 200])
    stranger = live.joined("n2")
    stranger.say(wire.Progress(runs=(told(900),)))
    stranger.beat()
    agent.report(RunEnded(1, 1, "succeeded", 201))
    eventually(lambda: live.job("a")["state"] == "SUCCEEDED")
    ended = series()
    assert ended.keys() == {"loss", "norm", "step_s"}
    assert ended["loss"]["step"] == [1, 2, 200, 201], "the last one, too"
    assert ended["norm"]["value"] == [None, None]
    assert ended["loss"]["at_s"] == [live.clock.now_s] * 4
    with LivePool(tmp_path, live.store) as again:
        assert again.api("GET", "/jobs/1/metrics").json()["series"] == list(ended.values())
