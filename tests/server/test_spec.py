"""A job as users write it: what is accepted, what becomes of it, and what is refused in words."""

import json
from typing import Any

import pytest

from coddl.api.spec import GPUS_MAX_UNSEEN, JobRequest, read_request, schema
from coddl.core.errors import UserError

ACCEPTED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "an elastic script": (
        {"script": "train.py", "args": ["--lr", "1"]},
        {"name": "train", "tier": "elastic", "argv": ("train.py", "--lr", "1"), "gpus": (1, 8)},
    ),
    "arguments as a string": (
        {"script": "train.py", "args": "--name 'a b'"},
        {"argv": ("train.py", "--name", "a b")},
    ),
    "a command": (
        {"command": ["nvidia-smi", "-l"]},
        {"name": "nvidia-smi", "tier": "opaque", "argv": ("nvidia-smi", "-l"), "gpus": (1, 1)},
    ),
    "a command as a string": ({"command": "sleep 5"}, {"argv": ("sleep", "5")}),
    "a restartable script": (
        {"script": "train.py", "tier": "restartable", "gpus": 4},
        {"argv": ("python3", "train.py"), "gpus": (4, 4), "tier": "restartable"},
    ),
    "its interpreter": (
        {"script": "t.py", "tier": "opaque", "python": "/opt/py"},
        {"argv": ("/opt/py", "t.py")},
    ),
    "a script in another language": (
        {"script": "run.sh"},
        {"argv": ("./run.sh",), "tier": "opaque"},
    ),
    "a range": ({"script": "t.py", "gpus": "2..6"}, {"gpus": (2, 6)}),
    "a number as text": ({"script": "t.py", "gpus": "4"}, {"gpus": (4, 4)}),
    "a range, and what is requested of it": (
        {"script": "t.py", "gpus": {"min": 2, "max": 8, "requested": 3}},
        {"gpus": (2, 8), "requested": 3},
    ),
    "a range in full": ({"script": "t.py", "gpus": {"min": 2, "max": 3}}, {"gpus": (2, 3)}),
    "numbers in the environment": (
        {"script": "t.py", "env": {"A": 3, "B": 0.5, "C": "x"}},
        {"env": {"A": "3", "B": "0.5", "C": "x"}},
    ),
    "a precheck": (
        {"script": "t.py", "precheck": "python -c 'import torch'"},
        {"precheck": ("python", "-c", "import torch")},
    ),
    "speeds": ({"script": "t.py", "step_s": {"1": 0.5, "2": 0.3}}, {"step_s": {1: 0.5, 2: 0.3}}),
    "a part of a search": (
        {"script": "t.py", "group": "lr", "weight": 2},
        {"app": ("lr", 2.0)},
    ),
    "a script whose name is a number": ({"script": "7.py"}, {"name": "job-7"}),
}


@pytest.mark.parametrize(("data", "want"), ACCEPTED.values(), ids=ACCEPTED.keys())
def test_what_is_accepted(data: dict[str, Any], want: dict[str, Any]) -> None:
    request = read_request(data)
    assert read_request(json.loads(request.model_dump_json())) == request
    spec = request.to_spec(8)
    found = {
        "name": spec.name,
        "tier": spec.tier,
        "argv": spec.launch.argv,
        "gpus": (spec.gpus_min, spec.gpus_max),
        "requested": spec.gpus_requested,
        "app": (spec.group, spec.weight),
        "env": spec.launch.env,
        "precheck": spec.launch.precheck,
        "step_s": spec.step_s,
    }
    assert {key: found[key] for key in want} == want


