"""Which job held how many GPUs, and when: a part of what a pool folds from its records."""

from itertools import pairwise

from coddl.core.pool import records as r
from coddl.core.pool.state import Pool
from coddl.core.pool.timeline import (
    SPANS_MAX,
    Capacity,
    GpuSpan,
    Spans,
    capacity_between,
    with_capacity,
    with_gpus,
    with_pause,
)
from tests.core.pool.story import Story


def held(spans: Spans) -> list[int]:
    return [span.gpus for span in spans]


def test_a_job_that_grows_and_ends_has_a_span_for_each_size() -> None:
    story = Story(2)
    job = story.submit(1, 2)
    began_s = story.now_s
    story.train(job)
    story.happen(r.RunEnded(job, 1, "succeeded", 9))
    spans = story.job(job).spans
    assert held(spans) == [1, 2]
    assert (spans[0].from_s, spans[-1].to_s) == (began_s, story.now_s)
    assert all(one.to_s == other.from_s for one, other in pairwise(spans))
    assert spans[0].paused_s is None, "its start is no resize"
    assert spans[1].paused_s == 0.1, "as its lead told of the resize"


def test_a_job_that_loses_a_node_holds_less_or_nothing() -> None:
    story = Story(1, 1)
    job = story.submit(1, 2)
    story.train(job)
    assert held(story.job(job).spans) == [1, 2]
    other = next(name for name in ("a", "b") if name != story.job(job).lead)
    story.happen(r.NodeLost(other, "1", "its lease ran out"))
    assert held(story.job(job).spans) == [1, 2, 1]
    lead = story.job(job).lead or ""
    story.happen(r.NodeLost(lead, "1", "its lease ran out"))
    assert story.job(job).spans[-1].to_s == story.now_s


def test_nodes_that_come_and_go_are_steps_of_the_capacity() -> None:
    story = Story(2, 4)
    story.happen(r.NodeLost("b", "1", "its lease ran out"))
    assert story.pool.capacities == [Capacity(1.0, 2), Capacity(2.0, 6), Capacity(3.0, 2)]


def test_a_pool_that_is_folded_again_has_the_same_timeline() -> None:
    story = Story(2)
    first, second = story.submit(1, 2), story.submit(1, 2)
    story.train(first, second)
    pool = Pool()
    for _, at_s, record in story.journal:
        pool.apply(record, at_s)
    assert pool.capacities == story.pool.capacities
    for job in (first, second):
        assert pool.jobs[job].spans == story.job(job).spans != ()


def test_what_was_held_for_no_time_is_no_span() -> None:
    spans = with_gpus(with_gpus((), 1, 5.0), 2, 5.0)
    assert spans == (GpuSpan(2, 5.0),)
    assert with_gpus(spans, 2, 6.0) is spans


def test_a_pause_belongs_to_the_size_that_it_led_to_and_is_told_once() -> None:
    spans = with_gpus((), 2, 5.0)
    assert with_pause(spans, 1, 0.5) == spans, "word of the size before"
    paused = with_pause(spans, 2, 0.5)
    assert with_pause(paused, 2, 0.7)[-1].paused_s == 0.5
    ended = with_gpus(paused, 0, 9.0)
    assert with_pause(ended, 2, 0.7) == ended


def test_a_job_keeps_its_newest_spans() -> None:
    spans: Spans = ()
    for at in range(3 * SPANS_MAX):
        spans = with_gpus(spans, 1 + at % 2, float(at))
    assert len(spans) == SPANS_MAX
    assert spans[-1].from_s == 3 * SPANS_MAX - 1


def test_an_interval_begins_with_what_there_was() -> None:
    steps = with_capacity(with_capacity([], 4, 10.0), 8, 20.0)
    assert capacity_between(steps, 5.0, 15.0) == [Capacity(5.0, 0), Capacity(10.0, 4)]
    assert capacity_between(steps, 15.0, 30.0) == [Capacity(15.0, 4), Capacity(20.0, 8)]
    assert capacity_between(steps, 25.0, 30.0) == [Capacity(25.0, 8)]
