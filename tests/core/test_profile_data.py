"""Profiles as files hold them."""

import json
from dataclasses import replace
from typing import Any

import pytest

from coddl.core.errors import UserError
from coddl.core.speed.profile import GradientBucket, SliceMemory, SliceTime, TrainingProfile

PROFILE = TrainingProfile(
    device="NVIDIA H200",
    batch=256,
    slices=(SliceTime(8, 0.01, 0.02), SliceTime(16, 0.02, 0.04)),
    update_s=0.003,
    other_s=0.001,
    data_s=0.0,
    buckets=(GradientBucket(1_048_576, 0.25), GradientBucket(26_214_400, 1.0)),
    memory=(SliceMemory(8, 10**9),),
    update_memory=(SliceMemory(8, 10**9 + 1),),
    state_bytes=10**8,
    largest_tensor_bytes=10**7,
    virtual_nodes=8,
    signature="resnet 256",
)


def test_what_was_written_is_read() -> None:
    assert TrainingProfile.from_data(json.loads(json.dumps(PROFILE.as_data()))) == PROFILE


def test_a_profile_that_knows_nothing_of_updates_is_read() -> None:
    data = PROFILE.as_data()
    del data["update_memory"]
    assert TrainingProfile.from_data(data) == replace(PROFILE, update_memory=())


def test_slices_are_sorted() -> None:
    data = PROFILE.as_data()
    data["slices"].reverse()
    assert TrainingProfile.from_data(data) == PROFILE


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"slices": []},
        {"batch": 0},
        {"update_s": -1.0},
        {"data_s": float("nan")},
        {"buckets": [{"bytes": 1, "ready": 0.0}]},
        {"slices": [{"samples": 1}]},
        {"memory": 3},
        {"update_memory": [{"samples": 1}]},
    ],
)
def test_what_is_no_profile_is_refused(change: dict[str, Any]) -> None:  # Any: JSON
    with pytest.raises(UserError, match="no profile"):
        TrainingProfile.from_data(PROFILE.as_data() | change)
    with pytest.raises(UserError, match="no profile"):
        TrainingProfile.from_data([])