REFUSED: dict[str, tuple[Any, str, str]] = {
    "an unknown field": ({"script": "t.py", "gpu": 1}, 'no field "gpu"', "gpus"),
    "a field far from any": ({"script": "t.py", "zzz": 1}, 'no field "zzz"', "one of name, script"),
    "a range upside down": ({"script": "t.py", "gpus": "8..2"}, '"8..2" has a', "2..8"),
    "a request out of its range": (
        {"script": "t.py", "gpus": {"min": 1, "max": 2, "requested": 3}},
        "3 GPUs are requested, which is not within 1..2",
        "2 or less",
    ),
    "no devices": ({"script": "t.py", "gpus": 0}, '"0" is less than 1 GPU', "1, or 1..8"),
    "words for a number": ({"script": "t.py", "gpus": "all"}, '"all" is neither', "4, or 1..8"),
    "half a range": ({"script": "t.py", "gpus": {"min": 1}}, "gpus.max is missing", "gpus.max"),
    "nothing to run": ({}, "neither is given", "script: train.py"),
    "two things to run": ({"script": "t.py", "command": "x"}, "both a script", "script"),
    "arguments of a command": ({"command": "x", "args": "y"}, "arguments are for", "command"),
    "an elastic command": ({"command": "x", "tier": "elastic"}, "this is a command", "restartable"),
    "a range for a command": ({"command": "x", "gpus": "1..2"}, "tier is opaque", "gpus: 2"),
    "an unknown tier": ({"script": "t.py", "tier": "soft"}, "tier should be 'elastic'", "tier"),
    "a name with a space": ({"script": "t.py", "name": "a b"}, "can't name a job", "bert-large"),
    "a name that is a number": ({"script": "t.py", "name": "12"}, "not a number", "bert-large"),
    "a variable with a space": ({"script": "t.py", "env": {"a b": 1}}, "a variable", "NAME=value"),
    "a zero byte": ({"script": "t.py", "env": {"A": "\0"}}, "a zero byte", "text"),
    "a folder outside": (
        {"script": "t.py", "folder": "../x"},
        "outside of the submitted",
        "within",
    ),
    "an absolute folder": (
        {"script": "t.py", "folder": "/x", "code": "0" * 64},
        "outside of the submitted",
        "within",
    ),
    "a hash that is none": ({"script": "t.py", "code": "xyz"}, "not a SHA-256", "hexadecimal"),
    "an open quote": ({"command": "echo 'x"}, "No closing quotation", "list of words"),
    "a speed of nothing": ({"script": "t.py", "step_s": {"1": 0}}, "greater than 0", "step_s"),
    "a weight of nothing": ({"script": "t.py", "weight": 0}, "greater than 0", "weight"),
    "a priority in words": ({"script": "t.py", "priority": "high"}, "and is 'high'", "priority"),
    "infinite patience": ({"script": "t.py", "grace_s": float("inf")}, "grace_s", "grace_s"),
    "a list": ([1], "it is a list", "script: train.py"),
    "nothing": (None, "it is nothing", "script: train.py"),
}


@pytest.mark.parametrize(("data", "because", "try_"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused_and_in_which_words(data: Any, because: str, try_: str) -> None:
    with pytest.raises(UserError) as caught:
        read_request(data)
    assert caught.value.what.endswith("cannot be accepted")
    assert because in caught.value.because
    assert try_ in caught.value.try_


def test_several_mistakes_are_counted() -> None:
    with pytest.raises(UserError, match=r"and 2 more"):
        read_request({"script": "t.py", "a": 1, "b": 2, "c": 3})


def test_a_job_is_called_by_its_name_in_an_error() -> None:
    with pytest.raises(UserError, match='job "bert" cannot be accepted'):
        read_request({"name": "bert", "gpus": 0, "script": "t.py"})


def test_the_schema_knows_every_field_and_form() -> None:
    found = schema()
    assert found["$schema"].startswith("https://json-schema.org/")
    assert set(found["properties"]) == set(JobRequest.model_fields)
    assert found["additionalProperties"] is False
    assert all("description" in field for field in found["properties"].values())
    json.dumps(found)


def test_an_empty_pool_says_nothing_about_how_many_devices_a_job_may_have() -> None:
    assert read_request({"script": "t.py"}).to_spec(0).gpus_max == GPUS_MAX_UNSEEN
