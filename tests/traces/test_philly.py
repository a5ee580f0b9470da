"""The Philly job log, by the rules of the AFS evaluation."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coddl.core.errors import UserError
from coddl.traces.files import packaged_speeds, read_trace
from coddl.traces.philly import AFS_MODELS, read_philly

SAMPLE = Path(__file__).with_name("philly_sample.json")
SPEEDS = packaged_speeds(*AFS_MODELS)


def test_jobs_are_kept_and_measured_as_in_the_evaluation() -> None:
    """Of cluster aaaaaa's eight, four stay out: not ended, never tried, no GPU, over 52 GPUs; and
    one, drawn for all the same, makes no iteration."""
    trace = read_philly(SAMPLE, SPEEDS)
    # The first draws among nine models, seed 0: 5, 0, 3, and they begin anew in each cluster; the
    # fourth is among the eight that can use 8 GPUs.
    fourth = np.random.RandomState(0)
    fourth.randint(0, 9, 3)
    large = [name for name in AFS_MODELS if name != "chatbot"][fourth.randint(0, 8)]
    models = ["transformer", "transformer", "vgg16", large]
    assert [SPEEDS.names[curve] for curve in trace.curve] == models
    assert [trace.queues[at] for at in trace.queue] == ["aaaaaa", "bbbbbb", "aaaaaa", "aaaaaa"]
    assert [trace.users[at] for at in trace.user] == ["u1", "u1", "u2", "u3"]
    assert trace.submitted_s.tolist() == [0, 0, 50, 420]
    assert trace.gpus_requested.tolist() == [1, 1, 1, 8]
    step_s = SPEEDS.step_s[trace.curve, trace.gpus_requested]
    assert np.allclose(trace.iterations * step_s, [3600, 86_400, 900, 600])
    assert trace.gpus_min.tolist() == [1] * 4
    assert trace.gpus_max.tolist() == SPEEDS.gpus_max[trace.curve].tolist()


def test_read_trace_knows_the_log_by_its_content(tmp_path: Path) -> None:
    packed = tmp_path / "cluster_job_log"
    packed.write_bytes(gzip.compress(b"\n " + SAMPLE.read_bytes()))
    want = read_philly(SAMPLE, SPEEDS)
    for path in (SAMPLE, packed):
        trace = read_trace(path)
        assert (trace.name, trace.speeds) == (path.name, SPEEDS)
        assert np.array_equal(trace.iterations, want.iterations)


def test_a_seed_draws_other_models() -> None:
    draws = {tuple(read_philly(SAMPLE, SPEEDS, seed).curve.tolist()) for seed in range(9)}
    assert len(draws) > 5


def job(**fields: object) -> dict[str, object]:
    attempt = {
        "start_time": "2017-10-07 01:00:00",
        "end_time": "2017-10-07 02:00:00",
        "detail": [{"ip": "m1", "gpus": ["gpu0"]}],
    }
    whole = {"vc": "a", "user": "u", "submitted_time": "2017-10-07 01:00:00", "attempts": [attempt]}
    return {**whole, **fields}


def attempt(**fields: object) -> dict[str, object]:
    attempts: Any = job()["attempts"]
    return job(attempts=[{**attempts[0], **fields}])


def without(name: str) -> dict[str, object]:
    return {key: value for key, value in job().items() if key != name}


def log(*jobs: object) -> str:
    return json.dumps(jobs, indent=0)


BAD = {
    "cut off": (log(job())[:-9], "it is not JSON"),
    "a comma too many": ('[\n{"vc": 1},\n]', "line 3: it is not JSON"),
    "a list in a list in a list": ("[" * 100_000, "not JSON"),
    "a number of a page": (f"[{'9' * 5000}]", "not JSON"),
    "no jobs": ("[]", "no job of it"),
    "no job that ran": (log(job(attempts=[])), "no job of it"),
    "not an object": ("[\n 7]", 'line 2: in job 1 of the list, "7" is not an object'),
    "no vc": (log(job(), without("vc")), "line 21: in job 2 of the list, there is no vc"),
    "no user": (log(without("user")), "there is no user"),
    "no attempts": (log(without("attempts")), "there is no attempts"),
    "no submission": (log(without("submitted_time")), "there is no submitted_time"),
    "no time of submission": (log(job(submitted_time=None)), "submitted_time is missing"),
    "a vc of numbers": (log(job(vc=7)), 'vc is "7", not a string'),
    "an unprintable vc": (log(job(vc="\ud800")), "not a printable name"),
    "attempts as a string": (log(job(attempts="two")), 'attempts is "two", not a list'),
    "an attempt as a string": (log(job(attempts=["two"])), '"two" is not an object'),
    "a day of 32": (
        log(attempt(end_time="2017-10-32 01:00:00")),
        '"2017-10-32 01:00:00", not a time',
    ),
    "a time with a zone": (log(attempt(start_time="2017-10-07 01:00+01")), "not YYYY-MM-DD HH"),
    "a date only": (log(attempt(start_time="2017-10-07")), "not YYYY-MM-DD HH"),
    "a time in numbers": (log(attempt(start_time=0)), 'start_time is "0", not a string'),
    "no detail": (log(attempt(detail=None)), 'detail is "null", not a list'),
    "detail without GPUs": (log(attempt(detail=[{"ip": "m1"}])), "there is no gpus"),
    "GPUs as a number": (log(attempt(detail=[{"gpus": 4}])), 'gpus is "4", not a list'),
}


@pytest.mark.parametrize(("content", "said"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_named(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster_job_log"
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        read_trace(path)
    assert caught.value.what == f"trace {path} cannot be read"
    assert said in caught.value.because
    assert len(str(caught.value).splitlines()) == 3
